//! The experiments, a file for each.

pub(crate) mod defragmentation;
pub(crate) mod dispersed;
pub(crate) mod preallocation;
pub(crate) mod reservation;
pub(crate) mod scan;
pub(crate) mod sqlite;
pub(crate) mod utilisation;
pub(crate) mod waits;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const PAGE_BYTES: u64 = 4096;
