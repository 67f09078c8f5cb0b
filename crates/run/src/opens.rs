//! Opening a file without `O_SYNC` in place of a process that has asked for it.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::sync::Arc;

use mobifs_steered::{Decisions, Look};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, open, openat2};
use rustix::io::Errno;

use crate::calls::{Kind, SYNCHRONOUS};
use crate::lapse::Watch;
use crate::listener::Answer;
use crate::received::Received;
use crate::same_credentials::{Twin, has_free_descriptors};
use crate::target::{Found, MountTable, Threads, read_memory, read_path};

/// With these flags, opening a file means the same whoever opens it, and also if it is opened twice because the
/// supervisor is killed: a file that must be new (`O_EXCL`) is not new the second time.
const UNDERSTOOD: u32 = SYNCHRONOUS
    | (libc::O_ACCMODE
        | libc::O_CREAT
        | libc::O_TRUNC
        | libc::O_APPEND
        | libc::O_CLOEXEC
        | libc::O_NOFOLLOW
        | libc::O_NONBLOCK
        | libc::O_NOCTTY
        | libc::O_NOATIME
        | libc::O_DIRECT
        | libc::O_LARGEFILE) as u32
    // What O_LARGEFILE is to the kernel, where it is nothing to C.
    | 0o100_000;

/// With these flags, opening changes something even if the process cannot get the descriptor then.
const CHANGING: u32 = (libc::O_CREAT | libc::O_TRUNC) as u32;
/// How many free descriptors a process must have for that: other threads take some meanwhile, by calls
/// that are answered here at the same time and by others.
const FREE_DESCRIPTORS: u64 = 64;

/// What `openat2` takes.
const HOW_BYTES: u64 = 24;

/// A call that opens a file, with its arguments sorted.
#[derive(Clone, Copy, Debug)]
struct Opening {
    directory: RawFd,
    path: u64,
    flags: u32,
    mode: u32,
}

impl Opening {
    fn of(call: &Received, kind: Kind) -> Option<Self> {
        let [first, second, third, fourth, ..] = call.arguments;
        let opening = match kind {
            Kind::Open => Self {
                directory: libc::AT_FDCWD,
                path: first,
                flags: second as u32,
                mode: third as u32,
            },
            Kind::OpenAt => Self {
                directory: first as RawFd,
                path: second,
                flags: third as u32,
                mode: fourth as u32,
            },
            _ => {
                let mut how = [0; HOW_BYTES as usize];
                read_memory(call.thread, third, &mut how).ok()?;
                let word = |at: usize| -> Option<u64> {
                    Some(u64::from_ne_bytes(how.get(at..at + 8)?.try_into().ok()?))
                };
                if fourth != HOW_BYTES || word(16)? != 0 {
                    return None;
                }
                // This call refuses what the others ignore.
                let creates = word(0)? & libc::O_CREAT as u64 != 0;
                if word(8)? & !0o7777 != 0 || (!creates && word(8)? != 0) {
                    return None;
                }
                Self {
                    directory: first as RawFd,
                    path: second,
                    flags: word(0)?.try_into().ok()?,
                    mode: word(8)?.try_into().ok()?,
                }
            }
        };
        let is_understood = opening.flags & !UNDERSTOOD == 0;
        let is_synchronous = opening.flags & SYNCHRONOUS != 0;
        (is_understood && is_synchronous).then_some(opening)
    }
}

