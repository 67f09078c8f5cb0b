//! A process in the background, which is no child of this one.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, WaitOptions, setsid, waitpid};

/// Starts a process that does this work and ends; returns the other end of the work's socket, which
/// closes when this process executes another program or ends. This process must have only one thread.
pub(crate) fn spawn(work: impl FnOnce(OwnedFd)) -> Result<OwnedFd, Errno> {
    let (own, its) = socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?;
    match fork()? {
        Forked::Child => {
            drop(own);
            let _new_session = setsid();
            match fork() {
                Ok(Forked::Child) => {
                    work(detach(its));
                    exit(0)
                }
                Ok(Forked::Parent(_)) => exit(0),
                Err(_) => exit(1),
            }
        }
        Forked::Parent(child) => {
            // Where the parent ignores the end of children, there is nothing to wait for.
            let wait = || waitpid(Some(child), WaitOptions::empty());
            while wait().is_err_and(|error| error == Errno::INTR) {}
            Ok(own)
        }
    }
}

/// Which of two processes this is.
pub(crate) enum Forked {
    /// The new one.
    Child,
    /// The one that has started it.
    Parent(Pid),
}

/// Starts a process that goes on from here. This process must have only one thread.
pub(crate) fn fork() -> Result<Forked, Errno> {
    // SAFETY: this process has one thread, so the child may do all that this one may.
    match unsafe { libc::fork() } {
        0 => Ok(Forked::Child),
        child => Pid::from_raw(child.max(0))
            .map(Forked::Parent)
            .ok_or_else(last_error),
    }
}

/// Ends without what a process does at its end: those things are the parent's.
pub(crate) fn exit(code: libc::c_int) -> ! {
    // SAFETY: the call ends the process.
    unsafe { libc::_exit(code) }
}

fn last_error() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// Lets go of what the command's user may wait for or take away: files, directories, the terminal.
fn detach(socket: OwnedFd) -> OwnedFd {
    let kept = socket.as_raw_fd() as libc::c_uint;
    let all = libc::c_uint::MAX;
    // SAFETY: this process uses no other descriptors than the standard ones and the socket; none of
    // the calls touches memory, and no handler is installed.
    unsafe {
        libc::syscall(libc::SYS_close_range, 3, kept.saturating_sub(1).max(2), 0);
        libc::syscall(libc::SYS_close_range, kept + 1, all, 0);
        for signal in [
            libc::SIGTERM,
            libc::SIGINT,
            libc::SIGHUP,
            libc::SIGQUIT,
            libc::SIGTSTP,
            libc::SIGPIPE,
            libc::SIGUSR1,
            libc::SIGUSR2,
        ] {
            // A service that is being stopped still writes.
            libc::signal(signal, libc::SIG_IGN);
        }
        // Otherwise nothing could be learnt of the end of a child.
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        libc::prctl(libc::PR_SET_NAME, c"mobifs-run".as_ptr());
    }
    if let Ok(null) = open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
        for standard in 0..=2 {
            // SAFETY: both are open, and nothing owns the standard streams.
            unsafe { libc::dup2(null.as_raw_fd(), standard) };
        }
    }
    let _root = std::env::set_current_dir("/");
    // Only with CAP_SYS_RESOURCE.
    let _lower = std::fs::write("/proc/self/oom_score_adj", "-999");
    socket
}
