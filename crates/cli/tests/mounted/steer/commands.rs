//! Commands about a steered filesystem are those about a mount.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use super::{BTRFS, Disk, EXT4};
use crate::fixture::{
    copy_program, fails, mobifs, needs_mounts, succeeds, try_mount_at, wait_until,
};

#[test]
fn the_status_is_that_of_a_native_filesystem() {
    needs_mounts!();
    for (made, kind) in [(EXT4, "ext4"), (BTRFS, "btrfs")] {
        let Some(disk) = Disk::new(made) else {
            continue;
        };
        disk.steer("");
        let status = disk.status();
        assert_eq!(status["store"]["kind"], "native");
        assert_eq!(status["mountpoint"], disk.at.to_str().unwrap());
        let native = &status["native"];
        assert_eq!(native["filesystem"], kind);
        assert_eq!(native["commit_interval_s"], 30);
        let without = native["age_max_without_daemon_ms"].as_u64().unwrap();
        assert_eq!(without > 30_000, kind == "btrfs", "{native}");
        let output = mobifs(&["status"], &disk.at);
        succeeds(&output);
        let text = String::from_utf8(output.stdout).unwrap();
        for line in ["a steered ", "commits every 30 s"] {
            assert!(text.contains(line), "{text}");
        }
        let promised = ["promise  in force", "return at once"];
        for line in promised {
            assert_eq!(text.contains(line), disk.keeps_order(), "{text}");
        }
    }
}

/// The status advised it, it was taken without a word, and all calls went on waiting.
#[test]
fn a_class_that_the_configuration_asks_for_is_not_set_to_no_effect() {
    needs_mounts!();
    let Some(disk) = Disk::new(EXT4) else { return };
    for table in [
        "[[app]]\nmatch = \"mail\"\nclass = \"durable\"\n",
        "[[app]]\nmatch = \".\"\nclass = \"durable\"\n",
    ] {
        disk.steer(table);
        let set = mobifs(&["set", "--app", ".", "--class", "relaxed"], &disk.at);
        fails(&set, 2, &["would have no effect", "mobifs reload"]);
        assert!(!disk.is_in_force());
        disk.stop();
    }
}

#[test]
fn settings_change_while_it_is_steered() {
    needs_mounts!();
    let Some(disk) = Disk::new(EXT4) else { return };
    disk.steer("[defaults]\nage_max_ms = 20000\n");
    let set = |words: &[&str]| mobifs(&[&["set", "--app", "."], words].concat(), &disk.at);
    succeeds(&set(&["--age-max-ms", "9000", "--policy", "quiet"]));
    assert!(disk.options().0.contains("commit=9"));
    let app = disk.status()["apps"][0].clone();
    assert_eq!(
        (&app["age_max_ms"], &app["policy"]["name"]),
        (&9000.into(), &"quiet".into())
    );
    fails(&set(&["--age-max-ms", "10"]), 2, &["at least 1000"]);
    // It was taken without a word, and had no effect.
    let longer = set(&["--age-max-ms", "60000"]);
    fails(&longer, 2, &["60000 would have no effect", "20000 ms"]);
    let larger = set(&["--staleness-max-bytes", "1TiB"]);
    fails(&larger, 2, &["staleness_max_bytes", "would have no effect"]);
    fails(
        &set(&["--interval-ms", "90000", "--policy", "interval"]),
        2,
        &["larger than age_max_ms"],
    );
    let other = mobifs(&["set", "--app", "mail", "--age-max-ms", "5000"], &disk.at);
    fails(&other, 2, &["no app mail", "--app ."]);
    assert!(disk.options().0.contains("commit=9"));
    // Calls of durable apps wait.
    assert!(disk.is_in_force());
    succeeds(&set(&["--class", "durable"]));
    assert!(!disk.is_in_force());
    assert!(disk.status()["native"]["promise_withdrawn"].is_null());
    succeeds(&mobifs(&["reload"], &disk.at));
    assert!(disk.is_in_force());
    assert!(disk.options().0.contains("commit=20"));
    let config = disk.fixture.config("[defaults]\nage_max_ms = 500\n");
    fails(&mobifs(&["reload"], &disk.at), 2, &["at least 1000"]);
    fs::write(&config, "allow_durable = false\n").unwrap();
    succeeds(&mobifs(&["reload"], &disk.at));
    fails(&set(&["--class", "durable"]), 2, &["allow_durable = false"]);
}

#[test]
fn users_and_screens_are_reported_as_to_a_mount() {
    needs_mounts!();
    let Some(disk) = Disk::new(EXT4) else { return };
    disk.steer("user_events = \"none\"\nscreens = false\n");
    succeeds(&mobifs(&["touch"], &disk.at));
    assert_eq!(disk.status()["user"]["operations"], 1);
    fs::write(disk.at.join("file"), "content").unwrap();
    wait_until(|| disk.status()["apps"][0]["transactions"]["open"] == 1);
    let before = disk.commits();
    succeeds(&mobifs(&["touch", "--screen", "off"], &disk.at));
    assert!(disk.commits() > before);
    assert_eq!(disk.status()["screen_off"], true);
    succeeds(&mobifs(&["touch", "--screen", "on"], &disk.at));
    assert_eq!(disk.status()["screen_off"], false);
}

