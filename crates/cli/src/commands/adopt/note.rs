//! What is adopted, in files of this user's: written before anything is changed, removed when nothing
//! is left to be undone.
//!
//! They lie in the user's directory of configuration, which is there before other filesystems are
//! mounted and is never adopted itself. A note has the direction and no progress: how far an adoption
//! has come is seen by its directories ([`super::place`]).

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mobifs_daemon::{Code, Failure};
use mobifs_host::DirectoryLock;
use parking_lot::Mutex;
use rustix::fs::{OFlags, Timespec, Timestamps};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::boot::Boot;
use super::directory::Directory;
use super::durable::{cannot, make_directories, remove_file, remove_unfinished, replace_file};
use super::place::Place;
use crate::commands::tell;

const SCHEMA: u32 = 1;
/// Escaped names are cut off here, so that names of units fit.
const NAME_BYTES_MAX: usize = 200;
/// So often is a directory made that another command removes at the same time.
const ATTEMPTS: u32 = 1000;
/// No note of a directory that can be adopted is longer.
const NOTE_BYTES_MAX: u64 = 64 << 10;

/// Where an adoption goes, whatever ends it on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Direction {
    /// The directory is behind MobiFS, or is on the way there.
    Adopt,
    /// The directory is on the way back.
    Unadopt,
}

/// One adopted directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Note {
    schema: u32,
    directory: PathBuf,
    direction: Direction,
    boot: Boot,
    options: String,
    /// The number of the directory that has the files, under whichever name: it shows an empty directory that is
    /// left of an adoption whose store is missing. Notes of the first versions have none.
    #[serde(default)]
    files_inode: Option<u64>,
    /// The times of that directory before names in it are changed, until they are its own again: whoever goes on with
    /// what was cut short finds others there.
    #[serde(default)]
    times: Option<NotedTimes>,
}

/// Times of a directory: seconds and nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct NotedTimes {
    access: (i64, i64),
    modification: (i64, i64),
}

impl Note {
    /// One that goes towards the mount.
    pub(super) fn new(place: &Place, boot: Boot, options: &str) -> Self {
        let files = if place.is_exchanged() {
            place.store()
        } else {
            place.directory()
        };
        Self {
            files_inode: fs::symlink_metadata(files).ok().map(|about| about.ino()),
            schema: SCHEMA,
            directory: place.directory().to_owned(),
            direction: Direction::Adopt,
            boot,
            options: options.to_owned(),
            times: None,
        }
        .with_times(place)
    }

    /// This note with the times of a directory that is not changed yet; the same one where they are known, or where the
    /// files are in the store.
    pub(super) fn with_times(self, place: &Place) -> Self {
        if self.times.is_some() || place.is_exchanged() {
            return self;
        }
        let opened = Directory::open(place.directory());
        let times = opened.and_then(|directory| directory.times());
        let noted = |time: Timespec| (time.tv_sec, time.tv_nsec as _);
        let times = times.ok().map(|times| NotedTimes {
            access: noted(times.last_access),
            modification: noted(times.last_modification),
        });
        Self { times, ..self }
    }

    /// This note after a time in which programs changed the directory.
    pub(super) fn without_times(self) -> Self {
        Self {
            times: None,
            ..self
        }
    }

    /// The times that the directory with the files had before the commands changed it.
    pub(super) fn times(&self) -> Option<Timestamps> {
        let time = |(seconds, nanoseconds): (i64, i64)| Timespec {
            tv_sec: seconds,
            tv_nsec: nanoseconds as _,
        };
        self.times.map(|times| Timestamps {
            last_access: time(times.access),
            last_modification: time(times.modification),
        })
    }

    /// The adopted directory.
    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Number of the directory that has the files.
    pub(super) const fn files_inode(&self) -> Option<u64> {
        self.files_inode
    }

    /// Where it goes.
    pub(super) const fn direction(&self) -> Direction {
        self.direction
    }

    /// What mounts it when the machine starts.
    pub(super) const fn boot(&self) -> Boot {
        self.boot
    }

    /// The mount options, as `-o` takes them.
    pub(super) fn options(&self) -> &str {
        &self.options
    }

    /// This note with another direction.
    pub(super) fn towards(self, direction: Direction) -> Self {
        Self { direction, ..self }
    }
}

/// A note that cannot be read or understood.
#[derive(Debug)]
pub(super) struct DamagedNote {
    /// The directory that it is about, as far as its name says so.
    pub(super) directory: Option<PathBuf>,
    /// What is wrong, with its file.
    pub(super) failure: Failure,
}