/// Opens the file; `None` where that would not be certain to be the same.
///
/// The thread that calls this gets a mask of file modes of its own.
pub(crate) fn open_relaxed(
    call: &Received,
    kind: Kind,
    decisions: &Decisions,
    watch: &Arc<Watch>,
    is_waiting: &dyn Fn() -> bool,
) -> Option<Answer> {
    let opening = Opening::of(call, kind)?;
    let path = read_path(call.thread, opening.path).ok()?;
    let twin = Twin::of(call.thread)?;
    let (parent, name) = split(&path)?;
    let base = base_of(call.thread, opening.directory, parent)?;
    let directory = enter(base.as_ref(), parent).ok()?;
    let look = Look::at(&directory).ok()?;
    let table = MountTable::of(call.thread);
    if !decisions.is_steered(&look, &directory, table.path()) {
        return None;
    }
    let known = look_up(&directory, name);
    if known.is_ok_and(|file| !Look::at(&file).is_ok_and(|look| look.is_file())) {
        return None;
    }
    let has_room = || has_free_descriptors(call.thread, FREE_DESCRIPTORS);
    if opening.flags & CHANGING != 0 && !has_room() {
        return None;
    }
    // Only now is it certain that the looks above were at the process that waits.
    if !is_waiting() {
        return None;
    }
    adopt_mask(twin.mask).ok()?;
    let creates = opening.flags & libc::O_CREAT as u32 != 0;
    let mode = if creates { opening.mode & 0o7777 } else { 0 };
    let flags = OFlags::from_bits_retain(opening.flags & !SYNCHRONOUS) | OFlags::CLOEXEC;
    let file = openat2(
        &directory,
        OsStr::from_bytes(name),
        flags,
        Mode::from_bits_retain(mode),
        within(),
    );
    // What fails fails again when the kernel is asked to go on, as it should.
    let file = file.ok()?;
    let writes = opening.flags & libc::O_ACCMODE as u32 != libc::O_RDONLY as u32;
    let is_for_ever = !writes || decisions.is_unsafe();
    if !is_for_ever && !watch.note(&file, look.device(&directory, table.path()).ok()?) {
        return None;
    }
    Some(Answer::Descriptor {
        file,
        close_on_exec: opening.flags & libc::O_CLOEXEC as u32 != 0,
    })
}

/// Where a path leads, and the name there; only plain names, so that nothing is opened on another
/// filesystem.
fn split(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = path
        .iter()
        .rposition(|&byte| byte == b'/')
        .map_or(0, |at| at + 1);
    let (parent, name) = path.split_at_checked(end)?;
    let is_plain = !name.is_empty() && name != b"." && name != b"..";
    is_plain.then_some((parent, name))
}

/// The directory from which a relative path starts.
fn base_of(thread: u32, directory: RawFd, parent: &[u8]) -> Option<Option<Found>> {
    if parent.starts_with(b"/") {
        return Some(None);
    }
    if directory != libc::AT_FDCWD {
        let found = Threads::default().descriptor(thread, directory)?;
        return Some(Some(found));
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let current = open(format!("/proc/{thread}/cwd").as_str(), flags, Mode::empty());
    Some(Some(Found::Seen(current.ok()?)))
}

fn enter(base: Option<&Found>, parent: &[u8]) -> Result<OwnedFd, Errno> {
    let base = base.map_or(CWD, AsFd::as_fd);
    let parent = if parent.is_empty() { b"." } else { parent };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    // Links of /proc lead elsewhere for another process.
    let resolve = ResolveFlags::NO_MAGICLINKS;
    openat2(
        base,
        OsStr::from_bytes(parent),
        flags,
        Mode::empty(),
        resolve,
    )
}

fn look_up(directory: &OwnedFd, name: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat2(
        directory,
        OsStr::from_bytes(name),
        flags,
        Mode::empty(),
        within(),
    )
}

const fn within() -> ResolveFlags {
    ResolveFlags::NO_SYMLINKS
        .union(ResolveFlags::NO_XDEV)
        .union(ResolveFlags::NO_MAGICLINKS)
}

/// Gives this thread a mask of file modes of its own.
#[expect(unsafe_code, reason = "unshare is unsafe for some of its flags")]
fn adopt_mask(mask: u32) -> Result<(), Errno> {
    // SAFETY: only mask, root and current directory become the thread's own.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::FS) }?;
    rustix::process::umask(Mode::from_bits_retain(mask & 0o777));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_names_are_opened() {
        assert_eq!(split(b"/a/b"), Some((&b"/a/"[..], &b"b"[..])));
        assert_eq!(split(b"b"), Some((&b""[..], &b"b"[..])));
        assert_eq!(split(b"/b"), Some((&b"/"[..], &b"b"[..])));
        for path in ["", "/", "a/", "a/.", "..", "/a/.."] {
            assert_eq!(split(path.as_bytes()), None, "{path}");
        }
    }
}
