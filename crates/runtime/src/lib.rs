//! What moves a live MobiFS engine: threads, clock, checkpointer, control socket.
#![forbid(unsafe_code)]

mod clock;
mod volume;

pub use clock::{Clock, SystemClock};
pub use mobifs_core::{
    AllocateMode, AttributeChange, Caller, FsError, Node, NodeSpec, ReadDirEntry, RenameMode,
    TimeChange, Whence, WriteAt, XattrMode,
};
pub use volume::{Volume, VolumeError};
