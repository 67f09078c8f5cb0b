//! Snapshots of a store on btrfs.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::fixture::{Fixture, fails, message, mobifs, needs_mounts, succeeds, wait_until};
use crate::steer::history::{Kept, history};
use crate::steer::{BTRFS, unmount};

/// A store that is a subvolume, mounted with this history.
fn mounted(config: &str) -> Option<Fixture> {
    let mut fixture = Fixture::new();
    let image = fixture.path("image");
    fs::File::create(&image)
        .unwrap()
        .set_len(BTRFS.mib << 20)
        .unwrap();
    let mut make = std::process::Command::new(BTRFS.make[0]);
    let make = make.args(&BTRFS.make[1..]).arg(&image);
    if !mobifs_skip::can(mobifs_skip::why_fails(make)) {
        return None;
    }
    let store = fixture.store.clone();
    fixture.mount_other(&["-o", "loop", image.to_str().unwrap()], &store);
    let config = fixture.config(config);
    fixture.mount(&["--config", config.to_str().unwrap()]);
    Some(fixture)
}

fn status_of(fixture: &Fixture) -> serde_json::Value {
    let output = mobifs(&["status", "--json"], &fixture.mountpoint);
    succeeds(&output);
    serde_json::from_slice(&output.stdout).unwrap()
}

// An apply of its own accord would take one more, and the oldest away.
const THREE: &str = "apply_idle_ms = 86400000\n[history]\ninterval_min_ms = 0\nkeep_count = 3\n";

#[test]
fn applied_states_of_a_store_are_kept_and_restored() {
    needs_mounts!();
    let Some(mut fixture) = mounted(THREE) else {
        return;
    };
    let app = fixture.mountpoint.join("app");
    fs::create_dir(&app).unwrap();
    for round in 0..5 {
        fs::write(app.join("file"), format!("round {round}")).unwrap();
        // Large new content goes past the journal.
        fs::write(app.join(format!("large {round}")), vec![round; 3 << 20]).unwrap();
        succeeds(&mobifs(&["sync"], &fixture.mountpoint));
    }
    let kept = history(&fixture.mountpoint);
    let content = |path: &Path| fs::read_to_string(path.join("app/file")).unwrap();
    let contents: Vec<_> = kept.iter().map(|kept| content(&kept.path)).collect();
    assert_eq!(contents, ["round 2", "round 3", "round 4"]);
    assert!(kept.iter().all(|kept| kept.is_exact), "{kept:?}");
    says_what_is_kept(&fixture, &kept[2].time);
    let time = kept[0].time.clone();
    let restore = |words: &[&str], at: &Path| {
        let words: Vec<_> = ["restore", "--at", &time]
            .iter()
            .chain(words)
            .copied()
            .collect();
        mobifs(&words, at)
    };
    refuses_the_store(&mut fixture, &time);
    // Beside it, through the mount, and in its place.
    let outside = fixture.path("outside");
    let inside = fixture.mountpoint.join("restored");
    for to in [&outside, &inside] {
        let words = ["--app", "app", "--to", to.to_str().unwrap()];
        succeeds(&restore(&words, &fixture.mountpoint));
        assert_eq!(fs::read_to_string(to.join("file")).unwrap(), "round 2");
        assert_eq!(fs::read(to.join("large 2")).unwrap(), vec![2; 3 << 20]);
        assert!(!to.join("large 3").exists());
    }
    wait_until(|| {
        restore(&["--app", "app", "--in-place"], &fixture.mountpoint)
            .status
            .success()
    });
    assert_eq!(fs::read_to_string(app.join("file")).unwrap(), "round 2");
    // Without the mount: all of it, but for what is MobiFS's own.
    succeeds(&mobifs(&["umount"], &fixture.mountpoint));
    succeeds(&mobifs(&["check"], &fixture.store));
    let kept = history(&fixture.store);
    assert_eq!(kept.len(), 3);
    // A mount without a history takes none, and none away.
    let times = |kept: Vec<Kept>| -> Vec<String> { kept.into_iter().map(|one| one.time).collect() };
    let before = times(kept);
    fixture.mount(&[]);
    let shown = status_of(&fixture)["store"]["history"].clone();
    assert!(shown["kept"] == 3 && shown["is_off"] == true, "{shown}");
    fs::write(fixture.mountpoint.join("later"), "later").unwrap();
    succeeds(&mobifs(&["sync"], &fixture.mountpoint));
    succeeds(&mobifs(&["umount"], &fixture.mountpoint));
    assert_eq!(times(history(&fixture.store)), before);
    let words = ["history", "--delete", before[0].as_str()];
    succeeds(&mobifs(&words, &fixture.store));
    assert_eq!(times(history(&fixture.store)), before[1..]);
    let whole = fixture.path("whole");
    let words = ["restore", "--at", "-0s", "--to", whole.to_str().unwrap()];
    succeeds(&mobifs(&words, &fixture.store));
    assert_eq!(content(&whole), "round 2");
    assert!(whole.join("restored/file").exists() && !whole.join(".mobifs").exists());
    let words = ["restore", "--at", "-0s", "--app", "app", "--in-place"];
    fails(&mobifs(&words, &fixture.store), 1, &["not mounted"]);
}

