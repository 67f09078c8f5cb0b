//! What is missing is said in sentences, and nothing is changed.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use super::{BTRFS, Disk, EXT4, Made, mount_line};
use crate::fixture::{Fixture, fails, mobifs, needs_mounts, succeeds};

fn check(place: &Path) -> (Output, String) {
    let output = mobifs(&["steer", "--check"], place);
    let said = String::from_utf8(output.stdout.clone()).unwrap();
    (output, said)
}

#[track_caller]
fn says(said: &str, needles: &[&str]) {
    for needle in needles {
        assert!(said.contains(needle), "{said:?} does not say {needle:?}");
    }
}

/// A line break in a path made lines of its own.
#[test]
fn each_sentence_is_one_line() {
    needs_mounts!();
    let Some(mut disk) = Disk::new(EXT4) else {
        return;
    };
    let second = disk.fixture.directory("two\nlines");
    let shown = disk.at.display().to_string();
    disk.fixture.mount_other(&["--bind", &shown], &second);
    let (output, said) = check(&second);
    succeeds(&output);
    assert!(
        !said.lines().any(|line| line.starts_with("lines")),
        "{said}"
    );
    disk.steer("");
    let (output, said) = check(&second);
    succeeds(&output);
    assert_eq!(said.lines().count(), 1, "{said}");
}

#[test]
fn what_can_be_steered_is_said_to_be() {
    needs_mounts!();
    for (made, needles) in [
        (
            EXT4,
            &[
                "Steering sets the mount options commit=30 and restores commit=5",
                "a fault of the kernel",
                "extent_max_zeroout_kb in /sys/fs/ext4 to 0 and restores 32",
            ][..],
        ),
        (
            BTRFS,
            &[
                "flushoncommit,notreelog",
                "noflushoncommit,treelog",
                "not one point in time",
            ],
        ),
    ] {
        let Some(disk) = Disk::new(made) else {
            continue;
        };
        let before = disk.options();
        let inside = disk.at.join("inside");
        fs::create_dir(&inside).unwrap();
        for place in [&disk.at, &inside] {
            let (output, said) = check(place);
            succeeds(&output);
            says(&said, needles);
            says(&said, &["can be steered: `mobifs steer"]);
        }
        assert_eq!(disk.options(), before);
        assert!(!disk.is_in_force());
    }
}

#[test]
fn an_ext4_that_journals_no_content_is_told_how_to() {
    needs_mounts!();
    let ordered = Made {
        options: "loop,data=ordered",
        ..EXT4
    };
    let Some(disk) = Disk::new(ordered) else {
        return;
    };
    let before = disk.options();
    let (output, said) = check(&disk.at);
    fails(&output, 1, &["cannot be steered as it is"]);
    let fstab = format!("{} ext4 data=journal 0 2", disk.at.display());
    says(
        &said,
        &[
            "data=ordered",
            "no remount",
            &fstab,
            "tune2fs -o journal_data /dev/loop",
        ],
    );
    fails(&disk.try_steer(&[]), 1, &["data=ordered"]);
    assert_eq!(disk.options(), before);
}

#[test]
fn other_filesystems_are_refused_with_the_reason() {
    needs_mounts!();
    let xfs = Made {
        make: &["mkfs.xfs", "-q", "-f"],
        options: "loop",
        mib: 320,
    };
    if let Some(disk) = Disk::new(xfs) {
        let (output, said) = check(&disk.at);
        fails(&output, 1, &["cannot be steered"]);
        says(&said, &["is xfs", "another moment", "mobifs mount"]);
        fails(&disk.try_steer(&[]), 1, &["is xfs"]);
    }
    let ext2 = Made {
        make: &["mkfs.ext4", "-q", "-O", "^has_journal"],
        options: "loop",
        mib: 32,
    };
    if let Some(disk) = Disk::new(ext2) {
        says(
            &check(&disk.at).1,
            &["has no journal", "tune2fs -J size=7 /dev/loop"],
        );
        fails(&disk.try_steer(&[]), 1, &["has no journal"]);
    }
    let mut fixture = Fixture::new();
    let at = fixture.directory("memory");
    fixture.mount_other(&["-t", "tmpfs", "none"], &at);
    fails(&mobifs(&["steer"], &at), 1, &["is tmpfs", "in memory"]);
    fixture.mount(&[]);
    fails(
        &mobifs(&["steer"], &fixture.mountpoint),
        1,
        &["is a MobiFS mount"],
    );
    fixture.umount();
    fails(
        &mobifs(&["steer", "--check"], Path::new("/nowhere")),
        1,
        &["cannot examine /nowhere"],
    );
}