/// All notes of this user.
#[derive(Clone, Debug)]
pub(super) struct Notes {
    directory: PathBuf,
    /// Damaged notes that were mentioned already.
    mentioned: Arc<Mutex<BTreeSet<PathBuf>>>,
}

impl Notes {
    /// In the directory of configuration of the user who runs this; `given` instead, in tests.
    ///
    /// # Errors
    /// The user has no home.
    pub(super) fn of_user(given: Option<&Path>) -> Result<Self, Failure> {
        let directory = match given {
            Some(directory) => std::path::absolute(directory).map_err(cannot("use", directory))?,
            None => configuration()?.join("mobifs/adopted"),
        };
        Ok(Self {
            directory,
            mentioned: Arc::default(),
        })
    }

    /// Where they lie.
    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Keeps other adoptions of this user waiting until it is dropped.
    ///
    /// # Errors
    /// The directory cannot be made.
    pub(super) fn lock(&self) -> Result<DirectoryLock, Failure> {
        loop {
            self.make_directory()?;
            let lock = DirectoryLock::acquire(&self.directory);
            match lock {
                // The one who had it before may have removed the last note, and the directory.
                Ok(lock) if lock.is_of(&self.directory) => {
                    remove_unfinished(&self.directory).map_err(cannot("list", &self.directory))?;
                    return Ok(lock);
                }
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(cannot("lock", &self.directory)(error));
                }
                _ => {}
            }
        }
    }

    /// Makes the directory, which whoever removes the last note removes with it, as often as that is in between.
    fn make_directory(&self) -> Result<(), Failure> {
        let mode = if rustix::process::geteuid().is_root() {
            0o755
        } else {
            0o700
        };
        let make = || make_directories(&self.directory, mode);
        while_missing(make, || Ok(())).map_err(cannot("make", &self.directory))
    }

    /// The lock, if no other adoption of this user has it and there is a note.
    pub(super) fn try_lock(&self) -> Option<DirectoryLock> {
        DirectoryLock::try_acquire(&self.directory).ok().flatten()
    }

    /// The note of a place.
    ///
    /// # Errors
    /// It cannot be read.
    pub(super) fn find(&self, place: &Place) -> Result<Option<Note>, Failure> {
        read(&self.path_of(place.directory()))
    }

    /// All of them, in the order of their directories, but for those that cannot be understood: these are mentioned,
    /// and concern no directories but their own.
    ///
    /// # Errors
    /// The directory of notes cannot be listed.
    pub(super) fn all(&self) -> Result<Vec<Note>, Failure> {
        self.scan().map(|(notes, _)| notes)
    }

    /// Those that cannot be understood.
    ///
    /// # Errors
    /// As [`Notes::all`].
    pub(super) fn damaged(&self) -> Result<Vec<DamagedNote>, Failure> {
        self.scan().map(|(_, damaged)| damaged)
    }

    fn scan(&self) -> Result<(Vec<Note>, Vec<DamagedNote>), Failure> {
        let entries = match fs::read_dir(&self.directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok((Vec::new(), Vec::new()));
            }
            other => other.map_err(cannot("list", &self.directory))?,
        };
        let (mut notes, mut damaged) = (Vec::new(), Vec::new());
        for entry in entries {
            let path = entry.map_err(cannot("list", &self.directory))?.path();
            let is_note = path
                .extension()
                .is_some_and(|extension| extension == "json");
            if !is_note {
                continue;
            }
            match read(&path) {
                // It may have been removed meanwhile.
                Ok(note) => notes.extend(note),
                Err(failure) => {
                    if self.mentioned.lock().insert(path.clone()) {
                        tell(&format!("warning: {}", failure.message));
                    }
                    let name = path.file_stem().and_then(OsStr::to_str);
                    damaged.push(DamagedNote {
                        directory: name.and_then(unescaped),
                        failure,
                    });
                }
            }
        }
        notes.sort_by(|one, other| one.directory.cmp(&other.directory));
        damaged.sort_by(|one, other| one.directory.cmp(&other.directory));
        Ok((notes, damaged))
    }

    /// Removes what a command that was cut short has left, if no other command is at it.
    pub(super) fn tidy(&self) {
        if let Some(_lock) = self.try_lock()
            && remove_unfinished(&self.directory).is_ok()
        {
            self.remove_if_empty();
        }
    }

    /// Writes a note; it is on the disk when this returns.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn save(&self, note: &Note) -> Result<(), Failure> {
        let path = self.path_of(&note.directory);
        let text = serde_json::to_string_pretty(note).map_err(cannot("write", &path))?;
        let write = || replace_file(&path, &(text.clone() + "\n"));
        while_missing(write, || self.make_directory()).map_err(cannot("write", &path))
    }

    /// Removes a note, and the directory of notes with the last one.
    ///
    /// # Errors
    /// It cannot be removed.
    pub(super) fn remove(&self, place: &Place) -> Result<(), Failure> {
        let path = self.path_of(place.directory());
        remove_file(&path).map_err(cannot("remove", &path))?;
        self.remove_if_empty();
        Ok(())
    }

    /// Removes what is there of a note that was not written, unless another command is at the notes.
    ///
    /// # Errors
    /// As [`Notes::remove`].
    pub(super) fn remove_leavings(&self, place: &Place) -> Result<(), Failure> {
        match self.try_lock() {
            Some(_lock) => self.remove(place),
            None => Ok(()),
        }
    }

    fn remove_if_empty(&self) {
        let mut directory = Some(self.directory.as_path());
        for _ in ["adopted", "mobifs"] {
            // Others may have something there.
            directory = directory
                .filter(|directory| fs::remove_dir(directory).is_ok())
                .and_then(Path::parent);
        }
    }

    fn path_of(&self, directory: &Path) -> PathBuf {
        self.directory.join(format!("{}.json", escaped(directory)))
    }
}

