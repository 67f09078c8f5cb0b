//! Directories nested as deep as any user can make them, on threads with small stacks.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Command;

use rustix::fs::{Mode, OFlags};

use crate::fixture::{Fixture, PROGRAM, needs_mounts, succeeds};
use crate::kills::kill;

/// Twice of what overflowed the stack of a thread that is eight times as large.
const DEPTH: usize = 2_000;
/// In KiB, for the first thread of each process, which parses the command line: that alone takes
/// more than the 256 that all other threads have by `RUST_MIN_STACK`.
const STACK_KIB: &str = "1024";

fn open(directory: &Path) -> OwnedFd {
    rustix::fs::open(directory, OFlags::DIRECTORY, Mode::empty()).unwrap()
}

/// Makes a chain of directories, as a shell does that changes into each.
fn make_chain(top: &Path) {
    let mut at = open(top);
    for _ in 0..DEPTH {
        rustix::fs::mkdirat(&at, "d", Mode::RWXU).unwrap();
        at = rustix::fs::openat(&at, "d", OFlags::DIRECTORY, Mode::empty()).unwrap();
    }
    rustix::fs::mknodat(
        &at,
        "bottom",
        rustix::fs::FileType::RegularFile,
        Mode::RUSR,
        0,
    )
    .unwrap();
}

/// How deep the chain is.
fn depth_of(top: &Path) -> usize {
    let mut at = open(top);
    let mut depth = 0;
    while let Ok(below) = rustix::fs::openat(&at, "d", OFlags::DIRECTORY, Mode::empty()) {
        (at, depth) = (below, depth + 1);
    }
    rustix::fs::statat(&at, "bottom", rustix::fs::AtFlags::empty()).unwrap();
    depth
}

fn mount(fixture: &Fixture) {
    let script = format!("ulimit -s {STACK_KIB}; exec \"$@\"");
    let mut command = Command::new("sh");
    command
        .env("RUST_MIN_STACK", (256 << 10).to_string())
        .args(["-c", &script, "sh", PROGRAM, "mount", "--log"])
        .arg(fixture.path("log"))
        .args([&fixture.store, &fixture.mountpoint]);
    succeeds(&command.output().unwrap());
}

fn remove_all(path: &Path) {
    succeeds(&Command::new("rm").arg("-rf").arg(path).output().unwrap());
}

/// Regression: the daemon overflowed its stack when directories that lay 1,000 deep were
/// removed, and each successor that found them removed did so again.
#[test]
fn directories_of_any_depth_come_and_go() {
    needs_mounts!();
    let fixture = Fixture::new();
    mount(&fixture);
    let (one, other) = (
        fixture.mountpoint.join("one"),
        fixture.mountpoint.join("other"),
    );
    fs::create_dir(&one).unwrap();
    fs::create_dir(&other).unwrap();
    fs::write(other.join("file"), "acknowledged").unwrap();
    make_chain(&one);
    // Into another app, to which then the whole subtree belongs.
    fs::rename(one.join("d"), other.join("d")).unwrap();
    assert_eq!(depth_of(&other), DEPTH);
    kill(fixture.daemon_pid());
    assert_eq!(depth_of(&other), DEPTH, "taken over");
    succeeds(&crate::fixture::mobifs(&["sync"], &fixture.mountpoint));
    fixture.umount();
    mount(&fixture);
    assert_eq!(depth_of(&other), DEPTH, "mounted again");
    kill(fixture.daemon_pid());
    remove_all(&other.join("d"));
    kill(fixture.daemon_pid());
    make_chain(&other);
    remove_all(&other.join("d"));
    fixture.umount();
    assert_eq!(fixture.log().matches("overflowed").count(), 0);
    assert_eq!(
        fs::read(fixture.store.join("other/file")).unwrap(),
        b"acknowledged"
    );
    for own in ["stage", "limbo", "lost"] {
        let own = fixture.store.join(".mobifs").join(own);
        assert_eq!(fs::read_dir(own).unwrap().count(), 0);
    }
}
