//! Reaching a file of which no descriptor is kept: by its last path, else by a descriptor of a process.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, StatxFlags, open, openat2, statx};
use rustix::io::Errno;
use rustix::path::Arg;

use crate::target::{Found, Threads};

/// The mode of a link of `/proc/PID/fd` that says that the descriptor is open for writing.
const FOR_WRITING: u16 = 0o200;

/// What tells a file from all others, also from one that gets its number later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Identity {
    device: u64,
    number: u64,
    /// When it was made, in nanoseconds; 0 where the filesystem does not say.
    born: u64,
}

impl Identity {
    pub(crate) fn of(file: impl AsFd) -> Result<Self, Errno> {
        Self::at(file, c"", AtFlags::EMPTY_PATH)
    }

    /// Asks no server: it may be a process that waits for an answer of this one.
    fn at(directory: impl AsFd, path: impl Arg, flags: AtFlags) -> Result<Self, Errno> {
        let asked = StatxFlags::INO | StatxFlags::BTIME;
        let found = statx(directory, path, flags | AtFlags::STATX_DONT_SYNC, asked)?;
        let (major, minor) = (found.stx_dev_major, found.stx_dev_minor);
        let (seconds, nanoseconds) = (found.stx_btime.tv_sec, found.stx_btime.tv_nsec);
        let born = (seconds as u64)
            .wrapping_mul(1_000_000_000)
            .wrapping_add(nanoseconds.into());
        let says_when = found.stx_mask & StatxFlags::BTIME.bits() != 0;
        Ok(Self {
            device: u64::from(major) << 32 | u64::from(minor),
            number: found.stx_ino,
            born: if says_when { born } else { 0 },
        })
    }

    pub(crate) const fn words(self) -> [u64; 3] {
        [self.device, self.number, self.born]
    }

    pub(crate) const fn from_words([device, number, born]: [u64; 3]) -> Self {
        Self {
            device,
            number,
            born,
        }
    }
}

/// Where a file is, as the kernel names it.
pub(crate) fn path_of(file: impl AsFd) -> Option<Vec<u8>> {
    let link = fs::read_link(own_link(file)).ok()?;
    Some(link.into_os_string().into_vec())
}

/// Opens the file at a path, if it is that one.
pub(crate) fn by_path(path: &[u8], identity: Identity) -> Option<OwnedFd> {
    if !path.starts_with(b"/") {
        return None;
    }
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let seen = openat2(CWD, OsStr::from_bytes(path), flags, Mode::empty(), resolve);
    reopen(&seen.ok()?, identity)
}

/// Opens the file of a link of `/proc/PID/fd`, if it is that one.
fn by_link(link: &str, identity: Identity) -> Option<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    reopen(&open(link, flags, Mode::empty()).ok()?, identity)
}

/// Opens what was only looked up, as is needed to set flags. What else may be there by now is not opened.
fn reopen(seen: &OwnedFd, identity: Identity) -> Option<OwnedFd> {
    if Identity::of(seen) != Ok(identity) {
        return None;
    }
    let link = own_link(seen);
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let reads = open(link.as_str(), flags | OFlags::RDONLY, Mode::empty());
    let opened = reads.or_else(|_| open(link.as_str(), flags | OFlags::WRONLY, Mode::empty()));
    opened.ok()
}

fn own_link(file: impl AsFd) -> String {
    format!("/proc/self/fd/{}", file.as_fd().as_raw_fd())
}

/// A file that a process has open for writing.
pub(crate) struct Held {
    pub(crate) identity: Identity,
    thread: u32,
    number: u32,
    link: String,
}

impl Held {
    /// Opens the file, or takes the process's own descriptor where the file's mode forbids that by now.
    pub(crate) fn open(&self) -> Option<OwnedFd> {
        by_link(&self.link, self.identity).or_else(|| {
            let found = Threads::default().descriptor(self.thread, self.number as RawFd);
            let Some(Found::Same(file)) = found else {
                return None;
            };
            (Identity::of(&file) == Ok(self.identity)).then_some(file)
        })
    }
}

/// Which of some files processes have open for writing.
pub(crate) struct Search {
    wanted: HashSet<Identity>,
    found: Vec<Held>,
    /// A process under a filter hides its descriptors from its user.
    is_uncertain: bool,
}