#[test]
fn commands_for_mounts_only_say_so() {
    needs_mounts!();
    let Some(disk) = Disk::new(EXT4) else { return };
    disk.steer("");
    let stop = format!("mobifs steer --stop {}", disk.at.display());
    fails(
        &mobifs(&["umount"], &disk.at),
        2,
        &["not a MobiFS mount", &stop],
    );
    fails(
        &mobifs(&["drill", "power-cut", "--yes"], &disk.at),
        2,
        &["no drill"],
    );
    fails(
        &mobifs(&["calibrate"], &disk.at),
        2,
        &["its journal is the kernel's"],
    );
    fails(
        &mobifs(&["sync", "--app", "mail"], &disk.at),
        2,
        &["no app mail"],
    );
    assert!(disk.is_in_force());
}

/// The sockets of root's daemons are not shown to other users, who were told that it is no mount.
#[test]
fn other_users_are_told_who_may_ask() {
    needs_mounts!();
    let Some(disk) = Disk::new(EXT4) else { return };
    disk.steer("");
    let program = disk.fixture.path("mobifs-of-all");
    copy_program(&program);
    let base = program.parent().unwrap();
    fs::set_permissions(base, fs::Permissions::from_mode(0o755)).unwrap();
    for words in [&["status"][..], &["sync"], &["touch"], &["steer", "--stop"]] {
        let mut command = Command::new(&program);
        command.args(words).arg(&disk.at).uid(65_534).gid(65_534);
        command.env_remove("XDG_RUNTIME_DIR").current_dir("/");
        fails(&command.output().unwrap(), 1, &["only root"]);
    }
    assert!(disk.is_in_force());
    // They were told that the filesystem is not steered.
    let inside = disk.at.join("inside");
    fs::create_dir(&inside).unwrap();
    let mut command = Command::new(&program);
    command.arg("status").arg(&inside).uid(65_534).gid(65_534);
    command.env_remove("XDG_RUNTIME_DIR").current_dir("/");
    let mount = disk.at.to_str().unwrap();
    fails(
        &command.output().unwrap(),
        5,
        &["lies in the steered filesystem", mount],
    );
}

#[test]
fn other_users_cannot_steer_and_change_nothing() {
    needs_mounts!();
    for made in [EXT4, BTRFS] {
        let Some(disk) = Disk::new(made) else {
            continue;
        };
        let before = disk.options();
        let program = disk.fixture.path("mobifs-of-all");
        copy_program(&program);
        let base = program.parent().unwrap();
        fs::set_permissions(base, fs::Permissions::from_mode(0o755)).unwrap();
        let as_nobody = |words: &[&str]| {
            let mut command = Command::new(&program);
            command.args(words).arg(&disk.at).uid(65_534).gid(65_534);
            command.env_remove("XDG_RUNTIME_DIR").current_dir("/");
            command.output().unwrap()
        };
        let needed = ["only a process with CAP_SYS_ADMIN", "run this as root"];
        fails(&as_nobody(&["steer"]), 1, &needed);
        let checked = as_nobody(&["steer", "--check"]);
        fails(&checked, 1, &["cannot be steered as it is"]);
        let said = String::from_utf8(checked.stdout).unwrap();
        assert!(needed.iter().all(|one| said.contains(one)), "{said}");
        fails(&as_nobody(&["steer", "--stop"]), 5, &["is not steered"]);
        assert_eq!(disk.options(), before);
        assert!(!disk.is_in_force());
    }
}

/// "Permission denied" alone.
#[test]
fn other_users_are_told_that_a_history_is_roots() {
    needs_mounts!();
    let Some(disk) = Disk::new(BTRFS) else { return };
    disk.steer("[history]\nkeep_count = 2\ninterval_min_ms = 0\n");
    fs::write(disk.at.join("file"), "content").unwrap();
    succeeds(&mobifs(&["sync"], &disk.at));
    let program = disk.fixture.path("mobifs-of-all");
    copy_program(&program);
    let base = program.parent().unwrap();
    fs::set_permissions(base, fs::Permissions::from_mode(0o755)).unwrap();
    for words in [
        &["history"][..],
        &["history", "--older-than", "0s"],
        &["restore", "--at", "-0s", "--to", "/none"],
    ] {
        let mut command = Command::new(&program);
        command.args(words).arg(&disk.at).uid(65_534).gid(65_534);
        command.current_dir("/");
        fails(
            &command.output().unwrap(),
            1,
            &["only root can look into the history"],
        );
    }
}

/// A place in a steered filesystem leads to its mount point; a store there is still one.
#[test]
fn places_in_a_steered_filesystem_lead_to_its_mount_point() {
    needs_mounts!();
    let Some(disk) = Disk::new(EXT4) else { return };
    let store = disk.at.join("store");
    fs::create_dir(&store).unwrap();
    let mountpoint = &disk.fixture.mountpoint;
    succeeds(&try_mount_at(&store, mountpoint, &[]));
    succeeds(&mobifs(&["umount"], mountpoint));
    disk.steer("");
    let mount = disk.at.to_str().unwrap();
    for place in [store.clone(), disk.at.join("absent")] {
        for words in [&["status"][..], &["sync"], &["steer", "--stop"]] {
            let said = ["lies in the steered filesystem", mount, "name that"];
            fails(&mobifs(words, &place), 5, &said);
        }
    }
    succeeds(&mobifs(&["status", "--history"], &store));
    assert!(disk.is_in_force());
}