/// Does something again as long as it fails because a directory is missing, which `mend` makes.
fn while_missing(
    mut work: impl FnMut() -> io::Result<()>,
    mend: impl Fn() -> Result<(), Failure>,
) -> io::Result<()> {
    for _ in 1..ATTEMPTS {
        match work() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                mend().map_err(|error: Failure| io::Error::other(error.message))?;
            }
            other => return other,
        }
    }
    work()
}

fn read(path: &Path) -> Result<Option<Note>, Failure> {
    Ok(read_of_user(path)?.map(|(note, _)| note))
}

/// A note, with the user who has written it: of a file that is opened without waiting, and is no longer than notes are.
///
/// # Errors
/// It cannot be read.
pub(super) fn read_of_user(path: &Path) -> Result<Option<(Note, u32)>, Failure> {
    let flags = (OFlags::NONBLOCK | OFlags::NOFOLLOW).bits();
    let mut options = fs::File::options();
    let file = match options.read(true).custom_flags(flags as i32).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) if error.raw_os_error() == Some(Errno::LOOP.raw_os_error()) => {
            return Err(unreadable(path, &"it is a symbolic link"));
        }
        other => other.map_err(cannot("read", path))?,
    };
    let about = file.metadata().map_err(cannot("read", path))?;
    if !about.is_file() {
        return Err(unreadable(path, &"it is not a file"));
    }
    let mut text = String::new();
    file.take(NOTE_BYTES_MAX)
        .read_to_string(&mut text)
        .map_err(|error| match error.kind() {
            io::ErrorKind::InvalidData => unreadable(path, &"it is not UTF-8"),
            _ => cannot("read", path)(error),
        })?;
    Ok(Some((understood(path, &text)?, about.uid())))
}

fn understood(path: &Path, text: &str) -> Result<Note, Failure> {
    let note: Note = serde_json::from_str(text).map_err(|error| unreadable(path, &error))?;
    if note.schema != SCHEMA {
        return Err(unreadable(path, &"it is of another version"));
    }
    // What follows makes, moves and removes directories of these names.
    Place::of(note.directory.clone())
        .ok()
        .filter(|place| place.directory().is_absolute())
        .ok_or_else(|| unreadable(path, &"its directory is none"))?;
    Ok(note)
}

fn unreadable(path: &Path, why: &dyn std::fmt::Display) -> Failure {
    let path = path.display();
    let message = format!(
        "the note {path} about an adopted directory cannot be understood ({why}): move it away, and go \
         back by hand (docs/RECIPES.md)"
    );
    Failure::new(Code::Failed, message)
}

