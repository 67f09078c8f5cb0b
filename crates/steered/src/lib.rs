//! Which filesystems of this machine are steered: a daemon commits them at times of its own choice,
//! so that calls for durability may return at once.
//!
//! A daemon publishes a [`Registration`]; programs look it up by a descriptor ([`Directory::lookup`])
//! or decide call by call ([`Decisions`]). Nothing on the way of a decision allocates memory or takes
//! a lock: it may run in a signal handler and between `vfork` and `execve`.
//!
//! # What lies where
//! In [`STANDARD_DIRECTORY`] there is one file for each steered filesystem, named `MAJOR:MINOR` as in
//! `/proc/self/mountinfo`. It holds one record of 64 bytes in the machine's byte order:
//!
//! | bytes | content |
//! | --- | --- |
//! | 0–7 | `MOBISTR1` |
//! | 8–11 | version: 1, or 2 if the scope is not the whole filesystem |
//! | 12–15 | state: 1 while the promise holds, 0 when it is withdrawn |
//! | 16–19 | process number of the daemon |
//! | 20–23 | until when the state holds, in seconds of `CLOCK_MONOTONIC` |
//! | 24–31 | generation: another number for each registration since the machine started |
//! | 32–35 | scope: 0 for the whole filesystem, 1 for files and directories with `FS_JOURNAL_DATA_FL` |
//! | 36–63 | 0 |
//!
//! While the daemon lives it holds a lock of the open file description (`F_OFD_SETLK`) for writing on
//! all of the file. (Not `flock`: that one can be taken exclusively by whoever may read the file, and
//! another user could make the registration of a dead daemon look alive.) Whoever looks a registration up
//! checks the lock. A program that has found it reads the record only, so a daemon renews its promise
//! every few seconds: that of a daemon that was killed lapses after [`VALID_S`].

#![deny(unsafe_code)]

mod claim;
mod clock;
mod decisions;
mod directory;
mod freeze;
mod journalled;
mod mapped_record;
mod mapping_flag;
mod mappings;
mod ofd_lock;
mod record;
mod registration;
mod sleep;
mod superblock;

pub use claim::Claim;
pub use decisions::{Decisions, PROBE_BYTES, PROBE_FLAGS, PROBE_OFFSET, pending_error};
pub use directory::{Directory, ENVIRONMENT, STANDARD_DIRECTORY, Steered};
pub use freeze::{Standstill, is_frozen, set_frozen};
pub use journalled::is_journalled;
pub use mapping_flag::{MAPPING_FLAG_ENVIRONMENT, MappingFlag};
pub use mappings::{MappedFiles, is_order_kept};
pub use record::{RECORD_BYTES, Record, Scope};
pub use registration::{PublishError, Registration, VALID_S};
pub use superblock::{Device, Look};
