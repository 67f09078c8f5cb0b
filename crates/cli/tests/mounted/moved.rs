//! Directories get other names, or are hidden, while a mount is served: a daemon that takes over finds its store, and
//! nothing is lost.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::fixture::{Fixture, PROGRAM, needs_mounts, wait_until};

/// A store and a mount point, each in a directory of its own.
fn below_parents() -> Fixture {
    let mut fixture = Fixture::new();
    let base = fixture.store.parent().unwrap().to_owned();
    fixture.store = base.join("above/store");
    fixture.mountpoint = base.join("around/mnt");
    fs::create_dir_all(&fixture.store).unwrap();
    fs::create_dir_all(&fixture.mountpoint).unwrap();
    fixture
}

/// Writes, changes something, kills the daemon, and reads what was written.
fn survives(fixture: &Fixture, change: impl FnOnce()) {
    fixture.mount(&[]);
    fs::create_dir(fixture.mountpoint.join("app")).unwrap();
    fs::write(fixture.mountpoint.join("app/file"), "precious").unwrap();
    let killed = fixture.daemon_pid();
    change();
    kill_process(Pid::from_raw(killed as i32).unwrap(), Signal::KILL).unwrap();
}

fn is_served_again(mountpoint: &Path) {
    let file = mountpoint.join("app/file");
    wait_until(|| fs::read(&file).is_ok_and(|content| content == b"precious"));
    fs::write(mountpoint.join("app/new"), "more").unwrap();
}

/// The successor looked for the store's path, found none, and the mount was dead with what it held.
#[test]
fn a_store_that_got_another_name_is_found_by_the_next_daemon() {
    needs_mounts!();
    let mut fixture = below_parents();
    let moved = fixture.store.with_file_name("moved");
    survives(&fixture, || fs::rename(&fixture.store, &moved).unwrap());
    is_served_again(&fixture.mountpoint);
    fixture.umount();
    assert_eq!(fs::read(moved.join("app/file")).unwrap(), b"precious");
    fixture.store = moved;
}

/// It took the new directory for the store, which it is not.
#[test]
fn a_new_directory_in_the_place_of_the_store_is_not_taken_for_it() {
    needs_mounts!();
    let mut fixture = below_parents();
    let moved = fixture.store.with_file_name("moved");
    survives(&fixture, || {
        fs::rename(&fixture.store, &moved).unwrap();
        fs::create_dir(&fixture.store).unwrap();
    });
    is_served_again(&fixture.mountpoint);
    fixture.umount();
    assert_eq!(fs::read_dir(&fixture.store).unwrap().count(), 0);
    assert_eq!(fs::read(moved.join("app/new")).unwrap(), b"more");
    fixture.store = moved;
}

#[test]
fn directories_above_store_and_mount_point_may_get_other_names() {
    needs_mounts!();
    let mut fixture = below_parents();
    let base = fixture.store.ancestors().nth(2).unwrap().to_owned();
    survives(&fixture, || {
        fs::rename(base.join("above"), base.join("above-2")).unwrap();
        fs::rename(base.join("around"), base.join("around-2")).unwrap();
    });
    fixture.store = base.join("above-2/store");
    fixture.mountpoint = base.join("around-2/mnt");
    is_served_again(&fixture.mountpoint);
    fixture.umount();
    assert_eq!(
        fs::read(fixture.store.join("app/file")).unwrap(),
        b"precious"
    );
}

/// A mount hides the store: no path leads to it.
#[test]
fn a_store_that_is_hidden_is_used_by_the_next_daemon() {
    needs_mounts!();
    let fixture = below_parents();
    let above = fixture.store.parent().unwrap();
    let run = |words: &[&str]| {
        let status = Command::new(words[0]).args(&words[1..]).arg(above).status();
        assert!(status.unwrap().success(), "{words:?}");
    };
    survives(&fixture, || run(&["mount", "-t", "tmpfs", "none"]));
    is_served_again(&fixture.mountpoint);
    fixture.umount();
    run(&["umount"]);
    assert_eq!(fs::read(fixture.store.join("app/new")).unwrap(), b"more");
}

/// It polled the daemon for ever.
#[test]
fn a_watched_status_ends_with_its_reader() {
    needs_mounts!();
    let fixture = Fixture::new();
    fixture.mount(&[]);
    let watch = |words: &[&str]| {
        let mut command = Command::new(PROGRAM);
        command.args(["status", "--watch"]).args(words);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let started = Instant::now();
        while started.elapsed() < Duration::from_secs(60) {
            if let Some(status) = child.try_wait().unwrap() {
                assert!(status.success());
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        panic!("status {words:?} goes on without a reader");
    };
    let mountpoint = fixture.mountpoint.to_str().unwrap();
    watch(&[]);
    watch(&[mountpoint]);
    watch(&["--json", mountpoint]);
    fixture.umount();
}
