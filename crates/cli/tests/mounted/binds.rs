//! Bind mounts of a mount, and what other mount namespaces have of it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::alone::Alone;
use crate::fixture::{
    Fixture, PROGRAM, as_helper, is_mounted, message, mobifs, needs_mounts, succeeds, wait_until,
};

/// The ways to unmount: the command, and what umount(8) starts.
const WAYS: [&str; 3] = ["mobifs", "/sbin/umount.fuse", "/sbin/umount.fuseblk.mobifs"];

/// Unmounts `place`; what was said.
#[track_caller]
fn unmount(way: &str, place: &Path) -> String {
    let output = if way == "mobifs" {
        mobifs(&["umount"], place)
    } else {
        as_helper(way, &[place.to_str().unwrap()])
    };
    succeeds(&output);
    message(&output)
}

/// A mount with a directory in it, and that directory (or the mount as a whole) bound elsewhere.
fn bound(of: &str) -> (Fixture, PathBuf) {
    let mut fixture = Fixture::new();
    fixture.mount(&[]);
    fs::create_dir(fixture.mountpoint.join("q")).unwrap();
    let place = fixture.directory("bound");
    let what = fixture.mountpoint.join(of);
    fixture.mount_other(&["--bind", what.to_str().unwrap()], &place);
    (fixture, place)
}

/// Found by hand: it unmounted the mount itself, and waited for ever for its end, which the bind
/// mount kept from coming.
#[test]
fn a_bind_mount_is_unmounted_and_its_filesystem_stays() {
    needs_mounts!();
    for of in ["q", ""] {
        let (fixture, place) = bound(of);
        for way in WAYS {
            if !is_mounted(&place) {
                let what = fixture.mountpoint.join(of);
                let mut bind = Command::new("mount");
                bind.arg("--bind").arg(what).arg(&place);
                succeeds(&bind.output().unwrap());
            }
            unmount(way, &place);
            assert!(!is_mounted(&place), "{way}");
            assert!(fixture.is_mounted(), "{way}");
        }
        fs::write(fixture.mountpoint.join("q/f"), "content").unwrap();
        fixture.umount();
        assert_eq!(fs::read(fixture.store.join("q/f")).unwrap(), b"content");
    }
}

/// Found by hand: it waited for ever, with the mount gone from the tree.
#[test]
fn a_mount_that_is_bound_elsewhere_is_unmounted_and_ends_with_the_last_bind_mount() {
    needs_mounts!();
    for way in WAYS {
        let (fixture, place) = bound("");
        fs::write(fixture.mountpoint.join("f"), "1").unwrap();
        let said = unmount(way, &fixture.mountpoint);
        assert!(said.contains(place.to_str().unwrap()), "{way}: {said}");
        assert!(!fixture.is_mounted(), "{way}");
        assert_eq!(fs::read(fixture.store.join("f")).unwrap(), b"1", "{way}");
        fs::write(place.join("f"), "2").unwrap();
        let said = unmount(way, &place);
        assert_eq!(said, "", "{way}: the last mount ends the filesystem");
        assert!(!is_mounted(&place), "{way}");
        assert_eq!(fs::read(fixture.store.join("f")).unwrap(), b"2", "{way}");
        fixture.mount(&[]);
        fixture.umount();
    }
}

/// A daemon that dies has a successor that serves the bind mount, also where that is the only
/// mount that is left.
#[test]
fn a_bind_mount_that_outlives_its_mount_outlives_its_daemon() {
    needs_mounts!();
    let (fixture, place) = bound("");
    fs::write(fixture.mountpoint.join("f"), "1").unwrap();
    let pid = fixture.daemon_pid();
    unmount("mobifs", &fixture.mountpoint);
    fs::write(place.join("f"), "2").unwrap();
    let mut kill = Command::new("kill");
    kill.arg("-KILL").arg(pid.to_string());
    succeeds(&kill.output().unwrap());
    assert_eq!(fs::read(place.join("f")).unwrap(), b"2");
    unmount("mobifs", &place);
    assert_eq!(fs::read(fixture.store.join("f")).unwrap(), b"2");
}

/// A process with a mount namespace of its own; ends with this.
struct Namespace(Child);

impl Namespace {
    fn new(fixture: &Fixture) -> Self {
        let ready = fixture.path("ready");
        let script = format!("touch {}; exec sleep 1000", ready.display());
        let mut unshare = Command::new("unshare");
        unshare.args(["-m", "sh", "-c", &script]).current_dir("/");
        let child = unshare.stdin(Stdio::null()).spawn().unwrap();
        wait_until(|| ready.exists());
        Self(child)
    }

    /// Runs a command in it.
    fn run(&self, words: &[&str], place: &Path) -> std::process::Output {
        let mut enter = Command::new("nsenter");
        enter.arg("-m").arg("-t").arg(self.0.id().to_string());
        enter.arg(PROGRAM).args(words).arg(place).output().unwrap()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _ended = self.0.wait();
    }
}

/// It waited for ever, without a message.
#[test]
fn a_mount_of_which_another_namespace_has_a_copy_is_unmounted_and_the_copy_is_named() {
    needs_mounts!();
    let _alone = Alone::new();
    let fixture = Fixture::new();
    fixture.mount(&[]);
    fs::write(fixture.mountpoint.join("f"), "1").unwrap();
    let namespace = Namespace::new(&fixture);
    let said = unmount("mobifs", &fixture.mountpoint);
    let pid = namespace.0.id().to_string();
    assert!(said.contains("namespace") && said.contains(&pid), "{said}");
    assert!(!fixture.is_mounted());
    assert_eq!(fs::read(fixture.store.join("f")).unwrap(), b"1");
    drop(namespace);
    // The daemon ends with the copy, and the store is free.
    fixture.mount(&[]);
    fixture.umount();
}

/// It unmounted the mount in the daemon's namespace.
#[test]
fn in_another_namespace_its_own_copy_is_unmounted() {
    needs_mounts!();
    let _alone = Alone::new();
    let fixture = Fixture::new();
    fixture.mount(&[]);
    let namespace = Namespace::new(&fixture);
    let output = namespace.run(&["umount"], &fixture.mountpoint);
    succeeds(&output);
    let said = message(&output);
    assert!(said.contains("namespace"), "the other one is named: {said}");
    assert!(fixture.is_mounted());
    let again = namespace.run(&["umount"], &fixture.mountpoint);
    assert!(message(&again).contains("not a MobiFS mount"), "{again:?}");
    fixture.umount();
}
