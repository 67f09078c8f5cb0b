//! Calls that a killed process of the supervisor has taken up are answered by the next one.
#![allow(unsafe_code, reason = "these are the calls that are tested")]

use std::fs::File;
use std::io::{Error, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::ptr::null_mut;
use std::sync::Arc;

use mobifs_steered::{Decisions, Directory, MappingFlag};
use rustix::io::Errno;

use crate::launch::{begin, receive};
use crate::ledger::Ledger;
use crate::listener::{Call, Listener, Next};
use crate::supervised;
use crate::supervisor::Supervisor;

const TEST: &str = "left_over::what_was_taken_up_is_finished";
const SAYS: &str = "SAYS ";

/// The program's thread waited for ever.
#[test]
fn what_was_taken_up_is_finished() {
    if let Some(to_do) = supervised::to_do() {
        supervised::begin();
        return println!("{SAYS}{}.", call(&to_do));
    }
    let nothing = |_: &Listener, _: &Call| ();
    // The kernel carries it out, as it cannot have been answered.
    let bad = format!("errno {}.", libc::EBADF);
    assert_eq!(said("fdatasync", nothing), (bad, false));
    let missing = format!("errno {}.", libc::ENOENT);
    assert_eq!(said("open", nothing), (missing, false));
    // What could not be looked at counts as a mapping.
    assert_eq!(said("map", nothing), ("mapped.".to_owned(), true));
    let gives = |listener: &Listener, call: &Call| {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"words").unwrap();
        rustix::fs::seek(&file, rustix::fs::SeekFrom::Start(0)).unwrap();
        listener.add(call, &file.into(), false).unwrap();
    };
    assert_eq!(said("open", gives), ("words.".to_owned(), false));
}

/// What the program says of its call, and whether a mapping is known then. `before`: what the killed one has done.
fn said(to_do: &str, before: impl Fn(&Listener, &Call)) -> (String, bool) {
    let (socket, caller) = supervised::start(TEST, to_do);
    let (listener, calls_are_kept, _) = receive(&socket).unwrap();
    begin(&socket, "-");
    let listener = Listener::new(listener, Ledger::create().unwrap());
    let next = listener.next(None, || ()).unwrap();
    let Next::Call(taken) = next else {
        panic!("{next:?}");
    };
    before(&listener, &taken);
    let (flag, _file, address) = MappingFlag::create().unwrap();
    let base = tempfile::tempdir().unwrap();
    let directory = Directory::at(base.path()).unwrap();
    let decisions = Decisions::by(directory.clone());
    let successor = Supervisor::new(listener, decisions, directory, calls_are_kept, Some(flag));
    assert!(Arc::new(successor).serve());
    let output = caller.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let said = text.lines().find_map(|line| line.split(SAYS).nth(1));
    let is_set = MappingFlag::open(&address).unwrap().is_set();
    (said.unwrap_or(&text).to_owned(), is_set)
}

fn call(to_do: &str) -> String {
    let (number, said): (i64, fn(i64) -> String) = match to_do {
        // SAFETY: the call touches no memory; there is no such descriptor.
        "fdatasync" => (unsafe { libc::syscall(libc::SYS_fdatasync, 9_999) }, |_| {
            String::new()
        }),
        "open" => {
            let (path, flags) = (c"/there/is/no/such/file", libc::O_RDWR | libc::O_SYNC);
            let directory = libc::AT_FDCWD;
            // SAFETY: the path ends with a NUL.
            let number =
                unsafe { libc::syscall(libc::SYS_openat, directory, path.as_ptr(), flags, 0) };
            (number, read)
        }
        _ => {
            let file = tempfile::tempfile().unwrap();
            file.set_len(4096).unwrap();
            let (none, both) = (null_mut::<u8>(), libc::PROT_READ | libc::PROT_WRITE);
            let (shared, number) = (libc::MAP_SHARED, file.as_raw_fd());
            // SAFETY: a new mapping, which nothing uses.
            let start =
                unsafe { libc::syscall(libc::SYS_mmap, none, 4096, both, shared, number, 0_i64) };
            (start, |_| "mapped".to_owned())
        }
    };
    if number < 0 {
        let error = Errno::from_io_error(&Error::last_os_error()).unwrap();
        return format!("errno {}", error.raw_os_error());
    }
    said(number)
}

fn read(number: i64) -> String {
    // SAFETY: the process has just got the descriptor.
    let mut file = File::from(unsafe { OwnedFd::from_raw_fd(number as RawFd) });
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    text
}
