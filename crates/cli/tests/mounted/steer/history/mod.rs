//! Snapshots of a steered btrfs.

mod delete;
mod exact;
mod killed;
mod restore;
mod tree;
mod writer;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{BTRFS, Disk, EXT4};
use crate::fixture::{fails, mobifs, needs_mounts, succeeds, wait_until};

/// A snapshot of every commit, and none but those that the test asks for.
pub(super) const EVERY: &str = "user_events = \"none\"\n[defaults]\npolicy = \"interval\"\n\
     [history]\ninterval_min_ms = 0\nkeep_count = ";

pub(super) fn keeping(count: u64) -> String {
    format!("{EVERY}{count}\n")
}

#[derive(Clone, Debug)]
pub(crate) struct Kept {
    pub(crate) time: String,
    pub(crate) is_exact: bool,
    pub(crate) path: PathBuf,
}

pub(crate) fn history(at: &Path) -> Vec<Kept> {
    let output = mobifs(&["history", "--json"], at);
    succeeds(&output);
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    let snapshots = found["snapshots"].as_array().unwrap().iter();
    let kept = snapshots.map(|one| Kept {
        time: text(&one["time"]),
        is_exact: one["exact"].as_bool().unwrap(),
        path: text(&one["path"]).into(),
    });
    kept.collect()
}

pub(super) fn sync(disk: &Disk) {
    succeeds(&mobifs(&["sync"], &disk.at));
}

#[test]
fn no_more_snapshots_are_kept_than_configured() {
    needs_mounts!();
    let Some(disk) = Disk::new(BTRFS) else { return };
    disk.steer(&keeping(3));
    let file = disk.at.join("file");
    for round in 0..6 {
        fs::write(&file, format!("round {round}")).unwrap();
        sync(&disk);
        assert!(history(&disk.at).len() <= 3);
    }
    let kept = history(&disk.at);
    let content = |kept: &Kept| fs::read_to_string(kept.path.join("file")).unwrap();
    let contents: Vec<_> = kept.iter().map(content).collect();
    assert_eq!(contents, ["round 3", "round 4", "round 5"]);
    assert!(kept.is_sorted_by(|one, other| one.time < other.time));
    let status = disk.status();
    let shown = &status["native"]["history"];
    assert_eq!(shown["kept"], 3, "{status}");
    assert_eq!(shown["last"].as_str(), Some(kept[2].time.as_str()));
    let text = mobifs(&["status"], &disk.at).stdout;
    let text = String::from_utf8(text).unwrap();
    let line = format!(
        "history  3 snapshots are kept; the last is of {}",
        kept[2].time
    );
    assert!(text.contains(&line), "{text}");
    // Others may not look into the past either.
    let output = Command::new("stat")
        .args(["-c", "%a %u"])
        .arg(disk.at.join(".mobifs-history"))
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "700 0");
}

#[test]
fn what_has_become_too_old_goes() {
    needs_mounts!();
    let Some(disk) = Disk::new(BTRFS) else { return };
    disk.steer(&format!("{}keep_age_max_ms = 1000\n", keeping(50)));
    fs::write(disk.at.join("file"), "content").unwrap();
    sync(&disk);
    assert!(!history(&disk.at).is_empty());
    wait_until(|| history(&disk.at).is_empty());
}

/// A filesystem at rest was snapshotted anew whenever its last snapshot had become too old.
#[test]
fn what_was_removed_is_not_taken_again() {
    needs_mounts!();
    let Some(disk) = Disk::new(BTRFS) else { return };
    disk.steer(&format!("{}keep_age_max_ms = 3000\n", keeping(50)));
    fs::write(disk.at.join("file"), "content").unwrap();
    sync(&disk);
    wait_until(|| history(&disk.at).is_empty());
    sync(&disk);
    assert!(history(&disk.at).is_empty());
    fs::write(disk.at.join("file"), "other content").unwrap();
    sync(&disk);
    assert!(!history(&disk.at).is_empty());
}

#[test]
fn a_commit_of_nothing_keeps_no_snapshot() {
    needs_mounts!();
    let Some(disk) = Disk::new(BTRFS) else { return };
    disk.steer(&keeping(50));
    fs::write(disk.at.join("file"), "content").unwrap();
    sync(&disk);
    let before = history(&disk.at).len();
    sync(&disk);
    sync(&disk);
    assert_eq!(history(&disk.at).len(), before);
}