/// Found by strangers: it was told to make a journal that tune2fs refuses.
#[test]
fn a_filesystem_too_small_for_a_journal_is_called_so() {
    needs_mounts!();
    for make in [
        &["mkfs.ext4", "-q", "-b", "1024", "-J", "size=1"][..],
        &["mkfs.ext4", "-q", "-O", "^has_journal"],
    ] {
        let tiny = Made {
            make,
            mib: 12,
            ..EXT4
        };
        let Some(disk) = Disk::new(Made {
            options: if make.contains(&"^has_journal") {
                "loop"
            } else {
                tiny.options
            },
            ..tiny
        }) else {
            continue;
        };
        let (output, said) = check(&disk.at);
        fails(&output, 1, &["cannot be steered as it is"]);
        says(&said, &["a journal of 4 MiB", "steer a larger filesystem"]);
        assert!(!said.contains("tune2fs"), "{said}");
    }
}

/// Found by strangers: the line for /etc/fstab mounted the whole filesystem in the place of the part.
#[test]
fn a_bind_mount_of_a_part_is_told_how_to_mount_the_filesystem() {
    needs_mounts!();
    let ordered = Made {
        options: "loop,data=ordered",
        ..EXT4
    };
    let Some(mut disk) = Disk::new(ordered) else {
        return;
    };
    let inside = disk.at.join("inside");
    fs::create_dir(&inside).unwrap();
    let bind = disk.fixture.directory("bind");
    disk.fixture
        .mount_other(&["--bind", inside.to_str().unwrap()], &bind);
    let (_, said) = check(&bind);
    let fstab = format!("{} ext4 data=journal 0 2", disk.at.display());
    says(&said, &[&fstab, "is a bind mount of /inside"]);
    super::unmount(&disk.at);
    says(&check(&bind).1, &["MOUNTPOINT ext4 data=journal 0 2"]);
}

#[test]
fn what_is_no_whole_filesystem_is_refused() {
    needs_mounts!();
    let Some(mut disk) = Disk::new(EXT4) else {
        return;
    };
    let inside = disk.at.join("inside");
    fs::create_dir(&inside).unwrap();
    let shown = disk.at.display().to_string();
    fails(
        &mobifs(&["steer"], &inside),
        1,
        &["lies in the filesystem", &shown],
    );
    let bind = disk.fixture.directory("bind");
    disk.fixture
        .mount_other(&["--bind", inside.to_str().unwrap()], &bind);
    fails(
        &mobifs(&["steer"], &bind),
        1,
        &["bind mount of /inside", &format!("name {shown}")],
    );
    // A second mount of the whole is the same filesystem.
    let second = disk.fixture.directory("second");
    disk.fixture.mount_other(&["--bind", &shown], &second);
    says(
        &check(&disk.at).1,
        &["is also mounted at", second.to_str().unwrap()],
    );
    disk.steer("");
    fails(
        &mobifs(&["steer"], &second),
        3,
        &["steered already, by process"],
    );
    // What there is now is not what it restores.
    let (_, said) = check(&disk.at);
    assert!(!said.contains("restores"), "{said}");
    disk.stop();
}

/// A check of a steered filesystem said nothing but that it is steered.
#[test]
fn another_configuration_is_checked_while_it_is_steered() {
    needs_mounts!();
    let Some(disk) = Disk::new(EXT4) else { return };
    disk.steer("[defaults]\nage_max_ms = 12000\n");
    let during = disk.options();
    let (output, said) = check(&disk.at);
    succeeds(&output);
    says(&said, &["is steered already", "--config FILE"]);
    assert!(!said.contains("mount options"), "{said}");
    let file = disk.fixture.path("other.toml");
    let config = file.to_str().unwrap();
    let checked = |text: &str| {
        fs::write(&file, text).unwrap();
        let output = mobifs(&["steer", "--check", "--config", config], &disk.at);
        let said = String::from_utf8(output.stdout.clone()).unwrap();
        says(&said, &["is steered already"]);
        (output, said)
    };
    let (output, said) = checked("[defaults]\nage_max_ms = 7000\n[history]\nkeep_count = 3\n");
    succeeds(&output);
    let reload = format!("`mobifs reload --config {config} {}`", disk.at.display());
    says(
        &said,
        &[
            "sets the mount options commit=7; now they are commit=12",
            "only btrfs has snapshots",
            &reload,
        ],
    );
    let (output, said) = checked("[defaults]\nage_max_ms = 12000\n");
    succeeds(&output);
    says(&said, &["The mount options are as steering wants them"]);
    let (output, said) = checked("[defaults]\nage_max_ms = 999\n");
    fails(
        &output,
        2,
        &["cannot be steered as this configuration wants it"],
    );
    says(
        &said,
        &["Missing: the configuration wants", "at least 1000"],
    );
    assert_eq!(disk.options(), during);
}