/// Past the mount it was done, and the mount did not show it; also by another name of the store, which was not known.
fn refuses_the_store(fixture: &mut Fixture, time: &str) {
    let refused = |past: &Path, at: &Path| {
        let to = past.to_str().unwrap();
        let words = ["restore", "--at", time, "--app", "app", "--to", to];
        fails(
            &mobifs(&words, at),
            2,
            &["lies in the store of the mount at"],
        );
    };
    let (store, bound) = (fixture.store.clone(), fixture.path("bound"));
    fs::create_dir(&bound).unwrap();
    fixture.mount_other(&["--bind", store.to_str().unwrap()], &bound);
    for at in [&fixture.mountpoint, &store] {
        refused(&store.join("app/past"), at);
        refused(&bound.join("app/past"), at);
    }
    unmount(&bound);
    assert!(!store.join("app/past").exists());
}

/// The status, of three exact snapshots of which this is the last.
#[track_caller]
fn says_what_is_kept(fixture: &Fixture, last: &str) {
    let shown = status_of(fixture)["store"]["history"].clone();
    assert_eq!(shown["kept"], 3, "{shown}");
    assert_eq!(shown["last"], last);
    assert_eq!(shown["last_is_exact"], true);
    assert!(shown["failed"].is_null(), "{shown}");
    assert_eq!(shown["is_off"], false);
    let text = mobifs(&["status"], &fixture.mountpoint).stdout;
    let text = String::from_utf8(text).unwrap();
    let line = format!("history  3 snapshots are kept; the last is of {last}, exact");
    assert!(text.contains(&line), "{text}");
}

/// Whatever a program writes meanwhile, an app is at a point in time.
#[test]
fn snapshots_of_a_store_in_use_are_points_in_time() {
    needs_mounts!();
    let config = "[history]\ninterval_min_ms = 0\nkeep_count = 100\n";
    let Some(fixture) = mounted(config) else {
        return;
    };
    let app = fixture.mountpoint.join("app");
    fs::create_dir(&app).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0_u64.. {
                if stop.load(Ordering::SeqCst) {
                    break;
                }
                for name in ["first", "second"] {
                    fs::write(app.join(name), round.to_string()).unwrap();
                }
                let new = app.join(format!("large {}", round % 3));
                fs::write(new, vec![round as u8; 1 << 20]).unwrap();
            }
        });
        wait_until(|| app.join("second").exists());
        for _ in 0..10 {
            succeeds(&mobifs(&["sync"], &fixture.mountpoint));
        }
        stop.store(true, Ordering::SeqCst);
    });
    let kept = history(&fixture.mountpoint);
    let number = |path: PathBuf| -> Option<u64> { fs::read_to_string(path).ok()?.parse().ok() };
    let of = |path: &Path| {
        Some((
            number(path.join("app/first"))?,
            number(path.join("app/second"))?,
        ))
    };
    // A file that was just truncated has no number.
    let states: Vec<_> = kept.iter().filter_map(|kept| of(&kept.path)).collect();
    assert!(kept.len() >= 10, "{kept:?}");
    for (first, second) in &states {
        assert!(first == second || *first == second + 1, "{states:?}");
    }
    assert!(!states.is_empty());
}

