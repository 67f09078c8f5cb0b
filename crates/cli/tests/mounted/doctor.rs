//! `mobifs doctor`: which way fits a directory.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::fixture::{Fixture, PROGRAM, fails, mobifs, needs_mounts, succeeds, wait_until};
use crate::kills::kill;
use crate::steer::{BTRFS, Disk, EXT4, Made};

fn doctor(place: &Path) -> Value {
    let output = mobifs(&["doctor", "--json"], place);
    succeeds(&output);
    serde_json::from_slice(&output.stdout).unwrap()
}

fn state<'a>(found: &'a Value, way: &str) -> &'a str {
    found["ways"][way]["state"].as_str().unwrap()
}

#[test]
fn a_filesystem_that_journals_content_is_for_native_mode() {
    needs_mounts!();
    let Some(disk) = Disk::new(EXT4) else { return };
    let inside = disk.at.join("it's inside");
    fs::create_dir(&inside).unwrap();
    let before = disk.options();
    let found = doctor(&inside);
    assert_eq!(found["recommended"], "native", "{found}");
    assert_eq!(state(&found, "mount"), "possible");
    assert_eq!(
        found["commands"][0],
        format!("mobifs steer {}", disk.at.display())
    );
    assert_eq!(disk.options(), before);
    assert_eq!(
        fs::read_dir(&inside).unwrap().count(),
        0,
        "it has changed something"
    );
    // Large files would be written twice.
    let film = fs::File::create(inside.join("film")).unwrap();
    film.set_len(8 << 20).unwrap();
    let found = doctor(&inside);
    assert_eq!(found["recommended"], "mount", "{found}");
    let command = found["commands"][0].as_str().unwrap();
    assert!(command.contains(r"/it'\''s inside'"), "{command}");
    disk.steer("");
    let found = doctor(&inside);
    assert_eq!(found["recommended"], "native", "{found}");
    assert_eq!(
        found["commands"][0],
        format!("mobifs status {}", disk.at.display())
    );
}

/// The kernel's answer was taken for that of something that is no directory.
#[test]
fn a_mount_whose_daemon_has_ended_is_named() {
    needs_mounts!();
    let fixture = Fixture::new();
    fixture.mount(&["-o", "nosupervise"]);
    fs::create_dir(fixture.mountpoint.join("app")).unwrap();
    succeeds(&mobifs(&["sync"], &fixture.mountpoint));
    kill(fixture.daemon_pid());
    let needles = ["the daemon of the mount", "is gone", "mobifs umount"];
    wait_until(|| fixture.mountpoint.metadata().is_err());
    for place in ["", "app"] {
        let place = fixture.mountpoint.join(place);
        fails(&mobifs(&["doctor"], &place), 5, &needles);
    }
    fixture.umount();
}

#[test]
fn other_filesystems_are_for_mounts() {
    needs_mounts!();
    let ordered = Made {
        options: "loop",
        ..EXT4
    };
    for (made, native, needle) in [
        (ordered, "needs", "data=ordered"),
        (
            BTRFS,
            "possible",
            "durability calls block, as without MobiFS",
        ),
    ] {
        let Some(disk) = Disk::new(made) else {
            continue;
        };
        let found = doctor(&disk.at);
        assert_eq!(found["recommended"], "mount", "{found}");
        assert_eq!(state(&found, "native"), native);
        let why = found["ways"]["native"]["sentence"].as_str().unwrap();
        assert!(why.contains(needle), "{why}");
        let output = mobifs(&["doctor"], &disk.at);
        succeeds(&output);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(text.contains("Recommended: a mount"), "{text}");
    }
}

