//! Taking a mount away on behalf of the process that serves it.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Resource, WaitOptions, getrlimit, waitpid};

/// Descriptors that are closed one by one on kernels without close_range(2) (before 5.9),
/// if there is no limit of open files.
const DESCRIPTORS_MAX: u64 = 1 << 16;

/// Calls umount2(2) in a process of its own that holds no files.
///
/// The process that takes away the last use of a `fuseblk` mount sends FUSE_DESTROY within the
/// system call, and waits for the answer in a way that no signal ends. If that is a thread of the
/// daemon, and the daemon is killed before it has answered, the process cannot end before another
/// process answers; and the supervisor that would start a successor waits for its end. So a child
/// makes the call, which outlives the daemon until its successor has answered. Where there is no
/// successor, the kernel gives up as soon as no process holds `/dev/fuse`: the child does not.
pub(super) fn unmount_elsewhere(mountpoint: &Path, flags: UnmountFlags) -> Result<(), Errno> {
    let path = CString::new(mountpoint.as_os_str().as_bytes()).map_err(|_| Errno::INVAL)?;
    let limit = getrlimit(Resource::Nofile).current;
    let descriptors = limit.unwrap_or(DESCRIPTORS_MAX).min(DESCRIPTORS_MAX) as libc::c_int;
    // SAFETY: until it ends, the child makes only system calls, all of which fork(2) allows
    // in the child of a process with several threads; it allocates nothing, takes no lock,
    // and its parent's memory is its own copy.
    match unsafe { libc::fork() } {
        0 => {
            // SAFETY: see above; nothing uses the descriptors.
            unsafe {
                if libc::syscall(libc::SYS_close_range, 0, libc::c_uint::MAX, 0) != 0 {
                    for descriptor in 0..descriptors {
                        libc::close(descriptor);
                    }
                }
                // With a path that ends with a NUL rustix allocates nothing.
                let failed = unmount(path.as_c_str(), flags).err();
                libc::_exit(failed.map_or(0, Errno::raw_os_error))
            }
        }
        -1 => {
            tracing::debug!("no process to unmount in");
            unmount(mountpoint, flags)
        }
        child => outcome_of(child),
    }
}

/// What the child ended with: errno, which on Linux is below 256, or 0.
fn outcome_of(child: libc::pid_t) -> Result<(), Errno> {
    let ended = loop {
        match waitpid(Pid::from_raw(child), WaitOptions::empty()) {
            Err(Errno::INTR) => {}
            other => break other?,
        }
    };
    match ended.and_then(|(_, status)| status.exit_status()) {
        Some(0) => Ok(()),
        Some(code) => Err(Errno::from_raw_os_error(code)),
        // The child was killed.
        None => Err(Errno::INTR),
    }
}