/// Where this user's programs have their configuration.
///
/// # Errors
/// The user has no home.
pub(super) fn configuration() -> Result<PathBuf, Failure> {
    if rustix::process::geteuid().is_root() {
        return Ok("/etc".into());
    }
    let from = |name: &str| {
        let path = std::env::var_os(name).map(PathBuf::from);
        path.filter(|path| path.is_absolute())
    };
    from("XDG_CONFIG_HOME")
        .or_else(|| from("HOME").map(|home| home.join(".config")))
        .ok_or_else(|| {
            Failure::new(
                Code::Failed,
                "the environment variable HOME is not set, so there is no place to note what is adopted; \
                 set it to your home directory",
            )
        })
}

/// A path as systemd escapes it for the name of a unit (`systemd-escape -p`); a long one is cut off
/// and gets a hash of the whole.
pub(super) fn escaped(path: &Path) -> String {
    let path = path.to_string_lossy();
    let mut name = String::new();
    for byte in path.trim_matches('/').bytes() {
        match byte {
            b'/' => name.push('-'),
            b'.' if name.is_empty() => name.push_str("\\x2e"),
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b':' | b'_' | b'.' => name.push(byte.into()),
            _ => name += &format!("\\x{byte:02x}"),
        }
    }
    if name.len() > NAME_BYTES_MAX {
        let hash = path.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        name.truncate(NAME_BYTES_MAX - 17);
        name += &format!("-{hash:016x}");
    }
    name
}

