//! A crash double: a filesystem in memory under the journal store whose unsynced
//! effects land, vanish or tear, in any subset.
//!
//! [`CrashLower`] keeps three things: the live state (what calls see), the durable
//! state, and the list of effects between them. A *crash image* is the durable state
//! plus any subset of those effects, chosen by the test, closed under four rules
//! without which no filesystem could exist (in `effect.rs`):
//! one name has one history, a directory exists before its entries, a removed
//! directory was empty, an inode number names one inode. Everything else may happen,
//! also what no journaling filesystem of today does: the last of a thousand renames
//! lands and no other, a size without its data, data without its size, one sector out
//! of the middle of a write, a mode without the owner set with it.
//!
//! What makes effects durable:
//!
//! | call | durable when it returns |
//! | --- | --- |
//! | `sync` of a file | its content, size, attributes; *not* its directory entry |
//! | `sync_content` of a file | its content and size; *not* its attributes |
//! | `sync` of a directory | its entries and attributes, and what these imply (a rename's other end) |
//! | `sync_all` | everything |
//! | `journal_write`, durable | these blocks, and the size if it grew; nothing older |
//! | `journal_flush` | all content of the journal file |
//!
//! Moving content to other blocks makes nothing durable: each sector that was written before may still be missing
//! afterwards (in `moved.rs`).
//!
//! Inode numbers are reused as soon as the inode is gone and closed, as ext4 does.
//! Times change with every write, so a store that sets them too early is found out.

mod blocks;
mod calls;
mod effect;
mod faults;
mod image;
mod moved;
mod refusals;
pub mod search;
mod state;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::io;
use std::sync::Arc;

use mobifs_base::{FileKind, SpaceInfo, Timestamp};
use mobifs_store::Capabilities;
use mobifs_store::lower::Lower as _;
use parking_lot::Mutex;

pub use effect::{Effect, EntryName, Fate, InodeKey, SECTOR_BYTES};
use faults::Call;
pub use faults::{Calls, Fault, Harm};
pub use refusals::{Refusals, RefusedCalls};
use state::{Inode, ROOT, State};

/// `EIO`: what every call answers when the power is off.
const EIO: i32 = 5;
/// `ENOSPC`: what an inode answers that keeps no more extended attributes.
const ENOSPC: i32 = 28;
/// Before this moment there are no times in the simulation, so that a time left by
/// the filesystem itself cannot be mistaken for one that a test has set.
const CLOCK_START_SECONDS: i64 = 4_000_000_000;

/// First inode number given out.
const FIRST_NUMBER: u64 = 11;

/// Called after each mutating call with the number of calls so far.
pub type Hook = Box<dyn FnMut(u64, &CrashLower) + Send>;

/// Called before each call; returns whether the calling process still runs.
pub type OwnerLives = Box<dyn FnMut() -> bool + Send>;

/// The store's directories for objects under way.
pub const OWN_DIRECTORIES: [&str; 3] = ["stage", "limbo", "lost"];

/// What lies in the store's directories for objects under way, which must be empty at rest.
///
/// # Errors
/// They cannot be read.
pub fn leftovers(lower: &CrashLower) -> io::Result<Vec<String>> {
    let own = lower.open(&lower.root()?, b".mobifs", false)?;
    let mut found = Vec::new();
    for name in OWN_DIRECTORIES {
        let directory = lower.open(&own, name.as_bytes(), false)?;
        let entries = lower.list(&directory)?.into_iter();
        found.extend(entries.map(|entry| format!("{name}/{}", entry.name.escape_ascii())));
    }
    Ok(found)
}

/// An open object of a [`CrashLower`].
#[derive(Debug)]
pub struct CrashHandle {
    key: InodeKey,
    /// Shared by all handles of the inode: it lives while one is left.
    _open: Arc<()>,
    /// Shared by all handles: so many are open.
    _counted: Arc<()>,
}

/// A simulated filesystem; see the [module](self). Cloning gives another reference
/// to the same one.
#[derive(Clone)]
pub struct CrashLower(Arc<Shared>);

struct Shared {
    filesystem: Mutex<Filesystem>,
    hook: Mutex<Option<Hook>>,
}

