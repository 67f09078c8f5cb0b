//! What moves a live MobiFS engine: threads, clock, checkpointer, control socket.
#![forbid(unsafe_code)]

mod clock;
mod config;
mod memory_budget;
mod status;
mod volume;

pub use clock::{Clock, SystemClock};
pub use config::{Config, ConfigError, PolicyChange, Rules, class_name, parse_class, parse_size};
pub use mobifs_core::{
    AllocateMode, AttributeChange, Caller, Class, FsError, Node, NodeSpec, ReadDirEntry,
    RenameMode, TimeChange, Whence, WriteAt, XattrMode,
};
pub use status::{
    AppReport, CheckpointReport, MemoryStatus, SCHEMA_VERSION, Status, StoreStatus,
    TransactionCounts,
};
pub use volume::{Volume, VolumeError, VolumeOptions};
