//! Arenas of databases that are gone.
//!
//! That a database is gone cannot be seen: it may have been moved, or its filesystem is not mounted. So an arena is
//! removed a week after it was first seen that its process is dead and its database is not where it was, although the
//! same filesystem is. Until then a file beside it, with the time and the arena's inode number, says so: another
//! arena may get its name. Whoever opens a database of the same user looks.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::view::View;
use super::{Owner, filesystem_of, from_kernel, lock_dead, open_ours, unlink};
use crate::database::lower_file::FileIdentity;

/// How long a database must have been away.
pub(super) const KEPT: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// How long a process waits between two looks.
const LOOKS: Duration = Duration::from_secs(60 * 60);
/// When this process looked last, in seconds since the machine was started.
static LOOKED: AtomicU64 = AtomicU64::new(0);

/// Looks, if this process has not for a while.
pub(in crate::database) fn remove_now_and_then(directory: &Path) {
    let now = since_boot();
    let last = LOOKED.load(Ordering::Relaxed);
    if last == 0 || now.as_secs().saturating_sub(last) >= LOOKS.as_secs() {
        LOOKED.store(now.as_secs().max(1), Ordering::Relaxed);
        remove_gone(directory, now);
    }
}

/// The time since the machine was started, which cannot be set. (rustix reads that clock by way of the vDSO, which
/// valgrind hides; looking for it there ends the program.)
pub(super) fn since_boot() -> Duration {
    let uptime = std::fs::read_to_string("/proc/uptime").unwrap_or_default();
    let seconds = uptime
        .split_ascii_whitespace()
        .next()
        .and_then(|it| it.parse().ok());
    seconds
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .unwrap_or_default()
}

/// Removes the arenas of this user in a directory that are of no use.
pub(super) fn remove_gone(directory: &Path, now: Duration) {
    let Ok(boot) = from_kernel("boot_id") else {
        return;
    };
    let user = rustix::process::geteuid().as_raw();
    let prefix = format!("mobifs-{user}-");
    let noticed_prefix = format!("{prefix}gone-");
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str() else {
            continue;
        };
        if let Some(rest) = name.strip_prefix(&noticed_prefix) {
            if !directory.join(format!("{prefix}{rest}")).exists() {
                Notice(entry.path()).remove();
            }
        } else if let Some(rest) = name.strip_prefix(&prefix) {
            let notice = Notice(directory.join(format!("{noticed_prefix}{rest}")));
            look_at(&entry.path(), &notice, &boot, now);
        }
    }
}

fn look_at(path: &Path, notice: &Notice, boot: &str, now: Duration) {
    let Ok(Some(file)) = open_ours(path) else {
        return;
    };
    // One that has just been made has no record yet.
    let Some(owner) = Owner::of(&file).ok().flatten() else {
        return;
    };
    // It is locked where it is certain to go only: who opens its database meanwhile would take its process for alive.
    if owner.boot != boot {
        if lock_dead(&file) {
            unlink(path);
        }
    } else if !is_gone(&owner) {
        notice.remove();
    } else {
        // The arena is open, so no other file has its inode number.
        let Ok(arena) = file.metadata().map(|about| about.ino()) else {
            return;
        };
        match notice.since(arena) {
            None => notice.make(now, arena),
            Some(since) if now.saturating_sub(since) < KEPT => {}
            Some(_) => {
                if lock_dead(&file) && is_gone(&owner) {
                    unlink(path);
                    notice.remove();
                }
            }
        }
    }
}

/// Whether a database is not where it was, and its filesystem is.
fn is_gone(owner: &Owner) -> bool {
    let Some(path) = owner.path().filter(|path| path.is_absolute()) else {
        return false;
    };
    let is_seen_alike = owner.view.is_some() && owner.view == View::own();
    let is_there = match FileIdentity::of(&path) {
        Ok(found) => found.inode == owner.database.inode && found.made == owner.database.made,
        Err(error) => error.kind() != std::io::ErrorKind::NotFound,
    };
    is_seen_alike && !is_there && is_filesystem_of(owner, &path)
}

/// Whether the lowest directory that is left of a path lies in the filesystem of the database.
fn is_filesystem_of(owner: &Owner, path: &Path) -> bool {
    let left = path
        .ancestors()
        .skip(1)
        .find_map(|directory| Some((directory, FileIdentity::of(directory).ok()?)));
    left.is_some_and(|(directory, found)| {
        let reported = rustix::fs::statvfs(directory).map(|about| about.f_fsid);
        let filesystem = reported.map(|reported| filesystem_of(reported, found.device));
        found.device == owner.database.device && filesystem == Ok(owner.filesystem)
    })
}

/// The file that says since when a database has been away.
struct Notice(PathBuf);

impl Notice {
    fn make(&self, now: Duration, arena: u64) {
        self.remove();
        let made = File::options()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW)
            .open(&self.0);
        // Without one its arena stays.
        let _made = made.and_then(|mut file| write!(file, "{} {arena}", now.as_secs()));
    }

    /// Since when, if it is about this arena.
    fn since(&self, arena: u64) -> Option<Duration> {
        let file = open_ours(&self.0).ok().flatten()?;
        let mut text = String::new();
        file.take(64).read_to_string(&mut text).ok()?;
        let (seconds, of_arena) = text.split_once(' ')?;
        let is_about_it = of_arena.parse() == Ok(arena);
        is_about_it.then_some(Duration::from_secs(seconds.parse().ok()?))
    }

    fn remove(&self) {
        if self.0.symlink_metadata().is_ok() {
            unlink(&self.0);
        }
    }
}
