//! A control group for the command, by which a daemon can tell apps apart.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use mobifs_host::mounts;
use mobifs_steered::Standstill;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{XattrFlags, getxattr, setxattr};
use rustix::io::Errno;

use crate::background;

/// How often a group is made and entered that other commands of the app remove meanwhile.
const ENTER_TRIES: u32 = 8;
/// How often removing a group is tried: the last process counts as a member until it is gone entirely,
/// some time after its filter.
const REMOVE_TRIES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(20);
/// When a group is looked at of which nothing is reported, as when it was removed: first after this time,
/// then each time after twice as long.
const LOOK_AFTER: Duration = Duration::from_millis(100);
const LOOK_AFTER_MAX: Duration = Duration::from_secs(60);
/// The file that tells whether there are processes in the group or below.
const EVENTS: &str = "cgroup.events";
const PROCESSES: &str = "cgroup.procs";
/// How groups begin that are made here. Units of systemd, and groups that the administrator has made,
/// may be called so as well; only those with the mark were made here.
const PREFIX: &str = "mobifs-";
const MARK: &str = "user.mobifs.run";
/// Groups are not nested deeper.
const DEPTH_MAX: u32 = 16;

/// A group below the one that this process is in.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    path: PathBuf,
}

impl Group {
    /// Puts this process into the group of an app; `None` where that is not possible, as for users
    /// whose groups are root's.
    pub(crate) fn enter(app: &str) -> Option<Self> {
        let group = Self::of(app)?;
        group.make_and_enter().then_some(group)
    }

    /// Makes the group, and marks it; whether it is new.
    fn make(&self) -> io::Result<bool> {
        match fs::create_dir(&self.path) {
            Ok(()) => {
                // Before Linux 5.7 groups take no marks: who has made them then removes them, if it lives.
                let _marked = setxattr(&self.path, MARK, b"1", XattrFlags::empty());
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Enters the group, where a process in the background removes the group when it is empty. It begins when
    /// what is returned is dropped, at the latest when this process becomes another program.
    pub(crate) fn enter_watched(app: &str) -> Option<OwnedFd> {
        let group = Self::of(app)?;
        // Where this process may not make a group, there is nothing to watch.
        group.make().ok()?;
        let watched = group.clone();
        // It is started before this process enters, and so is no member itself.
        let watcher = background::spawn(move |socket| {
            let mut closed = [0];
            while rustix::io::read(&socket, &mut closed) == Err(Errno::INTR) {}
            watched.remove_when_empty();
        });
        let Ok(watcher) = watcher else {
            group.try_to_remove();
            return None;
        };
        // Otherwise the watcher finds it empty.
        let _entered = group.make_and_enter();
        Some(watcher)
    }

    /// A group that another process has entered.
    pub(crate) fn at(path: PathBuf) -> Self {
        Self { path }
    }

    fn of(app: &str) -> Option<Self> {
        let own = own_group()?;
        remove_left_over(&own, DEPTH_MAX);
        let path = own.join(format!("{PREFIX}{}", as_name(app)));
        Some(Self { path })
    }

    fn make_and_enter(&self) -> bool {
        // Another command of the app may end, and its group be removed, in between.
        for _ in 0..ENTER_TRIES {
            let is_new = self.make().is_ok_and(|is_new| is_new);
            Standstill::wait_for_end(&self.path);
            match fs::write(self.path.join(PROCESSES), "0") {
                Ok(()) => return true,
                Err(error) if is_gone(&error) => {}
                Err(_) => {
                    if is_new {
                        self.try_to_remove();
                    }
                    return false;
                }
            }
        }
        false
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Puts this process back to where it was, as the command will not be run.
    pub(crate) fn leave(self) {
        let before = self.path.parent().map(|parent| parent.join(PROCESSES));
        let _left = before.map(|processes| fs::write(processes, "0"));
        self.try_to_remove();
    }

    /// Removes the group if nothing is in it, or will be in a moment.
    pub(crate) fn remove(&self) {
        for _ in 0..REMOVE_TRIES {
            if self.try_to_remove() {
                return;
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Whether the group is gone.
    fn try_to_remove(&self) -> bool {
        match fs::remove_dir(&self.path) {
            Ok(()) => true,
            Err(error) => error.kind() != io::ErrorKind::ResourceBusy,
        }
    }

    fn remove_when_empty(&self) {
        let Ok(events) = File::open(self.path.join(EVENTS)) else {
            return;
        };
        let mut patience = LOOK_AFTER;
        // An error says that the group is gone.
        while let Ok(true) = is_populated(&events) {
            let mut changed = [PollFd::new(&events, PollFlags::PRI)];
            let wait = Timespec::try_from(patience).ok();
            match poll(&mut changed, wait.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return,
            }
            patience = (patience * 2).min(LOOK_AFTER_MAX);
        }
        self.remove();
    }
}

fn is_populated(events: &File) -> io::Result<bool> {
    let mut text = [0; 256];
    let count = events.read_at(&mut text, 0)?;
    let text = String::from_utf8_lossy(text.get(..count).unwrap_or_default()).into_owned();
    Ok(text.lines().any(|line| line == "populated 1"))
}

/// Whether a group was removed, before it was opened or after.
fn is_gone(error: &io::Error) -> bool {
    let gone = [libc::ENOENT, libc::ENODEV];
    error
        .raw_os_error()
        .is_some_and(|code| gone.contains(&code))
}

fn own_group() -> Option<PathBuf> {
    let own = fs::read_to_string("/proc/self/cgroup").ok()?;
    let below = own.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let mounts = mounts().ok()?;
    let mount = mounts
        .iter()
        .find(|mount| mount.kind == "cgroup2" && mount.root == Path::new("/"))?;
    Some(mount.mountpoint.join(below))
}

/// Removes groups that were made here, in which there is no process any more, and whose supervisor was
/// killed before it could remove them. The kernel refuses to remove one with a process. One that
/// another command has just made and not entered yet is made again by it.
fn remove_left_over(parent: &Path, depth: u32) {
    let Some(depth) = depth.checked_sub(1) else {
        return;
    };
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let path = entry.path();
        let is_named_so = entry.file_name().to_string_lossy().starts_with(PREFIX);
        if is_named_so && getxattr(&path, MARK, &mut [0; 1]).is_ok() {
            remove_left_over(&path, depth);
            let _is_gone = Group { path }.try_to_remove();
        }
    }
}

/// Each app has a name of its own: what the name of a group cannot have is written as `%` and two
/// digits.
fn as_name(app: &str) -> String {
    app.replace('%', "%25")
        .replace('/', "%2f")
        .replace('\n', "%0a")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `a/b` and `a_b` shared a group.
    #[test]
    fn each_app_has_a_group_of_its_own() {
        let apps = ["a/b", "a_b", "a%2fb", "a\nb", "a%0ab", "ab", "a%b", "a%25b"];
        let names = apps.map(as_name);
        for (at, name) in names.iter().enumerate() {
            assert!(!name.contains(['/', '\n']), "{name}");
            assert!(!names[..at].contains(name), "{name} twice");
        }
        assert_eq!(as_name("a_b.c-d e"), "a_b.c-d e");
    }
}