impl Search {
    /// Looks at all processes that this one can see.
    pub(crate) fn of(wanted: HashSet<Identity>) -> Self {
        let mut search = Self {
            wanted,
            found: Vec::new(),
            is_uncertain: false,
        };
        // A descriptor may go to a process that was looked at already.
        for _ in 0..2 {
            search.look_through();
        }
        search
    }

    /// The process that has the file open.
    pub(crate) fn holder(&self, identity: Identity) -> Option<&Held> {
        self.found.iter().find(|held| held.identity == identity)
    }

    /// Whether the file is certainly open in none.
    pub(crate) fn is_closed(&self, identity: Identity) -> bool {
        !self.is_uncertain && self.wanted.contains(&identity)
    }

    fn look_through(&mut self) {
        let own = std::process::id();
        let others = numbers("/proc").filter(|&process| process != own);
        // This one first: what it has opened for a program is there until the program has it.
        for process in std::iter::once(own).chain(others) {
            if self.wanted.is_empty() {
                return;
            }
            let place = format!("/proc/{process}");
            if self.look_at(process, &format!("{place}/fd")) == 0 {
                // A first thread that has ended has none any more.
                let threads = numbers(&format!("{place}/task"));
                for thread in threads.filter(|&thread| thread != process) {
                    self.look_at(thread, &format!("{place}/task/{thread}/fd"));
                }
            }
        }
    }

    /// Looks at the descriptors in a directory, and says how many there are at least.
    fn look_at(&mut self, thread: u32, place: &str) -> usize {
        if let Err(error) = fs::read_dir(place)
            && error.kind() == std::io::ErrorKind::PermissionDenied
        {
            self.is_uncertain |= is_filtered(thread);
            return 1;
        }
        let mut count = 0;
        for number in numbers(place) {
            count += 1;
            let link = format!("{place}/{number}");
            let flags = AtFlags::SYMLINK_NOFOLLOW;
            let about = statx(CWD, link.as_str(), flags, StatxFlags::MODE);
            if !about.is_ok_and(|about| about.stx_mode & FOR_WRITING != 0) {
                continue;
            }
            if let Ok(identity) = Identity::at(CWD, link.as_str(), AtFlags::empty())
                && self.wanted.remove(&identity)
            {
                self.found.push(Held {
                    identity,
                    thread,
                    number,
                    link,
                });
            }
        }
        count
    }
}

/// Whether a thread runs under a filter of system calls, as all do that this supervisor answers.
fn is_filtered(thread: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{thread}/status")).unwrap_or_default();
    let filtered = |line: &str| line.strip_prefix("Seccomp:").map(str::trim) == Some("2");
    status.lines().any(filtered)
}

/// The names in a directory that are numbers.
fn numbers(directory: &str) -> impl Iterator<Item = u32> + use<> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn a_file_is_reached_by_its_path_and_by_who_has_it_open() {
        let base = tempfile::tempdir().unwrap();
        let (path, moved) = (base.path().join("file"), base.path().join("moved"));
        let file = File::create(&path).unwrap();
        let identity = Identity::of(&file).unwrap();
        let bytes = path.as_os_str().as_bytes();
        assert_eq!(path_of(&file).unwrap(), bytes);
        assert!(by_path(bytes, identity).is_some());
        fs::rename(&path, &moved).unwrap();
        assert!(by_path(bytes, identity).is_none());
        fs::write(&path, "another").unwrap();
        assert!(by_path(bytes, identity).is_none());
        std::os::unix::fs::symlink(&moved, base.path().join("link")).unwrap();
        let link = base.path().join("link");
        assert!(by_path(link.as_os_str().as_bytes(), identity).is_none());
        let search = Search::of([identity].into());
        assert!(!search.is_closed(identity));
        let opened = search.holder(identity).unwrap().open().unwrap();
        assert_eq!(Identity::of(&opened), Ok(identity));
        drop(file);
        let search = Search::of([identity].into());
        assert!(search.holder(identity).is_none(), "it is open for reading");
        assert!(search.is_closed(identity) || search.is_uncertain);
    }
}
