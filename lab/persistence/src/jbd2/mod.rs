//! The journal of ext4, JBD2, read by its documented form (`Documentation/filesystems/ext4/journal.rst` of the
//! kernel). Nothing here trusts what it reads: journals may be damaged, or forged.

mod block;
mod fast_commit;
mod ring;
mod superblock;

pub(crate) use block::{BlockType, Header};
pub use fast_commit::{fast_commits, has_fast_commit};
pub use ring::{Log, Logged, Ring, Transaction};
pub use superblock::{ChecksumVersion, Features, Superblock};

/// Begins every control block.
pub(crate) const MAGIC: u32 = 0xc03b_3998;
/// Bytes of the header of a control block.
pub(crate) const HEADER_BYTES: usize = 12;
