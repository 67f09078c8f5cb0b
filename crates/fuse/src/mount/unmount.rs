//! Taking a mount away from within the process that serves it.

use std::os::fd::AsRawFd as _;
use std::path::Path;

use rustix::fs::{Dir, Mode, OFlags, open};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// The descriptors below are those of the standard streams, which only the log uses.
const FIRST_OWN_DESCRIPTOR: i32 = 3;

/// Calls umount2(2) on a thread that holds no files.
///
/// Whoever takes away the last use of a `fuseblk` mount sends FUSE_DESTROY within the system
/// call, and waits for the answer in a way that no signal ends. If that is a thread of the
/// daemon, and the daemon is killed before it has answered, nobody is left to answer. The
/// kernel would give up as soon as `/dev/fuse` is closed; but the threads of a process share
/// one table of open files, and the waiting thread would keep it. The process could never
/// end, and its lock on the store would stay. So the thread that calls has a table of its
/// own, and an empty one.
pub(super) fn unmount_without_files(mountpoint: &Path, flags: UnmountFlags) -> Result<(), Errno> {
    std::thread::scope(|scope| {
        let caller = std::thread::Builder::new().name("fuse-unmount".into());
        let caller = caller.spawn_scoped(scope, || {
            if let Err(error) = let_go_of_files() {
                tracing::debug!(%error, "unmounting with files open");
            }
            unmount(mountpoint, flags)
        });
        match caller.map(std::thread::ScopedJoinHandle::join) {
            Ok(Ok(unmounted)) => unmounted,
            // The thread has panicked, which nothing in it does.
            Ok(Err(_)) => Err(Errno::IO),
            Err(error) => {
                tracing::debug!(%error, "no thread to unmount on");
                unmount(mountpoint, flags)
            }
        }
    })
}

/// Gives the calling thread a table of open files of its own, and empties it.
fn let_go_of_files() -> std::io::Result<()> {
    // SAFETY: the thread uses no descriptor that was made before or is used by others.
    unsafe { unshare_unsafe(UnshareFlags::FILES) }?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut listing = Dir::new(open("/proc/thread-self/fd", flags, Mode::empty())?)?;
    let own = listing.fd()?.as_raw_fd();
    let mut others = Vec::new();
    while let Some(entry) = listing.read() {
        let number = entry?.file_name().to_str().ok().map(str::parse::<i32>);
        others.extend(number.into_iter().flatten().filter(|number| *number != own));
    }
    for descriptor in others {
        if descriptor >= FIRST_OWN_DESCRIPTOR {
            // SAFETY: the table is this thread's alone, and what this thread does from here on
            // uses none of its descriptors; their owners keep them in the table of the process.
            unsafe { rustix::io::close(descriptor) };
        }
    }
    Ok(())
}
