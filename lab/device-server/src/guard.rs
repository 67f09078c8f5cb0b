//! A process that serves a device and uses the filesystem on it, too, does not end by SIGKILL as others do: a thread of
//! it that waits for the filesystem waits for threads that have ended already, cannot be interrupted, and keeps the
//! mount's connection open. The kernel then never fails the request, and `sync` hangs on the whole machine. So another
//! process watches it, and aborts the connection.

use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use mobifs_host::{MountEntry, is_being_killed, mounts};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use rustix::net::sockopt::socket_peercred;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::control::{is_served, private_mounts};

/// How often it is looked whether the process is being killed. One that is ends within a look, unless it hangs.
const LOOKS: Duration = Duration::from_millis(500);

/// Waits for the end of a process. If it was killed, what it served is aborted and unmounted, and so are the
/// filesystems on that, so that nothing waits for it any more. Its images stay.
///
/// # Errors
/// There is no such process, or the kernel does not say what it does.
pub fn guard(process: u32) -> io::Result<()> {
    let pid = i32::try_from(process).ok().and_then(Pid::from_raw);
    let handle = pidfd_open(pid.ok_or(Errno::SRCH)?, PidfdFlags::empty())?;
    let mut was_dying = false;
    loop {
        let mut waited = [PollFd::from_borrowed_fd(handle.as_fd(), PollFlags::IN)];
        let time = Timespec::try_from(LOOKS).map_err(io::Error::other)?;
        match poll(&mut waited, Some(&time)) {
            Ok(0) => {}
            Ok(_) => return release(|mount| !is_served(mount)),
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(errno.into()),
        }
        let is_dying = is_being_killed(process);
        if is_dying && was_dying {
            tracing::warn!(
                process,
                "a process that serves a device was killed and waits for that device: what it serves is aborted"
            );
            release(|mount| server_of(mount) == Some(process))?;
        }
        was_dying = is_dying;
    }
}

/// The process that listens at the control socket of a private mount, whether it answers or not.
fn server_of(mountpoint: &Path) -> Option<u32> {
    let socket = UnixStream::connect(mountpoint.with_extension("sock")).ok()?;
    let pid = socket_peercred(&socket).ok()?.pid;
    u32::try_from(pid.as_raw_nonzero().get()).ok()
}

/// Aborts the private mounts that `is_dead` tells, and unmounts them and the filesystems on them.
fn release(is_dead: impl Fn(&Path) -> bool) -> io::Result<()> {
    for mount in private_mounts()? {
        let place = &mount.mountpoint;
        if !is_dead(place) {
            continue;
        }
        let filesystems = filesystems_on(place)?;
        // The connection is aborted, whether the mount is busy or not: requests fail from now on.
        let _busy = rustix::mount::unmount(place, UnmountFlags::FORCE);
        for filesystem in filesystems {
            detach(&filesystem.mountpoint);
        }
        detach(place);
        // Another server may use them again at any moment.
        let _used = std::fs::remove_dir(place);
        let _gone = std::fs::remove_file(place.with_extension("sock"));
    }
    Ok(())
}

fn detach(place: &Path) {
    match rustix::mount::unmount(place, UnmountFlags::DETACH) {
        // Unmounted by the first try.
        Ok(()) | Err(Errno::INVAL | Errno::NOENT) => {}
        Err(error) => tracing::warn!(%error, place = %place.display(), "cannot unmount"),
    }
}

/// The mounts of loop devices whose file is in a mount.
fn filesystems_on(mountpoint: &Path) -> io::Result<Vec<MountEntry>> {
    let mut devices = Vec::new();
    for entry in std::fs::read_dir("/sys/block")? {
        let entry = entry?;
        let file = std::fs::read_to_string(entry.path().join("loop/backing_file"));
        if file.is_ok_and(|file| Path::new(file.trim_end()).starts_with(mountpoint)) {
            devices.push(PathBuf::from("/dev").join(entry.file_name()));
        }
    }
    let mut found = mounts()?;
    found.retain(|mount| devices.contains(&mount.source));
    Ok(found)
}
