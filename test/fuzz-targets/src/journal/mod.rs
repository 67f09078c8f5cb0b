//! The journal: its records, its scan, and mounting a store whose journal was damaged or
//! forged.

mod arbitrary_record;
mod calibration;
mod carried;
mod copied;
mod damaged;
mod exposed;
mod fence;
mod forged;
mod history;
mod preallocated;
mod records;
mod salvaged;
mod scan;

pub use calibration::CALIBRATION;
pub use carried::JOURNAL_CARRIED_MOUNT;
pub use copied::JOURNAL_COPIED_MOUNT;
pub use damaged::JOURNAL_DAMAGED_MOUNT;
pub use forged::JOURNAL_FORGED_MOUNT;
pub use preallocated::PREALLOCATED_LIST;
pub use records::{JOURNAL_RECORDS, JOURNAL_TRANSACTION};
pub use salvaged::JOURNAL_SALVAGE;
pub use scan::JOURNAL_SCAN;
