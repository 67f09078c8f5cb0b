//! The files that were opened without `O_SYNC` in place of a program that had asked for it.
//!
//! They are remembered in memory that outlives each of the supervisor's processes, as what the ledger has: the next
//! worker must know them, too. No descriptor is kept, as the filesystem could not be unmounted then.

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use mobifs_steered::Device;
use rustix::io::Errno;
use zerocopy::FromZeros;

use crate::reach::Identity;
use crate::shared_page::SharedPage;

/// How many files are remembered. Of one more the open is the kernel's.
pub(crate) const FILES_MAX: usize = 1024;
/// The longest path that is remembered.
const PATH_BYTES_MAX: usize = 1000;

/// What the supervisor has done to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Nothing: writes return at once.
    Relaxed,
    /// It sets the flag, or has set it, and has not made durable yet what was written before.
    Setting,
    /// The file is synchronous, by the flag that the supervisor has set.
    Ours,
    /// The file is synchronous, by a flag that the supervisor has found.
    Theirs,
}

const FREE: u32 = 0;

impl State {
    const ALL: [Self; 4] = [Self::Relaxed, Self::Setting, Self::Ours, Self::Theirs];

    const fn number(self) -> u32 {
        match self {
            Self::Relaxed => 1,
            Self::Setting => 2,
            Self::Ours => 3,
            Self::Theirs => 4,
        }
    }

    fn of(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.number() == number)
    }

    /// Whether the file may have the flag because the supervisor has set it.
    pub(crate) const fn is_ours(self) -> bool {
        matches!(self, Self::Setting | Self::Ours)
    }
}

#[derive(FromZeros)]
#[repr(C)]
struct Place {
    state: AtomicU32,
    path_bytes: AtomicU32,
    major: AtomicU32,
    minor: AtomicU32,
    noted: AtomicU64,
    identity: [AtomicU64; 3],
    path: [AtomicU8; PATH_BYTES_MAX],
}

/// Zeros are places without files.
#[derive(FromZeros)]
#[repr(C)]
struct Page {
    /// Counts the notes of all files.
    notes: AtomicU64,
    places: [Place; FILES_MAX],
}

/// A file, as it was when it was looked up.
#[derive(Clone, Debug)]
pub(crate) struct Remembered {
    place: usize,
    noted: u64,
    pub(crate) state: State,
    pub(crate) device: Device,
    pub(crate) identity: Identity,
    /// Where it was when it was last seen.
    pub(crate) path: Vec<u8>,
}

/// The shared memory. What is forked has the same. Of the threads of a process, one at a time may use it.
#[derive(Debug)]
pub(crate) struct RelaxedFiles {
    page: SharedPage<Page>,
}

impl RelaxedFiles {
    pub(crate) fn create() -> Result<Self, Errno> {
        let page = SharedPage::create()?;
        Ok(Self { page })
    }

    /// Remembers a file; false where there is no room for it.
    pub(crate) fn note(&self, device: Device, identity: Identity, path: &[u8]) -> bool {
        if path.len() > PATH_BYTES_MAX {
            return false;
        }
        let noted = self.page.notes.fetch_add(1, Ordering::Relaxed);
        if let Some(known) = self.used().find(|place| place.identity() == identity) {
            known.noted.store(noted, Ordering::Relaxed);
            known.set_path(path);
            return true;
        }
        let is_free = |place: &&Place| place.state.load(Ordering::Acquire) == FREE;
        let Some(place) = self.page.places.iter().find(is_free) else {
            return false;
        };
        place.noted.store(noted, Ordering::Relaxed);
        place.major.store(device.major, Ordering::Relaxed);
        place.minor.store(device.minor, Ordering::Relaxed);
        for (word, value) in place.identity.iter().zip(identity.words()) {
            word.store(value, Ordering::Relaxed);
        }
        place.set_path(path);
        // At last: who is killed before has noted nothing.
        let state = State::Relaxed.number();
        place.state.store(state, Ordering::Release);
        true
    }

    /// All files that are remembered.
    pub(crate) fn all(&self) -> Vec<Remembered> {
        let places = self.page.places.iter().enumerate();
        places
            .filter_map(|(at, place)| place.remembered(at))
            .collect()
    }

    /// Whether no file is remembered.
    pub(crate) fn is_empty(&self) -> bool {
        self.used().next().is_none()
    }

    /// Whether a file of this filesystem is remembered.
    pub(crate) fn has_any_of(&self, device: Device) -> bool {
        self.used().any(|place| place.device() == device)
    }