/// It said that `[history]` in the configuration would keep one, which it does.
#[test]
fn a_history_without_a_snapshot_yet_is_not_said_to_be_off() {
    needs_mounts!();
    let Some(fixture) = mounted(THREE) else {
        return;
    };
    let text = mobifs(&["status"], &fixture.mountpoint).stdout;
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains("history  no snapshot is kept yet"), "{text}");
    fails(
        &mobifs(&["history"], &fixture.mountpoint),
        1,
        &["no snapshot of", "is kept yet", "mobifs sync"],
    );
    fs::write(fixture.mountpoint.join("file"), "content").unwrap();
    succeeds(&mobifs(&["sync"], &fixture.mountpoint));
    assert_eq!(history(&fixture.mountpoint).len(), 1);
    unmount(&fixture.mountpoint);
}

/// The status counted the snapshots of a store that can have none, until the first was to be taken.
#[test]
fn a_history_that_cannot_be_kept_is_shown_as_that_from_the_beginning() {
    needs_mounts!();
    let fixture = Fixture::new();
    let config = fixture.config(THREE);
    let config = config.to_str().unwrap();
    fixture.mount(&["--config", config]);
    let text = || String::from_utf8(mobifs(&["status"], &fixture.mountpoint).stdout).unwrap();
    let line = "history  no snapshot is kept; FAILED: ";
    assert!(text().contains(line), "{}", text());
    fixture.umount();
    // Nothing changes that could be kept.
    fixture.mount(&["--config", config, "-o", "ro"]);
    assert!(!text().contains("history"), "{}", text());
    fixture.umount();
}

/// A store that is no subvolume is mounted all the same.
#[test]
fn a_store_without_snapshots_is_served() {
    needs_mounts!();
    let fixture = Fixture::new();
    let config = fixture.config(THREE);
    fixture.mount(&["--config", config.to_str().unwrap()]);
    fs::write(fixture.mountpoint.join("file"), "content").unwrap();
    succeeds(&mobifs(&["sync"], &fixture.mountpoint));
    fails(
        &mobifs(&["history"], &fixture.mountpoint),
        1,
        &["has no history", "only btrfs has snapshots"],
    );
    let shown = status_of(&fixture)["store"]["history"].clone();
    let failed = shown["failed"].as_str().unwrap();
    assert!(
        failed.contains("has no history") && shown["kept"] == 0,
        "{shown}"
    );
    let log = fs::read_to_string(fixture.path("log")).unwrap();
    assert!(log.contains("no snapshot is kept of this commit"), "{log}");
    unmount(&fixture.mountpoint);
}

/// Found by a user: the configuration wanted snapshots of a store on ext4, and nothing said that
/// there would be none.
#[test]
fn a_history_that_cannot_be_kept_is_announced_by_the_mount() {
    needs_mounts!();
    let fixture = Fixture::new();
    let config = fixture.config(THREE);
    let mounted = fixture.try_mount(&["--config", config.to_str().unwrap()]);
    succeeds(&mounted);
    let said = message(&mounted);
    assert!(said.contains("no history"), "{said}");
    assert!(
        said.contains("only btrfs has snapshots") || said.contains("subvolume of btrfs"),
        "{said}"
    );
    fixture.umount();
}
