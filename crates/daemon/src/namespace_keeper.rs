//! A process that keeps a mount namespace as long as others serve a mount in it.
//!
//! The last process of a mount namespace takes away the mounts in it when it ends. Where a mount is a `fuseblk`, so
//! that `sync(2)` reaches it, the kernel then sends FUSE_DESTROY and waits for the answer, and no signal ends that. If
//! this process is the daemon or its supervisor, there is no answer, and the process closes its own `/dev/fuse`,
//! which would end the wait, only afterwards: what a process defers to its end, `do_exit()` does in the reverse
//! order. The process then never ends, and each `sync(2)` of the machine waits for it.
//!
//! So where the namespace is not that of the machine, a process without `/dev/fuse` stays in it until all processes
//! that may serve the mount have ended. They hold the write end of a pipe, as they inherit it; the end of the pipe
//! tells it. It does not help where all processes of the namespace are killed at the same time, this one included.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};
use rustix::pipe::{PipeFlags, pipe_with};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::handover::supervisor_pid;

/// The number of the machine's mount namespace (`MNT_NS_INIT_INO` of `linux/nsfs.h`).
const INITIAL_NAMESPACE: u64 = 0xefff_fff8;
/// The pipe's write end gets a number from here on: a supervisor gives the lower ones to what a daemon takes over.
const NUMBER_MIN: i32 = 200;
/// The hidden command that is this process.
const COMMAND: &str = "keep-namespace";
/// Its option: this is the process that stays.
const DETACHED: &str = "--detached";
/// Its name in lists of processes: it is not to be taken for the daemon and killed with it.
const SHOWN_NAME: &str = "fuse-namespace-keeper";

/// Starts that process, if this one is in a mount namespace of its own and may make a `fuseblk` mount, and has not
/// inherited the pipe from a supervisor.
pub fn start() {
    let namespace = std::fs::metadata("/proc/self/ns/mnt").map(|namespace| namespace.ino());
    let is_initial = namespace.is_ok_and(|number| number == INITIAL_NAMESPACE);
    if is_initial || supervisor_pid().is_some() || !rustix::process::geteuid().is_root() {
        return;
    }
    if let Err(error) = spawn() {
        tracing::warn!(
            %error,
            "nothing keeps this mount namespace: if all of its processes are killed, the last one may never end"
        );
    }
}

fn spawn() -> io::Result<()> {
    let (its_end, our_end) = pipe_with(PipeFlags::CLOEXEC)?;
    // A process in between, so that a supervisor has daemons as children and nothing else.
    let started = program().stdin(Stdio::from(its_end)).status()?;
    if !started.success() {
        return Err(io::Error::other("it did not start"));
    }
    let inherited: OwnedFd = fcntl_dupfd_cloexec(&our_end, NUMBER_MIN)?;
    fcntl_setfd(&inherited, FdFlags::empty())?;
    // Open until this process ends, and each that it starts.
    std::mem::forget(inherited);
    Ok(())
}

fn program() -> Command {
    let mut command = Command::new("/proc/self/exe");
    command
        .arg0(SHOWN_NAME)
        .arg(COMMAND)
        .env_clear()
        .current_dir("/")
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}

/// What the process in between does: starts the other one, with its own standard input.
///
/// # Errors
/// It cannot be started.
pub fn start_detached() -> io::Result<()> {
    program()
        .arg(DETACHED)
        .stdin(Stdio::inherit())
        .spawn()
        .map(drop)
}

/// What that process does: returns when all that hold the pipe have ended.
pub fn wait_for_the_others() {
    let _named = rustix::thread::set_name(c"fuse-keeper");
    let _session = rustix::process::setsid();
    // Who ends the daemon by a signal to the whole group waits for it to unmount.
    let ignored = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        let _handled = signal_hook::flag::register(signal, Arc::clone(&ignored));
    }
    // Nothing is ever written; an error is as good as the end.
    let _ended = io::copy(&mut io::stdin().lock(), &mut io::sink());
}