/// The next daemon goes on with what the last one has kept.
#[test]
fn the_history_outlives_its_daemon() {
    needs_mounts!();
    let Some(disk) = Disk::new(BTRFS) else { return };
    disk.steer(&keeping(3));
    fs::write(disk.at.join("file"), "one").unwrap();
    sync(&disk);
    disk.stop();
    let before = history(&disk.at);
    assert!(!before.is_empty());
    disk.steer(&keeping(3));
    for content in ["two", "three", "four"] {
        fs::write(disk.at.join("file"), content).unwrap();
        sync(&disk);
    }
    let after = history(&disk.at);
    assert_eq!(after.len(), 3);
    assert!(after[0].time > before[before.len() - 1].time);
}

#[test]
fn there_is_no_history_unless_it_is_configured() {
    needs_mounts!();
    for made in [BTRFS, EXT4] {
        let Some(disk) = Disk::new(made) else {
            continue;
        };
        disk.steer("");
        fs::write(disk.at.join("file"), "content").unwrap();
        sync(&disk);
        let said = if made.make[0] == BTRFS.make[0] {
            "[history]"
        } else {
            "it is ext4, and only btrfs has snapshots"
        };
        fails(
            &mobifs(&["history"], &disk.at),
            1,
            &["has no history", said],
        );
        assert!(disk.status()["native"]["history"].is_null());
    }
}

/// `reload` switches it on.
#[test]
fn a_history_begins_when_the_configuration_says_so() {
    needs_mounts!();
    let Some(disk) = Disk::new(BTRFS) else { return };
    disk.steer("");
    disk.fixture.config(&keeping(2));
    succeeds(&mobifs(&["reload"], &disk.at));
    fs::write(disk.at.join("file"), "content").unwrap();
    sync(&disk);
    assert!(!history(&disk.at).is_empty());
}

/// The status had no word of snapshots that stayed when the history was switched off.
#[test]
fn a_history_that_is_switched_off_keeps_its_snapshots() {
    needs_mounts!();
    let Some(disk) = Disk::new(BTRFS) else { return };
    disk.steer(&keeping(3));
    let file = disk.at.join("file");
    for content in ["one", "two"] {
        fs::write(&file, content).unwrap();
        sync(&disk);
    }
    let times = |at| {
        let kept = history(at).into_iter();
        kept.map(|one| one.time).collect::<Vec<_>>()
    };
    let before = times(&disk.at);
    assert!(!before.is_empty());
    let config = disk.fixture.config(&keeping(0));
    succeeds(&mobifs(&["reload"], &disk.at));
    fs::write(&file, "three").unwrap();
    sync(&disk);
    assert_eq!(times(&disk.at), before);
    let is_shown = || {
        let status = disk.status();
        let shown = &status["native"]["history"];
        assert_eq!(shown["is_off"], true, "{status}");
        assert_eq!(shown["kept"], before.len());
    };
    is_shown();
    let text = String::from_utf8(mobifs(&["status"], &disk.at).stdout).unwrap();
    assert!(text.contains("history  off (keep_count = 0); "), "{text}");
    // Also by a daemon that never took one.
    disk.stop();
    let words = ["--check", "--config", config.to_str().unwrap()];
    let said = String::from_utf8(disk.try_steer(&words).stdout).unwrap();
    assert!(said.contains("stay until they are deleted"), "{said}");
    disk.steer("");
    is_shown();
    assert_eq!(times(&disk.at), before);
    succeeds(&mobifs(&["history", "--older-than", "0s"], &disk.at));
    assert!(disk.status()["native"]["history"].is_null());
}

/// What another program has made there is left alone, and commits go on.
#[test]
fn a_directory_of_that_name_is_left_alone() {
    needs_mounts!();
    let Some(disk) = Disk::new(BTRFS) else { return };
    let place = disk.at.join(".mobifs-history");
    fs::create_dir(&place).unwrap();
    fs::write(place.join("file"), "mine").unwrap();
    disk.steer(&keeping(2));
    fs::write(disk.at.join("file"), "content").unwrap();
    sync(&disk);
    assert_eq!(fs::read(place.join("file")).unwrap(), b"mine");
    let status = disk.status();
    let failed = status["native"]["history"]["failed"].as_str().unwrap();
    assert!(failed.contains("move it away"), "{failed}");
}

