//! The program as helper of mount(8) and umount(8).

use std::fs;
use std::process::Command;

use crate::fixture::{Fixture, as_helper, fails, needs_mounts, succeeds, wait_until};

#[test]
fn mount_helpers_mount_and_umount_helpers_unmount() {
    needs_mounts!();
    let fixture = Fixture::new();
    let (store, mnt) = (
        fixture.store.to_str().unwrap(),
        fixture.mountpoint.to_str().unwrap(),
    );
    let log = format!("rw,noauto,nofail,log={}", fixture.path("log").display());
    let sources = [store.to_owned(), format!("mobifs#{store}")];
    for source in &sources {
        for name in ["/sbin/mount.fuse.mobifs", "mobifs"] {
            succeeds(&as_helper(name, &[source, mnt, "-o", &log]));
            assert!(fixture.is_mounted());
            fs::write(fixture.mountpoint.join("f"), source).unwrap();
            succeeds(&as_helper("/sbin/umount.fuse.mobifs", &[mnt, "-n"]));
            assert!(!fixture.is_mounted());
            assert_eq!(
                fs::read(fixture.store.join("f")).unwrap(),
                source.as_bytes()
            );
        }
    }
}

#[test]
fn helpers_fail_with_the_codes_that_mount_documents() {
    let fixture = Fixture::new();
    let absent = fixture.path("absent");
    let (absent, mnt) = (
        absent.to_str().unwrap(),
        fixture.mountpoint.to_str().unwrap(),
    );
    let store = fixture.store.to_str().unwrap();
    fails(
        &as_helper("mount.fuse.mobifs", &[absent, mnt]),
        32,
        &["does not exist"],
    );
    fails(
        &as_helper("mount.fuse.mobifs", &[store]),
        1,
        &["SOURCE DIRECTORY"],
    );
    fails(
        &as_helper("mount.fuse.mobifs", &[store, mnt, "-o", "x=y"]),
        1,
        &["x=y"],
    );
    fails(
        &as_helper("umount.fuse.mobifs", &[mnt]),
        32,
        &["is not a MobiFS mount"],
    );
    succeeds(&as_helper("mount.fuse.mobifs", &[store, mnt, "-f"]));
    assert!(!fixture.is_mounted());
}

#[test]
fn remount_changes_the_flags_of_a_mount() {
    needs_mounts!();
    let fixture = Fixture::new();
    fixture.mount(&[]);
    let (store, mnt) = (
        fixture.store.to_str().unwrap(),
        fixture.mountpoint.to_str().unwrap(),
    );
    fs::write(fixture.mountpoint.join("f"), "1").unwrap();
    // Busy as long as a process that another test starts has a copy of the file, until it executes
    // its program.
    wait_until(|| {
        let remounted = as_helper("mount.fuse.mobifs", &[store, mnt, "-o", "remount,ro"]);
        remounted.status.success()
    });
    let error = fs::write(fixture.mountpoint.join("f"), "2").unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    succeeds(&as_helper(
        "mount.fuse.mobifs",
        &[store, mnt, "-o", "remount,rw"],
    ));
    fs::write(fixture.mountpoint.join("f"), "3").unwrap();
    fixture.umount();
    assert_eq!(fs::read(fixture.store.join("f")).unwrap(), b"3");
}

/// As SEMANTICS.md says: the kernel takes the flag back, but not what the daemon has opened.
#[test]
fn a_mount_that_began_read_only_stays_so() {
    needs_mounts!();
    let fixture = Fixture::new();
    fs::create_dir(fixture.store.join("app")).unwrap();
    fixture.mount(&[]);
    fixture.umount();
    fixture.mount(&["-o", "ro"]);
    let refused = || {
        let error = fs::write(fixture.mountpoint.join("app/f"), "1").unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
        assert_eq!(fixture.status()["read_only"], true);
    };
    refused();
    succeeds(&as_helper(
        "mount.fuse.mobifs",
        &[
            fixture.store.to_str().unwrap(),
            fixture.mountpoint.to_str().unwrap(),
            "-o",
            "remount,rw",
        ],
    ));
    refused();
    fixture.umount();
}

#[test]
fn sync_reaches_the_mount_where_the_status_says_so() {
    needs_mounts!();
    let fixture = Fixture::new();
    fixture.mount(&[]);
    if fixture.status()["sync_reaches_mount"] != true {
        mobifs_skip::skip("sync(2) does not reach the mount");
        return fixture.umount();
    }
    fs::create_dir(fixture.mountpoint.join("app")).unwrap();
    fs::write(fixture.mountpoint.join("app/f"), "content").unwrap();
    succeeds(
        &Command::new("sync")
            .arg("-f")
            .arg(&fixture.mountpoint)
            .output()
            .unwrap(),
    );
    fixture.cut_power();
    fixture.mount(&[]);
    assert_eq!(
        fs::read(fixture.mountpoint.join("app/f")).unwrap(),
        b"content"
    );
    fixture.umount();
}
