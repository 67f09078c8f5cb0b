//! Deleting snapshots by hand.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use super::{Kept, history, keeping, sync};
use crate::fixture::{fails, mobifs, needs_mounts, succeeds};
use crate::steer::{BTRFS, Disk};

/// A filesystem with so many snapshots.
fn with_snapshots(count: usize) -> Option<(Disk, Vec<Kept>)> {
    let disk = Disk::new(BTRFS)?;
    disk.steer(&keeping(50));
    for round in 0..count {
        fs::write(disk.at.join("file"), format!("round {round}")).unwrap();
        sync(&disk);
    }
    // The daemon may have taken one more, of a commit of its own.
    let kept = history(&disk.at);
    assert!(kept.len() >= count, "{kept:?}");
    let surplus: Vec<_> = kept[count..].iter().collect();
    for one in &surplus {
        succeeds(&delete(&["--delete", &one.time], &disk.at));
    }
    let kept = history(&disk.at);
    Some((disk, kept))
}

fn delete(words: &[&str], at: &Path) -> Output {
    let mut all = vec!["history"];
    all.extend(words);
    mobifs(&all, at)
}

fn times(kept: &[Kept]) -> Vec<&str> {
    kept.iter().map(|one| one.time.as_str()).collect()
}

#[test]
fn named_snapshots_are_deleted_and_no_others() {
    needs_mounts!();
    let Some((disk, before)) = with_snapshots(4) else {
        return;
    };
    let (second, third) = (&before[1], &before[2]);
    let name = third.path.file_name().unwrap().to_str().unwrap();
    let words = ["--json", "--delete", &second.time, "--delete", name];
    let output = delete(&words, &disk.at);
    succeeds(&output);
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let deleted = said["deleted"].as_array().unwrap();
    let shown: Vec<_> = deleted.iter().map(|one| one["time"].as_str()).collect();
    assert_eq!(shown, [Some(&*second.time), Some(&*third.time)]);
    assert_eq!(deleted[1]["path"].as_str(), third.path.to_str());
    let left = history(&disk.at);
    assert_eq!(times(&left), [&*before[0].time, &*before[3].time]);
    // The daemon goes on with what is left.
    assert_eq!(disk.status()["native"]["history"]["kept"], 2);
    fs::write(disk.at.join("file"), "later").unwrap();
    sync(&disk);
    assert_eq!(history(&disk.at).len(), 3);
    assert!(disk.status()["native"]["history"]["failed"].is_null());
}

#[test]
fn snapshots_are_deleted_by_age() {
    needs_mounts!();
    let Some((disk, before)) = with_snapshots(3) else {
        return;
    };
    let none = delete(&["--older-than", "1h"], &disk.at);
    succeeds(&none);
    assert_eq!(
        none.stdout,
        b"no snapshot is that old: nothing was deleted\n"
    );
    assert_eq!(times(&history(&disk.at)), times(&before));
    // Without the daemon, too.
    disk.stop();
    let all = delete(&["--older-than", "0s"], &disk.at);
    succeeds(&all);
    let said = String::from_utf8(all.stdout).unwrap();
    for one in &before {
        assert!(said.contains(&format!("deleted {}", one.time)), "{said}");
    }
    assert!(history(&disk.at).is_empty());
    let again = delete(&["--json", "--older-than", "0s"], &disk.at);
    succeeds(&again);
    let said: serde_json::Value = serde_json::from_slice(&again.stdout).unwrap();
    assert_eq!(said, serde_json::json!({ "schema": 1, "deleted": [] }));
}

/// Whether what is on the disk at this moment has all of them, or none.
fn is_on_disk(disk: &Disk, snapshots: &[Kept]) -> Option<bool> {
    let copy = disk.fixture.path("copy");
    fs::copy(disk.fixture.path("image"), &copy).unwrap();
    let mut show = Command::new("btrfs");
    show.args(["inspect-internal", "dump-tree", "-t", "root"]);
    let output = show.arg(&copy).output().unwrap();
    succeeds(&output);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let count = snapshots.iter().filter(|one| text.contains(&one.time));
    match count.count() {
        0 => Some(false),
        count => (count == snapshots.len()).then_some(true),
    }
}

#[test]
fn what_was_deleted_does_not_come_back_after_a_power_cut() {
    needs_mounts!();
    let Some((disk, before)) = with_snapshots(2) else {
        return;
    };
    // The kernel commits by itself half a minute later.
    disk.stop();
    assert_eq!(is_on_disk(&disk, &before), Some(true));
    succeeds(&delete(&["--older-than", "0s"], &disk.at));
    assert_eq!(is_on_disk(&disk, &before), Some(false));
}

/// What is no snapshot of this history stays, whatever its name and its age.
#[test]
fn only_snapshots_of_the_history_are_deleted() {
    needs_mounts!();
    let Some((disk, before)) = with_snapshots(1) else {
        return;
    };
    disk.stop();
    let place = disk.at.join(".mobifs-history");
    let names = [
        "2020-01-01T00:00:00.000000Z",
        "2020-01-02T00:00:00.000000Z",
        "2020-01-03T00:00:00.000000Z",
        "mine",
    ];
    let [directory, subvolume, of_another, mine] = names.map(|name| place.join(name));
    let btrfs = |words: &[&str], paths: &[&Path]| {
        let output = Command::new("btrfs").args(words).args(paths).output();
        succeeds(&output.unwrap());
    };
    fs::create_dir(&directory).unwrap();
    btrfs(&["subvolume", "create"], &[&subvolume]);
    btrfs(&["subvolume", "snapshot", "-r"], &[&subvolume, &of_another]);
    btrfs(&["subvolume", "snapshot", "-r"], &[&disk.at, &mine]);
    for name in names
        .into_iter()
        .chain(["..", "new", "2020-01-04T00:00:00Z"])
    {
        // The one that is there stays, too: nothing is deleted if one of the names is wrong.
        let output = delete(&["--delete", &before[0].time, "--delete", name], &disk.at);
        fails(&output, 1, &["has the name", "nothing was deleted"]);
    }
    assert_eq!(times(&history(&disk.at)), times(&before));
    succeeds(&delete(&["--older-than", "0s"], &disk.at));
    assert!(history(&disk.at).is_empty());
    for path in [&directory, &subvolume, &of_another, &mine] {
        assert!(path.exists(), "{}", path.display());
    }
}

#[test]
fn what_is_no_age_is_refused() {
    needs_mounts!();
    let Some((disk, before)) = with_snapshots(1) else {
        return;
    };
    for age in ["7", "yesterday", ""] {
        let output = delete(&["--older-than", age], &disk.at);
        fails(&output, 2, &["is no age", "3d"]);
    }
    assert_eq!(times(&history(&disk.at)), times(&before));
}

/// A snapshot that is in use, as by a mount of it, stays; what was deleted before it is said.
#[test]
fn one_that_cannot_be_deleted_stops_it() {
    needs_mounts!();
    let Some((mut disk, before)) = with_snapshots(3) else {
        return;
    };
    let place = disk.fixture.directory("snapshot");
    let what = before[1].path.to_str().unwrap().to_owned();
    // A default subvolume cannot be removed.
    let set = ["subvolume", "set-default", &what];
    succeeds(&Command::new("btrfs").args(set).output().unwrap());
    disk.fixture.mount_other(&["--bind", &what], &place);
    let output = delete(&["--older-than", "0s"], &disk.at);
    fails(&output, 1, &["cannot remove the snapshot"]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains(&before[0].time), "{said}");
    assert_eq!(times(&history(&disk.at)), times(&before[1..]));
}