#[test]
fn a_mount_and_its_store_are_known() {
    needs_mounts!();
    let fixture = Fixture::new();
    fixture.mount(&[]);
    let found = doctor(&fixture.mountpoint);
    assert_eq!(found["recommended"], "mount");
    let status = found["commands"][0].as_str().unwrap();
    assert!(status.starts_with("mobifs status"), "{status}");
    let store = doctor(&fixture.store);
    let said = store["ways"]["mount"]["sentence"].as_str().unwrap();
    assert!(said.contains("store of the mount"), "{said}");
    assert_eq!(store["commands"][0], status);
    // `mount` would refuse it.
    let above = doctor(fixture.store.parent().unwrap());
    assert_eq!(state(&above, "mount"), "not_here", "{above}");
    fixture.umount();
    let store = doctor(&fixture.store);
    assert_eq!(state(&store, "mount"), "possible", "{store}");
    let command = store["commands"][0].as_str().unwrap();
    assert!(
        command.starts_with("mobifs mount") || command.starts_with("mobifs steer"),
        "{command}"
    );
}

/// A reader that wants the first line only.
#[test]
fn output_that_is_not_read_is_no_failure() {
    let fixture = Fixture::new();
    let mut command = std::process::Command::new(crate::fixture::PROGRAM);
    command.args(["doctor"]).arg(&fixture.store);
    command
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

#[test]
fn what_is_no_directory_is_said_to_be_none() {
    let fixture = Fixture::new();
    let file = fixture.path("file");
    fs::write(&file, "").unwrap();
    fails(&mobifs(&["doctor"], &file), 1, &["not a directory"]);
    let missing = fixture.path("missing");
    fails(&mobifs(&["doctor"], &missing), 1, &["cannot examine"]);
    let found = doctor(Path::new("/"));
    assert_ne!(state(&found, "mount"), "possible", "{found}");
}

/// A database in /proc was called possible, and the filesystem of the machine was to be unmounted.
#[test]
fn what_cannot_be_is_not_advised() {
    for place in ["/proc", "/sys", "/dev/pts"] {
        let found = doctor(Path::new(place));
        assert_eq!(found["recommended"], "plain", "{found}");
        for way in ["native", "mount", "sqlite"] {
            assert_eq!(state(&found, way), "not_here", "{way}: {found}");
        }
        let why = found["reason"].as_str().unwrap();
        assert!(why.contains("keeps no files"), "{why}");
    }
    let found = doctor(Path::new("/"));
    let said = found["ways"]["native"]["sentence"].as_str().unwrap();
    assert!(!said.contains("unmount"), "{said}");
}

/// It said of directories that were there that they were not, and of the kernel what no kernel is.
#[test]
fn without_proc_or_sys_that_is_named() {
    needs_mounts!();
    let Some(disk) = Disk::new(EXT4) else { return };
    let mut fixture = Fixture::new();
    let root = fixture.directory("root");
    let inside = |path: &Path| root.join(path.strip_prefix("/").unwrap());
    fixture.mount_other(&["--bind", "/"], &root);
    let words = ["--bind", disk.at.to_str().unwrap()];
    fixture.mount_other(&words, &inside(&disk.at));
    fixture.mount_other(&["--bind", "/dev"], &root.join("dev"));
    let is_there = inside(Path::new(PROGRAM)).exists();
    if !mobifs_skip::can((!is_there).then_some("the program lies on another filesystem than /")) {
        return;
    }
    let run = |words: &[&str]| {
        let mut chroot = Command::new("chroot");
        let output = chroot.arg(&root).arg(PROGRAM).args(words).output().unwrap();
        let mut said = String::from_utf8_lossy(&output.stdout).into_owned();
        said += &String::from_utf8_lossy(&output.stderr);
        said
    };
    let at = disk.at.to_str().unwrap();
    for words in [
        &["doctor"][..],
        &["doctor", at],
        &["status"],
        &["steer", "--check", at],
        &["mount", at, "/tmp"],
    ] {
        let said = run(words);
        assert!(
            said.contains("mount -t proc proc /proc"),
            "{words:?}: {said}"
        );
    }
    let said = run(&["doctor"]);
    assert!(!said.contains("its version is not known"), "{said}");
    fixture.mount_other(&["-t", "proc", "proc"], &root.join("proc"));
    for words in [&["doctor", at][..], &["steer", "--check", at]] {
        let said = run(words);
        assert!(
            said.contains("mount -t sysfs sysfs /sys"),
            "{words:?}: {said}"
        );
    }
}