/// The path whose escaped name this is; none for one that was cut off, or that is no such name.
fn unescaped(name: &str) -> Option<PathBuf> {
    if name.len() >= NAME_BYTES_MAX {
        return None;
    }
    let mut path = vec![b'/'];
    let mut rest = name.as_bytes();
    while let Some((&byte, others)) = rest.split_first() {
        rest = others;
        path.push(match byte {
            b'-' => b'/',
            b'\\' => {
                let (digits, others) = rest.strip_prefix(b"x")?.split_at_checked(2)?;
                rest = others;
                u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?
            }
            byte => byte,
        });
    }
    let path = PathBuf::from(OsString::from_vec(path));
    (escaped(&path) == name).then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notes(base: &Path) -> Notes {
        Notes::of_user(Some(&base.join("mobifs/adopted"))).unwrap()
    }

    /// One that waited for the lock of a directory that was removed and made again locked nothing, and its note
    /// had no directory in the end.
    #[test]
    fn the_lock_is_that_of_the_directory_that_is_there() {
        let base = tempfile::tempdir().unwrap();
        let notes = notes(base.path());
        let first = notes.lock().unwrap();
        let waiting = std::thread::spawn({
            let notes = notes.clone();
            move || notes.lock().unwrap()
        });
        // It waits, or comes later and finds the new directory: right in both cases.
        std::thread::sleep(std::time::Duration::from_millis(100));
        fs::remove_dir(notes.directory()).unwrap();
        fs::create_dir(notes.directory()).unwrap();
        drop(first);
        let lock = waiting.join().unwrap();
        assert!(lock.is_of(notes.directory()));
        assert!(notes.try_lock().is_none());
    }

    #[test]
    fn a_note_is_there_until_it_is_removed() {
        let base = tempfile::tempdir().unwrap();
        let notes = notes(base.path());
        let places = ["/srv/b", "/srv/a b"].map(|path| Place::of(path.into()).unwrap());
        assert_eq!(notes.all().unwrap(), []);
        let lock = notes.lock().unwrap();
        for place in &places {
            assert_eq!(notes.find(place).unwrap(), None);
            let note = Note::new(place, Boot::Nothing, "noatime");
            notes.save(&note).unwrap();
            let note = note.towards(Direction::Unadopt);
            notes.save(&note).unwrap();
            assert_eq!(notes.find(place).unwrap(), Some(note));
        }
        drop(lock);
        let found = notes.all().unwrap();
        let directories: Vec<_> = found.iter().map(Note::directory).collect();
        assert_eq!(directories, ["/srv/a b", "/srv/b"].map(Path::new));
        for place in &places {
            notes.remove(place).unwrap();
            notes.remove(place).unwrap();
        }
        assert_eq!(
            fs::read_dir(base.path()).unwrap().count(),
            0,
            "nothing stays"
        );
    }

    #[test]
    fn what_a_kill_has_left_goes_with_the_next_command() {
        let base = tempfile::tempdir().unwrap();
        let notes = notes(base.path());
        let leave = || {
            fs::create_dir_all(notes.directory()).unwrap();
            fs::write(notes.directory().join(".srv-b.json.new"), "{").unwrap();
        };
        leave();
        drop(notes.lock().unwrap());
        assert_eq!(fs::read_dir(notes.directory()).unwrap().count(), 0);
        leave();
        notes.tidy();
        assert_eq!(fs::read_dir(base.path()).unwrap().count(), 0);
        leave();
        notes.remove(&Place::of("/srv/b".into()).unwrap()).unwrap();
        assert_eq!(fs::read_dir(base.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_damaged_record_is_named_in_the_error() {
        let base = tempfile::tempdir().unwrap();
        let notes = notes(base.path());
        let _lock = notes.lock().unwrap();
        let path = notes.directory().join("srv-a.json");
        let place = Place::of("/srv/a".into()).unwrap();
        let good = Note::new(&place, Boot::Nothing, "rw");
        let good = serde_json::to_string(&good).unwrap();
        for bad in [
            "",
            "{}",
            &good[..20],
            &good.replace("\"schema\":1", "\"schema\":2"),
            &good.replace("/srv/a", "srv/a"),
            &good.replace("/srv/a", "/"),
        ] {
            fs::write(&path, bad).unwrap();
            let said = notes.find(&place).unwrap_err().message;
            assert!(
                said.contains("srv-a.json") && said.contains("move it away"),
                "{said}"
            );
            assert_eq!(notes.all().unwrap(), []);
            let damaged = notes.damaged().unwrap();
            assert_eq!(damaged[0].failure.message, said);
            assert_eq!(damaged[0].directory.as_deref(), Some(place.directory()));
        }
        fs::write(&path, good).unwrap();
        assert_eq!(notes.all().unwrap().len(), 1);
        assert!(notes.damaged().unwrap().is_empty());
    }

    #[test]
    fn names_are_escaped_as_systemd_does() {
        let name = |path: &str| escaped(Path::new(path));
        assert_eq!(name("/var/log"), "var-log");
        assert_eq!(name("/home/me/.cache"), "home-me-.cache");
        assert_eq!(name("/.a"), "\\x2ea");
        assert_eq!(name("/a-b/c d"), "a\\x2db-c\\x20d");
        assert_eq!(name("/ü"), "\\xc3\\xbc");
        let (one, other) = (
            format!("/{}", "a/".repeat(300)),
            format!("/{}b", "a/".repeat(300)),
        );
        assert!(name(&one).len() == 200 && name(&one) != name(&other));
        for path in ["/var/log", "/home/me/.cache", "/.a", "/a-b/c d", "/ü"] {
            assert_eq!(unescaped(&name(path)), Some(path.into()));
        }
        for name in [&name(&one), "a\\x2", "a\\xzz", "a b"] {
            assert_eq!(unescaped(name), None, "{name}");
        }
    }

    /// It failed, and so did whatever was done at the same time to directories that had nothing to do with it.
    #[test]
    fn notes_outlive_what_other_commands_remove_at_the_same_time() {
        let base = tempfile::tempdir().unwrap();
        let directory = base.path().join("files");
        fs::create_dir(&directory).unwrap();
        let place = Place::find(&directory).unwrap();
        let notes = Notes::of_user(Some(&base.path().join("mobifs/adopted"))).unwrap();
        let note = Note::new(&place, Boot::Nothing, "rw");
        let lock = notes.lock().unwrap();
        // A command that has nothing to note leaves the directory to the one that is at it.
        notes.remove_leavings(&place).unwrap();
        assert!(notes.directory().exists());
        fs::remove_dir(notes.directory()).unwrap();
        fs::remove_dir(base.path().join("mobifs")).unwrap();
        notes.save(&note).unwrap();
        assert_eq!(notes.find(&place).unwrap(), Some(note));
        drop(lock);
        notes.remove(&place).unwrap();
        notes.remove(&place).unwrap();
        assert!(!base.path().join("mobifs").exists());
    }

    /// The advice to move it away was missing.
    #[test]
    fn a_note_that_is_no_text_or_no_file_is_to_be_moved_away() {
        let base = tempfile::tempdir().unwrap();
        let (link, raw) = (base.path().join("link.json"), base.path().join("raw.json"));
        std::os::unix::fs::symlink("raw.json", &link).unwrap();
        fs::write(&raw, b"\xff\xfe").unwrap();
        for (path, why) in [(link, "it is a symbolic link"), (raw, "it is not UTF-8")] {
            let said = read(&path).unwrap_err().message;
            assert!(
                said.contains(why) && said.contains("move it away"),
                "{said}"
            );
        }
    }
}
