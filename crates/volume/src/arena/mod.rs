//! The arena: what of a mount outlives its daemon.
//!
//! A memfd that a supervisor (`mobifs supervise`, systemd) holds too. In it are, as
//! [`records`]: the engine's whole state ([`mobifs_engine::persist`]), what the store knows
//! of objects ([`mobifs_store::RestartSink`]), and for each request under way what was done
//! of it; beside them the content of dirty pages, and the buffers that requests are read
//! into. All changes of one engine operation are one batch, so a daemon that is killed at
//! any instruction leaves the state between two operations.
//!
//! `docs/DESIGN.md` argues why a successor that goes on from there loses nothing and does
//! nothing twice.

mod current;
mod errors;
mod image;
#[cfg(any(test, feature = "kill-points"))]
mod kill;
mod layout;
mod orphaned;
mod progress_log;
mod records;
mod region;
mod requests;
mod saved;
mod slots;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;

use self::layout::{
    MAGIC, MAGIC_AT, REQUEST_SLOTS, SESSION_AT, SESSION_BYTES_MAX, SESSION_TEXTS_AT, VERSION,
    VERSION_AT,
};
use self::records::{Records, layout_of};
use self::region::Region;
use self::requests::Taken;

pub use self::current::InFlightRequest;
pub(crate) use self::current::{executed, reference};
pub use self::errors::ArenaError;
pub(crate) use self::orphaned::OrphanedArena;
pub use self::orphaned::{Entered, enter};
pub(crate) use self::progress_log::ProgressLog;
pub use self::requests::RequestSlot;
pub(crate) use self::saved::SavedMount;

/// The sizes that are tried, the largest first: only what is used takes memory.
const SIZES_BYTES: [u64; 4] = [1 << 36, 1 << 34, 1 << 32, 1 << 30];

/// Memory of a mount that outlives its daemon. Clones are the same arena.
#[derive(Clone, Debug)]
pub struct Arena {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    region: Arc<Region>,
    records: Mutex<Records>,
    /// Places of page content that are not used any more.
    released: Released,
    taken: Arc<Taken>,
    /// Serialises changes of the session's text.
    session: Mutex<()>,
}

/// Content slots that wait for the next batch: only when it has happened is it certain
/// that no record names them.
#[derive(Debug, Default)]
struct Released(Mutex<Vec<usize>>);

impl Arena {
    /// Request slots that there are.
    pub const REQUEST_SLOTS: usize = REQUEST_SLOTS;

    /// An empty arena.
    ///
    /// # Errors
    /// [`ArenaError::Memory`].
    pub fn create() -> Result<Self, ArenaError> {
        use rustix::process::{Resource, getrlimit};
        let sizes_max = getrlimit(Resource::Fsize).current;
        // Everything else needs addresses as well.
        let addresses_max = getrlimit(Resource::As).current.map(|limit| limit / 4);
        let limit = [sizes_max, addresses_max].into_iter().flatten().min();
        let mut last =
            io::Error::other("the limit of file sizes, or of the address space, is too low");
        for bytes in SIZES_BYTES {
            if limit.is_some_and(|limit| bytes > limit) {
                continue;
            }
            // Addresses of 32 bits have room for less.
            let Ok(bytes) = usize::try_from(bytes) else {
                continue;
            };
            match Region::create(bytes) {
                Ok(region) => return Ok(Self::fresh(region)),
                Err(error) => last = error,
            }
        }
        Err(ArenaError::Memory(last))
    }

    /// An empty arena in the empty file at `path`, which has no more than this process to keep
    /// it: a file of a tmpfs, for one, is memory that outlives the process, but not the machine.
    /// The file grows with what is in it, within the limit of file sizes, and is opened anew for
    /// that.
    ///
    /// # Errors
    /// [`ArenaError::Memory`], also if its filesystem, or the limit, has no room to begin with.
    pub fn create_in(file: &File, path: PathBuf) -> Result<Self, ArenaError> {
        Ok(Self::fresh(Region::create_in(file, path)?))
    }

    fn fresh(region: Region) -> Self {
        region.store(VERSION_AT, VERSION);
        region.store(MAGIC_AT, MAGIC);
        let region = Arc::new(region);
        Self::over(Arc::clone(&region), Records::new(region))
    }

    /// The arena of a killed process in the file at `path`.
    ///
    /// # Errors
    /// As [`Arena::attach`].
    pub fn attach_file(file: &File, path: PathBuf) -> Result<Self, ArenaError> {
        Self::over_left(Region::of_file(file, path)?)
    }

    /// The arena of a killed daemon. A batch that it had published is carried
    /// out.
    ///
    /// # Errors
    /// [`ArenaError`].
    pub fn attach(memory: OwnedFd) -> Result<Self, ArenaError> {
        Self::over_left(Region::attach(memory)?)
    }