/// What only has the name of a snapshot was listed as one, could be removed as one, and a `new` that
/// is none, or that a daemon that was killed has left, stopped all snapshots.
#[test]
fn only_snapshots_of_the_source_are_its_history() {
    needs_mounts!();
    let Some(disk) = Disk::new(BTRFS) else { return };
    disk.steer(&keeping(2));
    fs::write(disk.at.join("file"), "one").unwrap();
    sync(&disk);
    let before = history(&disk.at).len();
    let place = disk.at.join(".mobifs-history");
    let btrfs = |words: &[&str], paths: &[&Path]| {
        let output = Command::new("btrfs").args(words).args(paths).output();
        succeeds(&output.unwrap());
    };
    fs::create_dir(place.join("2020-01-01T00:00:00.000000Z")).unwrap();
    let writable = place.join("2020-01-02T00:00:00.000000Z");
    btrfs(&["subvolume", "create"], &[&writable]);
    btrfs(
        &["subvolume", "snapshot", "-r"],
        &[&writable, &place.join("2020-01-03T00:00:00.000000Z")],
    );
    assert_eq!(history(&disk.at).len(), before);
    fs::create_dir(place.join("new")).unwrap();
    fs::write(disk.at.join("file"), "two").unwrap();
    sync(&disk);
    let status = disk.status();
    let failed = status["native"]["history"]["failed"].as_str().unwrap();
    assert!(
        failed.contains("new is not a snapshot of this history"),
        "{failed}"
    );
    disk.stop();
    fs::remove_dir(place.join("new")).unwrap();
    btrfs(
        &["subvolume", "snapshot", "-r"],
        &[&disk.at, &place.join("new")],
    );
    disk.steer(&keeping(2));
    for content in ["three", "four", "five"] {
        fs::write(disk.at.join("file"), content).unwrap();
        sync(&disk);
    }
    assert_eq!(history(&disk.at).len(), 2);
    assert!(disk.status()["native"]["history"]["failed"].is_null());
    assert!(writable.exists() && !place.join("new").exists());
}

#[test]
fn check_names_nested_subvolumes_and_filesystems_without_snapshots() {
    needs_mounts!();
    let Some(disk) = Disk::new(BTRFS) else { return };
    let config = disk.fixture.config(&keeping(2));
    let nested = disk.at.join("directory/nested");
    fs::create_dir(disk.at.join("directory")).unwrap();
    let made = Command::new("btrfs")
        .args(["subvolume", "create"])
        .arg(&nested)
        .output();
    succeeds(&made.unwrap());
    let words = ["--check", "--config", config.to_str().unwrap()];
    let said = |disk: &Disk| String::from_utf8(disk.try_steer(&words).stdout).unwrap();
    assert!(
        said(&disk).contains("nested subvolumes: directory/nested."),
        "{}",
        said(&disk)
    );
    let Some(other) = Disk::new(EXT4) else { return };
    assert!(
        said(&other).contains("only btrfs has snapshots"),
        "{}",
        said(&other)
    );
}

/// The history gives way to what programs write, and no commit fails.
#[test]
fn a_full_disk_takes_the_oldest_snapshots() {
    needs_mounts!();
    const BYTES: usize = 40 << 20;
    const ROUNDS: u8 = 8;
    let Some(disk) = Disk::new(BTRFS) else { return };
    disk.steer(&keeping(50));
    let file = disk.at.join("file");
    for round in 0..ROUNDS {
        let content = vec![round + 1; BYTES];
        // Without room for it until the kernel has given some back.
        wait_until(|| fs::write(&file, &content).is_ok());
        sync(&disk);
    }
    let kept = history(&disk.at);
    assert!(kept.len() < usize::from(ROUNDS), "{kept:?}");
    assert_eq!(fs::read(&file).unwrap(), vec![ROUNDS; BYTES]);
}