    /// Changes the state of a file; false if it is not remembered any more.
    pub(crate) fn set_state(&self, file: &Remembered, state: State) -> bool {
        let place = self.place_of(file);
        if let Some(place) = place {
            place.state.store(state.number(), Ordering::Release);
        }
        place.is_some()
    }

    /// Changes where a file is.
    pub(crate) fn set_path(&self, file: &Remembered, path: &[u8]) {
        if let Some(place) = self.place_of(file)
            && path.len() <= PATH_BYTES_MAX
        {
            place.set_path(path);
        }
    }

    /// Forgets a file, unless it was noted again since it was looked up.
    pub(crate) fn forget(&self, file: &Remembered) {
        let place = self.place_of(file);
        if let Some(place) = place.filter(|it| it.noted.load(Ordering::Relaxed) == file.noted) {
            place.state.store(FREE, Ordering::Release);
        }
    }

    fn used(&self) -> impl Iterator<Item = &Place> {
        let is_used = |place: &&Place| place.state.load(Ordering::Acquire) != FREE;
        self.page.places.iter().filter(is_used)
    }

    fn place_of(&self, file: &Remembered) -> Option<&Place> {
        let place = self.page.places.get(file.place)?;
        let is_used = place.state.load(Ordering::Acquire) != FREE;
        (is_used && place.identity() == file.identity).then_some(place)
    }
}

impl Place {
    fn identity(&self) -> Identity {
        Identity::from_words(
            self.identity
                .each_ref()
                .map(|it| it.load(Ordering::Relaxed)),
        )
    }

    fn device(&self) -> Device {
        Device {
            major: self.major.load(Ordering::Relaxed),
            minor: self.minor.load(Ordering::Relaxed),
        }
    }

    fn set_path(&self, path: &[u8]) {
        // Who is killed in between leaves a path where no file is, and the file is looked for.
        self.path_bytes.store(0, Ordering::Release);
        for (byte, &value) in self.path.iter().zip(path) {
            byte.store(value, Ordering::Relaxed);
        }
        self.path_bytes.store(path.len() as u32, Ordering::Release);
    }

    fn remembered(&self, at: usize) -> Option<Remembered> {
        let state = State::of(self.state.load(Ordering::Acquire))?;
        let bytes = self.path_bytes.load(Ordering::Acquire) as usize;
        let path = self.path.iter().take(bytes);
        Some(Remembered {
            place: at,
            noted: self.noted.load(Ordering::Relaxed),
            state,
            device: self.device(),
            identity: self.identity(),
            path: path.map(|byte| byte.load(Ordering::Relaxed)).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICE: Device = Device { major: 7, minor: 1 };

    fn identity(number: u64) -> Identity {
        Identity::from_words([1, number, 2])
    }

    #[test]
    fn a_file_is_remembered_once_and_until_it_is_forgotten() {
        let files = RelaxedFiles::create().unwrap();
        assert!(files.is_empty());
        assert!(files.note(DEVICE, identity(1), b"/a"));
        let before = files.all().remove(0);
        assert_eq!(
            (before.state, &before.path[..]),
            (State::Relaxed, &b"/a"[..])
        );
        assert!(files.set_state(&before, State::Ours));
        assert!(files.note(DEVICE, identity(1), b"/b"));
        let [after] = &files.all()[..] else {
            panic!("noted twice");
        };
        assert_eq!((after.state, &after.path[..]), (State::Ours, &b"/b"[..]));
        assert_eq!(after.device, DEVICE);
        // A process has opened it meanwhile.
        files.forget(&before);
        assert!(!files.is_empty());
        files.set_path(after, b"/c");
        assert_eq!(files.all()[0].path, b"/c");
        files.forget(after);
        assert!(files.is_empty());
        assert!(!files.set_state(after, State::Relaxed));
    }

    #[test]
    fn there_is_room_for_so_many_and_paths_of_a_length() {
        let files = RelaxedFiles::create().unwrap();
        for number in 0..FILES_MAX as u64 {
            assert!(files.note(DEVICE, identity(number), b"/a"));
        }
        assert!(!files.note(DEVICE, identity(u64::MAX), b"/a"));
        assert!(files.note(DEVICE, identity(0), &[b'a'; PATH_BYTES_MAX]));
        assert!(!files.note(DEVICE, identity(0), &[b'a'; PATH_BYTES_MAX + 1]));
        assert_eq!(files.all().len(), FILES_MAX);
        files.forget(&files.all()[7]);
        assert!(files.note(DEVICE, identity(u64::MAX), b"/a"));
    }
}