struct Filesystem {
    live: State,
    durable: State,
    /// Oldest first.
    pending: Vec<Effect>,
    next_key: InodeKey,
    next_number: u64,
    /// Numbers to be given out again, with the inode that had them since the last
    /// crash.
    free_numbers: BTreeMap<u64, Option<InodeKey>>,
    open: HashMap<InodeKey, Arc<()>>,
    /// Every handle has one.
    handles: Arc<()>,
    /// How many handles may be open.
    handles_max: usize,
    /// Inodes without a link that may still be open.
    unlinked: Vec<InodeKey>,
    operations: u64,
    cut_after: u64,
    dead: bool,
    owner_lives: Option<OwnerLives>,
    /// A journal write was issued and is not durable yet.
    journal_write_pending: bool,
    /// How often the journal was flushed.
    journal_flushes: u64,
    /// What `device_identity` answers.
    device: Option<String>,
    /// Mutating calls that fail, by number.
    refused_operations: BTreeMap<u64, i32>,
    faults: faults::Faults,
    /// Writes do only their first half.
    writes_half: bool,
    /// Syncs give up content instead of making it durable.
    gives_up: bool,
    /// Syncs have given up content: syncing alone does not make the live state durable.
    has_given_up: bool,
    /// What `moves_content` answers.
    moves_content: bool,
    /// How often content was moved.
    moves: u64,
    /// Files that have moved and were not synced since.
    moving: BTreeMap<InodeKey, moved::Moving>,
    space: SpaceInfo,
    capabilities: Capabilities,
    refusals: Refusals,
    /// How often everything in it was copied to another filesystem; when a copy was made is
    /// when its inodes were.
    copies: i64,
}

impl fmt::Debug for CrashLower {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let filesystem = self.0.filesystem.lock();
        f.debug_struct("CrashLower")
            .field("operations", &filesystem.operations)
            .field("pending", &filesystem.pending.len())
            .finish_non_exhaustive()
    }
}

impl Default for CrashLower {
    fn default() -> Self {
        Self::new()
    }
}

impl CrashLower {
    /// An empty filesystem: a root directory, durable.
    pub fn new() -> Self {
        let mut root = Inode::new(
            2,
            FileKind::Directory,
            Timestamp::new(CLOCK_START_SECONDS, 0),
        );
        root.mode = 0o755;
        root.links = 1;
        let mut state = State::default();
        state.inodes.insert(ROOT, Arc::new(root));
        Self::from_state(state, ROOT + 1)
    }

    /// A filesystem at rest; all numbers that no inode has may be given out.
    fn from_state(state: State, next_key: InodeKey) -> Self {
        let used: BTreeSet<u64> = state.inodes.values().map(|inode| inode.number).collect();
        let next_number = used.last().map_or(0, |&last| last + 1).max(FIRST_NUMBER);
        let free_numbers = (FIRST_NUMBER..next_number)
            .filter(|number| !used.contains(number))
            .map(|number| (number, None))
            .collect();
        let free = 1 << 40;
        let filesystem = Filesystem {
            durable: state.clone(),
            live: state,
            pending: Vec::new(),
            next_key,
            next_number,
            free_numbers,
            open: HashMap::new(),
            handles: Arc::default(),
            handles_max: usize::MAX,
            unlinked: Vec::new(),
            operations: 0,
            cut_after: u64::MAX,
            dead: false,
            owner_lives: None,
            journal_write_pending: false,
            journal_flushes: 0,
            device: None,
            refused_operations: BTreeMap::new(),
            faults: faults::Faults::default(),
            writes_half: false,
            gives_up: false,
            has_given_up: false,
            moves_content: true,
            moves: 0,
            moving: BTreeMap::new(),
            space: SpaceInfo {
                block_bytes: 4096,
                total_bytes: free,
                free_bytes: free,
                available_bytes: free,
                metadata_bytes: None,
                total_inodes: 1 << 20,
                free_inodes: 1 << 20,
            },
            capabilities: mobifs_store::MEMORY_CAPABILITIES,
            refusals: Refusals::default(),
            copies: 0,
        };
        Self(Arc::new(Shared {
            filesystem: Mutex::new(filesystem),
            hook: Mutex::new(None),
        }))
    }

    /// Mutating calls so far. A durable journal write counts twice: when it is issued
    /// (its sectors may land from then on) and when it is done.
    pub fn operations(&self) -> u64 {
        self.0.filesystem.lock().operations
    }

    /// Number of effects that a crash now would decide about.
    pub fn pending_effects(&self) -> usize {
        self.0.filesystem.lock().pending.len()
    }

    /// Whether a journal write was issued and is not durable yet: the moment in which
    /// it can tear.
    pub fn is_writing_journal(&self) -> bool {
        self.0.filesystem.lock().journal_write_pending
    }

    /// How often the journal was flushed so far.
    pub fn journal_flushes(&self) -> u64 {
        self.0.filesystem.lock().journal_flushes
    }

