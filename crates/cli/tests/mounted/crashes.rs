//! Power cuts and killed daemons.

use std::fs;
use std::io::Write as _;

use crate::fixture::{Fixture, fails, mobifs, needs_mounts, snapshot, succeeds};

/// Writes a file and calls fsync.
fn write_synced(path: &std::path::Path, content: &str) {
    let mut file = fs::File::create(path).unwrap();
    file.write_all(content.as_bytes()).unwrap();
    file.sync_all().unwrap();
}

const CLASSES: &str = "[[app]]\nmatch = \"bank-*\"\nclass = \"durable\"\n";

fn mount_with_classes(fixture: &Fixture) {
    let config = fixture.config(CLASSES);
    fixture.mount(&["--config", config.to_str().unwrap()]);
}

#[test]
fn a_power_cut_loses_what_is_not_committed_and_nothing_else() {
    needs_mounts!();
    let fixture = Fixture::new();
    mount_with_classes(&fixture);
    let mnt = &fixture.mountpoint;
    fs::create_dir(mnt.join("mail")).unwrap();
    fs::write(mnt.join("mail/old"), "old").unwrap();
    succeeds(&mobifs(&["sync", "--app", "mail"], mnt));
    fs::create_dir(mnt.join("bank-a")).unwrap();
    write_synced(&mnt.join("bank-a/f"), "kept");
    write_synced(&mnt.join("mail/new"), "relaxed: fsync returns at once");
    fs::write(mnt.join("mail/old"), "newer").unwrap();
    fixture.cut_power();
    assert!(
        !fixture.is_mounted(),
        "the mount is gone when the command returns"
    );
    let after_cut = snapshot(&fixture.store);

    // Looking changes nothing.
    let looked = mobifs(&["recover", "--dry-run"], &fixture.store);
    succeeds(&looked);
    let text = String::from_utf8(looked.stdout).unwrap();
    assert!(text.contains("not properly closed"), "{text}");
    assert!(snapshot(&fixture.store) == after_cut);

    mount_with_classes(&fixture);
    assert_eq!(fs::read(mnt.join("bank-a/f")).unwrap(), b"kept");
    assert_eq!(fs::read(mnt.join("mail/old")).unwrap(), b"old");
    assert!(!mnt.join("mail/new").exists());
    fixture.umount();
}

#[test]
fn recover_brings_the_store_to_its_last_commit_without_a_mount() {
    needs_mounts!();
    let fixture = Fixture::new();
    mount_with_classes(&fixture);
    fs::create_dir(fixture.mountpoint.join("bank-a")).unwrap();
    write_synced(&fixture.mountpoint.join("bank-a/f"), "kept");
    fixture.cut_power();
    let done = mobifs(&["recover"], &fixture.store);
    succeeds(&done);
    assert!(
        String::from_utf8(done.stdout)
            .unwrap()
            .contains("transactions applied")
    );
    assert_eq!(fs::read(fixture.store.join("bank-a/f")).unwrap(), b"kept");
    let again = mobifs(&["check"], &fixture.store);
    succeeds(&again);
    assert!(
        String::from_utf8(again.stdout)
            .unwrap()
            .contains("properly closed, nothing")
    );
    // Without our directory it is an ordinary one again.
    fs::remove_dir_all(fixture.store.join(".mobifs")).unwrap();
    let plain = mobifs(&["check"], &fixture.store);
    assert!(
        String::from_utf8(plain.stdout)
            .unwrap()
            .contains("an ordinary directory")
    );
    fails(
        &mobifs(&["recover"], &fixture.store),
        1,
        &["is not a MobiFS store"],
    );
}

#[test]
fn a_power_cut_needs_a_yes_and_ends_a_mount_that_is_in_use() {
    needs_mounts!();
    let fixture = Fixture::new();
    fixture.mount(&[]);
    fs::create_dir(fixture.mountpoint.join("app")).unwrap();
    let mut open = fs::File::create(fixture.mountpoint.join("app/open")).unwrap();
    let refused = mobifs(&["drill", "power-cut"], &fixture.mountpoint);
    fails(&refused, 2, &["--yes"]);
    open.write_all(b"still alive").unwrap();
    let before = snapshot(&fixture.store);
    fixture.cut_power();
    assert!(open.write_all(b"dead").is_err());
    assert!(
        snapshot(&fixture.store) == before,
        "nothing was written from that instant on"
    );
    fixture.mount(&[]);
    fixture.umount();
}

#[test]
fn a_killed_daemon_is_noticed_and_its_mount_taken_away() {
    needs_mounts!();
    let fixture = Fixture::new();
    mount_with_classes(&fixture);
    fs::create_dir(fixture.mountpoint.join("bank-a")).unwrap();
    write_synced(&fixture.mountpoint.join("bank-a/f"), "kept");
    let pid = fixture.daemon_pid().to_string();
    let killed = std::process::Command::new("kill")
        .args(["-KILL", &pid])
        .status()
        .unwrap();
    assert!(killed.success());
    while std::path::Path::new(&format!("/proc/{pid}/fd/0")).exists() {
        std::thread::yield_now();
    }
    fails(
        &mobifs(&["status"], &fixture.mountpoint),
        5,
        &["daemon", "gone", "mobifs umount"],
    );
    fails(&fixture.try_mount(&[]), 1, &["daemon is gone"]);
    fixture.umount();
    assert!(!fixture.is_mounted());
    mount_with_classes(&fixture);
    assert_eq!(
        fs::read(fixture.mountpoint.join("bank-a/f")).unwrap(),
        b"kept"
    );
    fixture.umount();
}