#[test]
fn a_subvolume_is_a_whole_filesystem() {
    needs_mounts!();
    let Some(mut disk) = Disk::new(BTRFS) else {
        return;
    };
    let made = Command::new("btrfs")
        .args(["-q", "subvolume", "create"])
        .arg(disk.at.join("sub"))
        .output()
        .unwrap();
    succeeds(&made);
    let device = mount_line(&disk.at);
    let device = device.rsplit(' ').nth(1).unwrap().to_owned();
    let sub = disk.fixture.directory("sub");
    disk.fixture
        .mount_other(&["-o", "subvol=sub", &device], &sub);
    succeeds(&mobifs(&["steer", "--check"], &sub));
    fs::create_dir(sub.join("part")).unwrap();
    let bind = disk.fixture.directory("bind");
    let part = sub.join("part");
    disk.fixture
        .mount_other(&["--bind", part.to_str().unwrap()], &bind);
    fails(&mobifs(&["steer"], &bind), 1, &["bind mount of /sub/part"]);
}

#[test]
fn what_would_break_the_promise_is_refused() {
    needs_mounts!();
    if let Some(disk) = Disk::new(EXT4) {
        let config = disk.fixture.config("[defaults]\nage_max_ms = 999\n");
        let config = ["--config", config.to_str().unwrap()];
        fails(&disk.try_steer(&config), 2, &["999 ms", "at least 1000"]);
    }
    for (made, needle) in [
        (
            Made {
                options: "loop,data=journal,nobarrier",
                ..EXT4
            },
            "without barriers",
        ),
        (
            Made {
                options: "loop,ro",
                ..EXT4
            },
            "read-only",
        ),
        (
            Made {
                options: "loop,nobarrier",
                ..BTRFS
            },
            "without barriers",
        ),
        (
            Made {
                options: "loop,nodatacow",
                ..BTRFS
            },
            "nodatacow",
        ),
        (
            Made {
                make: &["mkfs.ext4", "-q", "-b", "1024", "-J", "size=1"],
                mib: 32,
                ..EXT4
            },
            "takes transactions of",
        ),
    ] {
        let Some(disk) = Disk::new(made) else {
            continue;
        };
        let before = disk.options();
        fails(&disk.try_steer(&[]), 1, &[needle]);
        assert_eq!(disk.options(), before);
    }
}

/// It advised a journal that was larger than the filesystem.
#[test]
fn a_small_filesystem_is_not_advised_a_large_journal() {
    needs_mounts!();
    for (mib, needle) in [
        (96, "set staleness_max_bytes = "),
        (2048, "the journal needs 400 MiB"),
    ] {
        let Some(disk) = Disk::new(Made { mib, ..EXT4 }) else {
            return;
        };
        let config = disk
            .fixture
            .config("[defaults]\nstaleness_max_bytes = \"100M\"\n");
        let words = ["steer", "--config", config.to_str().unwrap(), "--check"];
        let output = mobifs(&words, &disk.at);
        succeeds(&output);
        says(&String::from_utf8_lossy(&output.stdout), &[needle]);
    }
}

/// It was found out when the mount was changed: in the middle of a start or a reload.
#[test]
fn an_age_that_is_no_commit_interval_is_refused_before_anything_changes() {
    needs_mounts!();
    for made in [EXT4, BTRFS] {
        let Some(disk) = Disk::new(made) else {
            continue;
        };
        let before = disk.options();
        let longest = 2_147_483_000_u64;
        let limit = longest.to_string();
        for age_max_ms in [longest + 1_000, u64::MAX / 2] {
            let text = format!("[defaults]\nage_max_ms = {age_max_ms}\n");
            let config = disk.fixture.config(&text);
            let words = ["--config", config.to_str().unwrap()];
            let refusal = [age_max_ms.to_string(), limit.clone()];
            let refusal = [refusal[0].as_str(), refusal[1].as_str(), "age_max_ms"];
            let checked = mobifs(&["steer", "--check", words[0], words[1]], &disk.at);
            fails(&checked, 2, &refusal);
            fails(&disk.try_steer(&words), 2, &refusal);
            assert_eq!(disk.options(), before);
            assert!(disk.registration().is_none());
            disk.steer("");
            let during = disk.options();
            fs::write(&config, &text).unwrap();
            fails(&mobifs(&["reload"], &disk.at), 2, &refusal);
            assert_eq!(disk.options(), during);
            let status = disk.status();
            assert_eq!(status["apps"][0]["age_max_ms"], 30_000);
            assert_eq!(status["native"]["calls_return_at_once"], disk.keeps_order());
            let age = age_max_ms.to_string();
            let set = ["set", "--app", ".", "--age-max-ms", &age];
            fails(&mobifs(&set, &disk.at), 2, &["age_max_ms"]);
            assert_eq!(disk.options(), during);
            disk.stop();
        }
        // The longest that is taken is taken by the kernel.
        disk.steer(&format!("[defaults]\nage_max_ms = {longest}\n"));
        assert!(disk.options().0.contains("commit=2147483"));
        disk.stop();
        assert_eq!(disk.options(), before);
    }
}
