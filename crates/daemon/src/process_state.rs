//! Inherited process state that may not be as a mount needs it.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, RawFd};

use rustix::fs::{Dir, Mode, OFlags, open};
use rustix::process::umask;

/// Gives the process the signals and the mask of file modes that it relies on; to be called before
/// there are threads, which inherit them in turn, as do programs that are started.
///
/// No signal is blocked: the parent may have started the mount with `SIGTERM` or `SIGCHLD` blocked,
/// as programs do that wait for signals in a thread of their own. The end of a child is reported
/// and its status kept, also where the parent ignores `SIGCHLD`. A write beyond the limit of file
/// sizes fails, and does not end the process. What the process makes, it may use itself.
pub fn reset_inherited() {
    reset_signals();
    let inherited = umask(Mode::RWXG | Mode::RWXO);
    umask(inherited & (Mode::RWXG | Mode::RWXO));
}

#[expect(unsafe_code, reason = "no safe call sets a signal's disposition")]
fn reset_signals() {
    // SAFETY: no handler is installed or replaced by one, so no code of ours runs in a signal; the
    // set is initialised by `sigemptyset` before it is used. None of the calls can fail with these
    // arguments.
    unsafe {
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        let mut none = std::mem::MaybeUninit::uninit();
        libc::sigemptyset(none.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, none.as_ptr(), std::ptr::null_mut());
    }
}

/// Closes the descriptors that the process was started with, but for the standard streams and
/// `kept`. A daemon in the background would keep them for as long as the mount is there: the
/// filesystems of their files could not be unmounted, and its locks would stay. To be called where
/// the process owns no other descriptor.
///
/// # Errors
/// `/proc` cannot be read.
pub(crate) fn close_inherited(kept: BorrowedFd<'_>) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut directory = Dir::new(open("/proc/self/fd", flags, Mode::empty())?)?;
    let own = [kept.as_raw_fd(), directory.fd()?.as_raw_fd()];
    let mut inherited: Vec<RawFd> = Vec::new();
    for entry in &mut directory {
        let entry = entry?;
        let number = entry.file_name().to_str().ok();
        inherited.extend(number.and_then(|number| number.parse::<RawFd>().ok()));
    }
    inherited.retain(|number| *number > libc::STDERR_FILENO && !own.contains(number));
    inherited.into_iter().for_each(close);
    Ok(())
}

#[expect(
    unsafe_code,
    reason = "a descriptor that was inherited is only a number"
)]
fn close(number: RawFd) {
    // SAFETY: `/proc` has just shown that the number is open, there is one thread, and nothing in
    // this process owns it, as `close_inherited` asks for.
    unsafe { rustix::io::close(number) };
}