    fn over_left(region: Region) -> Result<Self, ArenaError> {
        let region = Arc::new(region);
        let is_arena = region.mapped_bytes() >= layout_of(&region).chunks_at
            && region.load(MAGIC_AT) == MAGIC
            && region.load(VERSION_AT) == VERSION;
        if !is_arena {
            return Err(ArenaError::Foreign);
        }
        let records = Records::attach(Arc::clone(&region))?;
        Ok(Self::over(region, records))
    }

    fn over(region: Arc<Region>, records: Records) -> Self {
        Self {
            shared: Arc::new(Shared {
                region,
                records: Mutex::new(records),
                released: Released::default(),
                taken: Arc::default(),
                session: Mutex::default(),
            }),
        }
    }

    /// For handing it over.
    ///
    /// # Panics
    /// If it lies in a file: that has a name, and no descriptor is kept.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.shared.region.descriptor()
    }

    /// Keeps what the session with the kernel needs to know again: all of it or, after a
    /// kill, what was kept before.
    ///
    /// # Errors
    /// [`ArenaError::TooLong`].
    pub fn set_session(&self, text: &[u8]) -> Result<(), ArenaError> {
        if text.len() > SESSION_BYTES_MAX {
            return Err(ArenaError::TooLong);
        }
        let _alone = self.shared.session.lock();
        let region = &self.shared.region;
        let other = usize::from(region.load(SESSION_AT) == 1);
        let offset = SESSION_TEXTS_AT[other];
        region.store(offset, text.len() as u64);
        // SAFETY: the text that does not count is not read, and this is its only writer.
        unsafe { region.write(offset + 8, text) };
        region.store(SESSION_AT, other as u64 + 1);
        Ok(())
    }

    /// What was kept.
    pub fn session(&self) -> Option<Vec<u8>> {
        let _alone = self.shared.session.lock();
        let region = &self.shared.region;
        let which = (region.load(SESSION_AT) as usize).checked_sub(1)?;
        let offset = *SESSION_TEXTS_AT.get(which)?;
        let length = (region.load(offset) as usize).min(SESSION_BYTES_MAX);
        // SAFETY: it is written only by the holder of the lock.
        Some(unsafe { region.bytes(offset + 8, length) }.to_vec())
    }

    /// What was kept in the arena in a file, which another process may be using: nothing is changed.
    ///
    /// # Errors
    /// [`ArenaError::Foreign`], [`ArenaError::Memory`].
    pub fn session_in(file: &File) -> Result<Option<Vec<u8>>, ArenaError> {
        let number = |at: usize| {
            let mut bytes = [0; 8];
            file.read_exact_at(&mut bytes, at as u64)?;
            Ok::<_, io::Error>(u64::from_ne_bytes(bytes))
        };
        if number(MAGIC_AT)? != MAGIC || number(VERSION_AT)? != VERSION {
            return Err(ArenaError::Foreign);
        }
        let which = (number(SESSION_AT)? as usize).checked_sub(1);
        let Some(&offset) = which.and_then(|which| SESSION_TEXTS_AT.get(which)) else {
            return Ok(None);
        };
        let mut text = vec![0; (number(offset)? as usize).min(SESSION_BYTES_MAX)];
        file.read_exact_at(&mut text, offset as u64 + 8)?;
        Ok(Some(text))
    }

    /// Slots with a request that a killed daemon had read and not answered.
    pub fn in_flight_slots(&self) -> Vec<usize> {
        let region = &self.shared.region;
        (0..layout_of(region).request_slots)
            .filter(|&number| requests::in_flight_bytes(region, number).is_some())
            .collect()
    }

    /// A slot for requests; none if there is none of this number, or it is in use.
    pub fn request_slot(&self, number: usize) -> Option<RequestSlot> {
        let shared = &self.shared;
        let is_there = number < layout_of(&shared.region).request_slots;
        is_there.then_some(())?;
        shared.taken.take(number).then(|| {
            let region = Arc::clone(&shared.region);
            RequestSlot::new(region, Arc::clone(&shared.taken), number)
        })
    }

    /// Records that a process that takes over has read the arena: see [`enter`].
    pub fn is_entered(&self) {
        self.shared.region.store(layout::ENTRIES_AT, 0);
    }

    /// Whether everything could be kept so far: if not, a kill of the daemon loses what
    /// is not committed.
    pub fn is_complete(&self) -> bool {
        self.shared.records.lock().is_complete()
    }

    /// Memory in use, without the buffers for requests.
    pub fn used_bytes(&self) -> u64 {
        self.shared.records.lock().used_bytes()
    }

    /// For tests: the process dies after so many more writes to the arena, and other instants
    /// that it [passes](Arena::passes_instant).
    #[cfg(any(test, feature = "kill-points"))]
    pub fn kill_after(&self, writes: u64) {
        self.shared.region.kill().after(writes);
    }

    /// For tests: whether it has died.
    #[cfg(any(test, feature = "kill-points"))]
    pub fn is_killed(&self) -> bool {
        self.shared.region.kill().is_dead()
    }

    /// For tests: another instant in which the process may die; false if it has died.
    #[cfg(any(test, feature = "kill-points"))]
    pub fn passes_instant(&self) -> bool {
        self.shared.region.kill().lives()
    }
}
