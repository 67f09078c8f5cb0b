//! Control groups that a daemon keeps standing still for a moment, noted where whoever finds them
//! later can let them go on.
//!
//! The note `standstill-MAJOR:MINOR` lies beside the registrations. Its first line is the moment, in
//! milliseconds of `CLOCK_BOOTTIME`, by which the daemon lets them go on; each other line is the
//! directory of a group.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::time::ClockId;

use crate::clock;
use crate::directory::Directory;
use crate::superblock::Device;

const PREFIX: &str = "standstill-";
/// A daemon that lives has ended it so long after its moment, in milliseconds.
const GRACE_MS: u64 = 2_000;

/// The control of a group that says whether it stands still.
const FREEZE: &str = "cgroup.freeze";

/// What stands still, and until when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standstill {
    /// The moment in milliseconds since the machine was started.
    pub until_ms: u64,
    /// The groups.
    pub groups: Vec<PathBuf>,
}

impl Standstill {
    /// A standstill of these groups, for `limit` from now on.
    pub fn begin(groups: Vec<PathBuf>, limit: Duration) -> Self {
        let limit_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        Self {
            until_ms: now_ms().saturating_add(limit_ms),
            groups,
        }
    }

    /// How long it lasts at the most.
    pub fn left(&self) -> Duration {
        Duration::from_millis(self.until_ms.saturating_sub(now_ms()))
    }

    /// Where the note for a filesystem is.
    pub fn path(directory: &Directory, device: Device) -> PathBuf {
        directory.path().join(format!("{PREFIX}{device}"))
    }

    /// Writes the note.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn note(&self, path: &Path) -> io::Result<()> {
        let mut text = self.until_ms.to_string().into_bytes();
        for group in &self.groups {
            text.push(b'\n');
            text.extend_from_slice(group.as_os_str().as_bytes());
        }
        let new = path.with_extension("new");
        fs::write(&new, text)?;
        fs::rename(&new, path)
    }

    /// Reads a note; `None` if there is none.
    pub fn read(path: &Path) -> Option<Self> {
        let text = fs::read(path).ok()?;
        let mut lines = text.split(|&byte| byte == b'\n');
        let until = std::str::from_utf8(lines.next()?).ok()?;
        let groups = lines.map(|line| PathBuf::from(OsString::from_vec(line.to_vec())));
        Some(Self {
            until_ms: until.parse().ok()?,
            groups: groups.collect(),
        })
    }

    /// Lets the groups go on. One that is gone has nothing in it.
    pub fn end(&self) {
        for group in &self.groups {
            let _gone = set_frozen(group, false);
        }
    }

    /// Ends what a note says, and removes the note; whether there was one that could be removed.
    pub fn end_noted(path: &Path) -> bool {
        let Some(standstill) = Self::read(path) else {
            return false;
        };
        standstill.end();
        fs::remove_file(path).is_ok()
    }

    /// Waits until a group does not stand still any more, because a process that enters it would.
    /// What a daemon has left that was killed, and whoever was to end it in its place, is ended.
    pub fn wait_for_end(group: &Path) {
        Self::wait_for_end_in(&Directory::from_environment(), group);
    }

    fn wait_for_end_in(directory: &Directory, group: &Path) {
        let note_of_group = || {
            let names = directory.trusted_names(PREFIX);
            let mut notes = names.into_iter().filter_map(|name| {
                let path = directory.path().join(name);
                Some((Self::read(&path)?, path))
            });
            notes.find(|(note, _)| note.groups.iter().any(|noted| noted == group))
        };
        while is_frozen(group) {
            // Another program's, which knows why.
            let Some((note, path)) = note_of_group() else {
                return;
            };
            if now_ms() > note.until_ms.saturating_add(GRACE_MS) {
                note.end();
                let _not_permitted = fs::remove_file(path);
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn now_ms() -> u64 {
    clock::now_ms(ClockId::Boottime)
}

/// Lets a group stand still, or go on.
///
/// # Errors
/// The group is gone, or another user's.
pub fn set_frozen(group: &Path, frozen: bool) -> io::Result<()> {
    fs::write(group.join(FREEZE), if frozen { "1" } else { "0" })
}

/// Whether a group was told to stand still.
pub fn is_frozen(group: &Path) -> bool {
    fs::read(group.join(FREEZE)).is_ok_and(|text| text.starts_with(b"1"))
}

impl Directory {
    /// The files with this prefix that only those can have made who may promise something.
    fn trusted_names(&self, prefix: &str) -> Vec<OsString> {
        let is_trusted = |path: &Path| {
            let about = fs::symlink_metadata(path);
            about
                .is_ok_and(|about| about.is_file() && self.is_of_trusted(about.uid(), about.mode()))
        };
        let about = fs::symlink_metadata(self.path());
        if !about.is_ok_and(|about| self.is_of_trusted(about.uid(), about.mode())) {
            return Vec::new();
        }
        let entries = fs::read_dir(self.path()).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name());
        let named = names.filter(|name| name.as_bytes().starts_with(prefix.as_bytes()));
        named
            .filter(|name| is_trusted(&self.path().join(name)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_says_what_stands_still_and_until_when() {
        let base = tempfile::tempdir().unwrap();
        let directory = Directory::at(base.path()).unwrap();
        let path = Standstill::path(&directory, Device { major: 7, minor: 1 });
        assert_eq!(Standstill::read(&path), None);
        let groups = vec![PathBuf::from("/a/mobifs-one app"), PathBuf::from("/b")];
        let standstill = Standstill::begin(groups, Duration::from_secs(3));
        standstill.note(&path).unwrap();
        assert_eq!(Standstill::read(&path), Some(standstill.clone()));
        assert!(standstill.left() <= Duration::from_secs(3));
        assert!(
            directory.list().unwrap().is_empty(),
            "a note is no registration"
        );
        assert!(Standstill::end_noted(&path));
        assert!(!path.exists() && !Standstill::end_noted(&path));
        fs::write(&path, "soon\n/a").unwrap();
        assert_eq!(Standstill::read(&path), None);
    }

    /// A process that enters a group which was left standing still would never start.
    #[test]
    fn what_was_left_standing_still_goes_on_when_its_time_is_over() {
        let base = tempfile::tempdir().unwrap();
        let directory = Directory::at(base.path()).unwrap();
        let path = Standstill::path(&directory, Device { major: 7, minor: 1 });
        // As the kernel shows a group.
        let group = base.path().join("mobifs-app");
        fs::create_dir(&group).unwrap();
        set_frozen(&group, true).unwrap();
        // Nothing says that a daemon has done it.
        Standstill::wait_for_end_in(&directory, &group);
        assert!(is_frozen(&group));
        let mut standstill = Standstill::begin(vec![group.clone()], Duration::ZERO);
        standstill.until_ms -= GRACE_MS + 1;
        standstill.note(&path).unwrap();
        Standstill::wait_for_end_in(&directory, &group);
        assert!(!is_frozen(&group) && !path.exists());
        // A daemon that lives ends it itself.
        set_frozen(&group, true).unwrap();
        Standstill::begin(vec![group.clone()], Duration::from_secs(60))
            .note(&path)
            .unwrap();
        let daemon = std::thread::spawn({
            let group = group.clone();
            move || set_frozen(&group, false)
        });
        Standstill::wait_for_end_in(&directory, &group);
        daemon.join().unwrap().unwrap();
        assert!(path.exists());
    }
}
