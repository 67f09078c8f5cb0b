//! The MobiFS engine as a pure state machine.
//!
//! [`Engine`] holds the namespace, the dirty pages and the transactions of one mount. It has no
//! clock, thread, file or random number of its own: time comes in with each call, it requests data
//! of the checkpoint store with [`Need`], and returns what should be written as [`Commit`]. The
//! mount, the SQLite VFS, the simulator and the tests all drive this one machine.
//!
//! The crate is `no_std`, so the compiler itself keeps those promises.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod accounting;
mod acl;
mod app;
mod apps;
mod directory;
mod engine;
mod error;
mod inode;
mod limits;
mod namespace;
pub mod persist;
pub mod policy;
mod request;
mod super_journals;
mod transactions;
mod usage;
mod versions;

pub use app::{AppPolicy, AppRules, Class, TopLevelApps};
pub use engine::{
    AppStatus, Engine, EngineConfig, EngineStatus, Overdue, RemovalMemory, SyncPoint,
};
pub use error::{FsError, Need, Stop};
pub use limits::Limits;
/// What a search in a file looks for; see [`Engine::search_content`].
pub use mobifs_base::{ContentSearch, Whence};
pub use namespace::{KernelHeld, References, Trimmed};
pub use policy::machine::{Machine, MachineEvent};
pub use policy::observed::{Observed, ObservedTransaction};
pub use policy::pacing::{CommitQueue, Next, Pacing, PacingRules};
pub use policy::transactioning::{TransactioningName, TransactioningRule};
pub use request::{
    AllocateMode, AttributeChange, Caller, Moment, Node, NodeSpec, ReadDirEntry, RenameMode,
    SetIdBits, TimeChange, WriteAt, XattrMode,
};
pub use transactions::{ClosedUntil, Commit, SizeChange};
pub use versions::{ReadPlan, ReadSegment};

/// Name of the store's own directory in the root; it cannot be seen or made through
/// the mount.
pub const RESERVED_NAME: &[u8] = b".mobifs";

/// The hash maps of the engine: seeded from outside, so that the crate stays free of
/// randomness and hostile names still cannot aim for collisions.
type HashMap<K, V> = hashbrown::HashMap<K, V, foldhash::fast::FixedState>;
