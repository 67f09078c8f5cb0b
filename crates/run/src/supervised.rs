//! For tests: a process of the test's own program whose calls the test answers.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use crate::filter::FilterOptions;
use crate::launch::hand_over;
use crate::listener::{give_up_new_privileges, install};

/// Set in the process that makes the calls, to what it is to do.
const CALLER: &str = "MOBIFS_RUN_TEST_CALLER";

/// What this process is to do, if it is one that makes the calls.
pub(crate) fn to_do() -> Option<String> {
    std::env::var(CALLER).ok()
}

/// Starts this test once more, to make calls. Returns the socket by which the listener comes, too.
pub(crate) fn start(test: &str, to_do: &str) -> (OwnedFd, Child) {
    let (ours, theirs) = socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .unwrap();
    let caller = Command::new(std::env::current_exe().unwrap())
        .args(["--include-ignored", "--exact", "--nocapture", test])
        .env(CALLER, to_do)
        .stdin(Stdio::from(theirs))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    (ours, caller)
}

/// From now on, this thread's calls are answered by who has started the process.
pub(crate) fn begin() {
    let socket = rustix::io::dup(std::io::stdin()).unwrap();
    let options = FilterOptions {
        refuses_rings: true,
        skips_everything: false,
    };
    let installed = install(options).or_else(|error| match error {
        Errno::ACCESS => give_up_new_privileges().and_then(|()| install(options)),
        error => Err(error),
    });
    let (listener, calls_are_kept) = installed.unwrap();
    hand_over(&socket, &listener, calls_are_kept, OsStr::new("")).unwrap();
}