    /// What `device_identity` answers from now on.
    pub fn set_device(&self, device: Option<&str>) {
        self.0.filesystem.lock().device = device.map(ToOwned::to_owned);
    }

    /// Power fails after the `count`th mutating call: all later calls fail.
    pub fn cut_after(&self, count: u64) {
        self.0.filesystem.lock().cut_after = count;
    }

    /// Once `owner_lives` returns false, every call fails and does nothing.
    pub fn set_owner_lives(&self, owner_lives: OwnerLives) {
        self.0.filesystem.lock().owner_lives = Some(owner_lives);
    }

    /// What `moves_content` answers from now on.
    pub fn set_moves_content(&self, moves: bool) {
        self.0.filesystem.lock().moves_content = moves;
    }

    /// How often content has moved so far.
    pub fn moves(&self) -> u64 {
        self.0.filesystem.lock().moves
    }

    /// What `space` answers from now on.
    pub fn set_space(&self, space: SpaceInfo) {
        self.0.filesystem.lock().space = space;
    }

    /// What `capabilities` answers from now on.
    pub fn set_capabilities(&self, capabilities: Capabilities) {
        self.0.filesystem.lock().capabilities = capabilities;
    }

    /// From now on calls that need one more descriptor than this fail with `EMFILE`, although
    /// `handles_max` does not report it.
    pub fn limit_handles(&self, count_max: usize) {
        self.0.filesystem.lock().handles_max = count_max;
    }

    /// Has `hook` called after each mutating call, without any lock held. Calls made
    /// by the hook itself do not call it again.
    pub fn set_hook(&self, hook: Hook) {
        *self.0.hook.lock() = Some(hook);
    }

    /// Ends [`CrashLower::set_hook`]. Not from within the hook.
    pub fn clear_hook(&self) {
        *self.0.hook.lock() = None;
    }

    /// A counted call: fails if the power is off or a fault is planned, runs `call`,
    /// then the hook.
    fn mutate<T>(
        &self,
        kind: Call,
        call: impl FnOnce(&mut Filesystem) -> io::Result<T>,
    ) -> io::Result<T> {
        let (result, operation) = {
            let mut filesystem = self.0.filesystem.lock();
            filesystem.check_owner()?;
            filesystem.check_power()?;
            filesystem.operations += 1;
            let operation = filesystem.operations;
            let refused = filesystem.refused_operations.remove(&operation);
            let fault = filesystem.faults.next(kind);
            let result = match (refused, fault) {
                (Some(errno), _) => Err(io::Error::from_raw_os_error(errno)),
                (None, Some((errno, harm))) => {
                    faults::fail(&mut filesystem, (kind, errno, harm), call)
                }
                (None, None) => call(&mut filesystem),
            };
            (result, operation)
        };
        let hook = self.0.hook.lock().take();
        if let Some(mut hook) = hook {
            hook(operation, self);
            *self.0.hook.lock() = Some(hook);
        }
        result
    }

    /// A call that changes nothing.
    fn look<T>(&self, call: impl FnOnce(&mut Filesystem) -> io::Result<T>) -> io::Result<T> {
        let mut filesystem = self.0.filesystem.lock();
        filesystem.check_owner()?;
        filesystem.check_alive()?;
        match filesystem.faults.next(Call::Look) {
            Some((errno, _)) => Err(io::Error::from_raw_os_error(errno)),
            None => call(&mut filesystem),
        }
    }
}

impl Filesystem {
    fn check_power(&mut self) -> io::Result<()> {
        self.dead |= self.operations >= self.cut_after;
        self.check_alive()
    }

    /// A killed process changes nothing; no caller gets the results of its calls.
    fn check_owner(&mut self) -> io::Result<()> {
        if self.owner_lives.as_mut().is_none_or(|lives| lives()) {
            Ok(())
        } else {
            Err(io::Error::from_raw_os_error(EIO))
        }
    }

    /// Reads work until the first mutation after the cut was refused: before that the caller cannot
    /// know that the power is off.
    fn check_alive(&self) -> io::Result<()> {
        if self.dead {
            Err(io::Error::from_raw_os_error(EIO))
        } else {
            Ok(())
        }
    }

    fn now(&self) -> Timestamp {
        Timestamp::new(CLOCK_START_SECONDS + self.operations.cast_signed(), 0)
    }

    /// Has an effect on the live state, and perhaps on the medium.
    fn record(&mut self, effect: Effect) {
        self.live.apply(&effect);
        self.pending.push(effect);
    }
}
