//! The policy decides when the filesystem commits.

use std::fs;
use std::time::Duration;

use super::{BTRFS, Disk, EXT4, unmount};
use crate::fixture::{PROGRAM, mobifs, needs_mounts, succeeds, wait_until};

/// Commits 0.2 s after the first change.
const QUICK: &str = "[defaults]\npolicy = \"interval\"\ninterval_ms = 200\n";
/// Commits by itself only when something has become old.
const SLOW: &str = "user_events = \"none\"\n[defaults]\npolicy = \"interval\"\n";

#[test]
fn changes_are_committed_when_the_policy_says_so() {
    needs_mounts!();
    for made in [EXT4, BTRFS] {
        let Some(disk) = Disk::new(made) else {
            continue;
        };
        disk.steer(QUICK);
        let directory = disk.at.join("directory");
        let before = disk.commits();
        fs::create_dir(&directory).unwrap();
        wait_until(|| disk.commits() > before);
        let before = disk.commits();
        fs::write(directory.join("file"), [7; 100_000]).unwrap();
        wait_until(|| disk.commits() > before);
        let before = disk.commits();
        fs::rename(&directory, disk.at.join("renamed")).unwrap();
        wait_until(|| disk.commits() > before);
        let status = disk.status();
        assert!(
            status["store"]["commits"].as_u64().unwrap() >= 3,
            "{status}"
        );
        let policy = &status["apps"][0]["policy"];
        assert_eq!(
            (&policy["name"], &policy["interval_ms"]),
            (&"interval".into(), &200.into())
        );
    }
}

/// A filesystem at rest is not committed again and again: that would wake its device.
#[test]
fn nothing_is_committed_where_nothing_has_changed() {
    needs_mounts!();
    for made in [EXT4, BTRFS] {
        let Some(disk) = Disk::new(made) else {
            continue;
        };
        disk.steer(QUICK);
        fs::write(disk.at.join("file"), "content").unwrap();
        wait_until(|| disk.status()["apps"][0]["transactions"]["open"] == 0);
        // What the kernel does after a commit of its own accord.
        succeeds(&mobifs(&["sync"], &disk.at));
        let before = disk.commits();
        std::thread::sleep(Duration::from_millis(1500));
        assert_eq!(disk.commits(), before);
    }
}

#[test]
fn sync_commits_everything_before_it_returns() {
    needs_mounts!();
    for made in [EXT4, BTRFS] {
        let Some(disk) = Disk::new(made) else {
            continue;
        };
        disk.steer(SLOW);
        for words in [
            &["sync"][..],
            &["sync", "--commit-only"],
            &["sync", "--app", "."],
        ] {
            let before = disk.commits();
            fs::write(disk.at.join("file"), words.concat()).unwrap();
            succeeds(&mobifs(words, &disk.at));
            assert!(disk.commits() > before, "{words:?}");
            let app = &disk.status()["apps"][0];
            assert!(app["last_checkpoint"].is_object(), "{app}");
            assert_eq!(app["transactions"]["open"], 0, "{app}");
        }
    }
}

/// A commit by `syncfs` wrote everything twice, to the journal and to its place.
#[test]
fn a_commit_of_ext4_writes_content_once() {
    needs_mounts!();
    const BYTES: usize = 2 << 20;
    let Some(disk) = Disk::new(EXT4) else { return };
    disk.steer(SLOW);
    fs::write(disk.at.join("file"), vec![1; BYTES]).unwrap();
    succeeds(&mobifs(&["sync"], &disk.at));
    // Another program may call sync(2), which writes it to its place as well.
    let written_once = (0..50).any(|round| {
        fs::write(disk.at.join("file"), vec![round; BYTES]).unwrap();
        let before = disk.device_bytes();
        succeeds(&mobifs(&["sync", "--commit-only"], &disk.at));
        let committed = disk.device_bytes() - before;
        (BYTES as u64..BYTES as u64 * 3 / 2).contains(&committed)
    });
    assert!(written_once);
}

#[test]
fn what_is_at_risk_is_shown() {
    needs_mounts!();
    for made in [EXT4, BTRFS] {
        let Some(disk) = Disk::new(made) else {
            continue;
        };
        disk.steer(SLOW);
        succeeds(&mobifs(&["sync"], &disk.at));
        fs::write(disk.at.join("file"), vec![1; 1 << 20]).unwrap();
        wait_until(|| disk.status()["apps"][0]["transactions"]["open"] == 1);
        let status = disk.status();
        let native = &status["native"];
        if native["written_counter"] == "filesystem" {
            let at_risk = status["apps"][0]["bytes_at_risk"].as_u64().unwrap();
            assert!((900 << 10..4 << 20).contains(&at_risk), "{status}");
        } else {
            mobifs_skip::skip_part("the kernel does not count what is written to a filesystem");
        }
    }
}

/// Where /sys/fs/btrfs cannot be read, what was not seen counted as nothing, without a word.
#[test]
fn what_the_kernel_does_not_show_is_said() {
    needs_mounts!();
    let Some(disk) = Disk::new(BTRFS) else { return };
    disk.steer(SLOW);
    let status = disk.status();
    if status["native"]["not_counted"]
        .as_array()
        .is_some_and(Vec::is_empty)
    {
        disk.stop();
    } else {
        mobifs_skip::skip_part(format!("the kernel shows less here: {status}"));
    }
    // A daemon that sees nothing in its place.
    let log = disk.fixture.path("blind-log");
    let script = "mount -t tmpfs none /sys/fs/btrfs && exec \"$@\"";
    let mut daemon = std::process::Command::new("unshare");
    daemon
        .args([
            "--mount",
            "sh",
            "-c",
            script,
            "sh",
            PROGRAM,
            "steer",
            "--foreground",
            "--log",
        ])
        .args([&log, &disk.at]);
    let mut daemon = daemon.spawn().unwrap();
    wait_until(|| mobifs(&["status"], &disk.at).status.success());
    let status = disk.status();
    let said = status["native"]["not_counted"].to_string();
    assert!(said.contains("/sys/fs/btrfs"), "{status}");
    for missing in ["written to this btrfs alone", "commits of this btrfs"] {
        assert!(said.contains(missing), "{said}");
    }
    let shown = mobifs(&["status"], &disk.at);
    assert!(String::from_utf8_lossy(&shown.stdout).contains("/sys/fs/btrfs"));
    for _ in 0..3 {
        disk.status();
    }
    let log = fs::read_to_string(&log).unwrap();
    assert_eq!(log.matches("commits of this btrfs").count(), 1, "{log}");
    disk.stop();
    assert!(daemon.wait().unwrap().success());
}

/// What the device has after a commit, as after a power cut.
fn copy_of_device(disk: &Disk, name: &str) -> std::path::PathBuf {
    let copy = disk.fixture.path(name);
    fs::copy(disk.fixture.path("image"), &copy).unwrap();
    copy
}

#[test]
fn what_was_committed_is_there_after_a_power_cut() {
    needs_mounts!();
    for made in [EXT4, BTRFS] {
        let Some(mut disk) = Disk::new(made) else {
            continue;
        };
        disk.steer(SLOW);
        let (one, other) = (disk.at.join("one"), disk.at.join("other"));
        fs::write(&one, "old").unwrap();
        succeeds(&mobifs(&["sync"], &disk.at));
        fs::write(&one, [5; 200_000]).unwrap();
        fs::create_dir(&other).unwrap();
        fs::rename(&one, other.join("moved")).unwrap();
        succeeds(&mobifs(&["sync", "--commit-only"], &disk.at));
        let copy = copy_of_device(&disk, "copy");
        let at = disk.fixture.directory("after");
        // Two mounted btrfs of one identity are refused.
        disk.stop();
        unmount(&disk.at);
        disk.fixture
            .mount_other(&["-o", made.options, copy.to_str().unwrap()], &at);
        assert_eq!(fs::read(at.join("other/moved")).unwrap(), [5; 200_000]);
        assert!(!at.join("one").exists());
        unmount(&at);
    }
}

/// A page of a mapping, changed without a call.
struct Mapped {
    address: *mut u8,
}

impl Mapped {
    const BYTES: usize = 4096;

    fn new(path: &std::path::Path) -> Self {
        use rustix::mm::{MapFlags, ProtFlags, mmap};
        let mut options = fs::OpenOptions::new();
        let file = options.read(true).write(true).open(path).unwrap();
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let (start, bytes) = (std::ptr::null_mut(), Self::BYTES);
        // SAFETY: the kernel chooses a range that nothing else has.
        let address = unsafe { mmap(start, bytes, access, MapFlags::SHARED, file, 0) };
        Self {
            address: address.unwrap().cast(),
        }
    }

    fn set(&self, value: u8) {
        // SAFETY: the file has a page, so the first byte is there until the mapping goes.
        unsafe { self.address.write_volatile(value) };
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the range is the mapping's, and is used no more.
        let _gone = unsafe { rustix::mm::munmap(self.address.cast(), Self::BYTES) };
    }
}

/// Content of a mapping is no reported change, and on btrfs the kernel's own interval does not hold
/// for it: 41 s passed under `commit=5`.
#[test]
fn a_mapping_is_committed_at_the_limit_of_age() {
    needs_mounts!();
    for made in [EXT4, BTRFS] {
        let Some(disk) = Disk::new(made) else {
            continue;
        };
        let file = disk.at.join("file");
        fs::write(&file, [1; Mapped::BYTES]).unwrap();
        disk.steer("[defaults]\nage_max_ms = 1000\n");
        succeeds(&mobifs(&["sync"], &disk.at));
        let mapped = Mapped::new(&file);
        let own = || disk.status()["store"]["commits"].as_u64().unwrap();
        let (before, own_before) = (disk.commits(), own());
        mapped.set(7);
        if disk.is_btrfs() {
            // The kernel would do it, too, but later. Again and again, because another program may
            // call sync(2), which leaves nothing to commit.
            wait_until(|| {
                mapped.set(9);
                own() > own_before
            });
        } else {
            wait_until(|| disk.commits() > before);
        }
    }
}

/// The status named the daemon's own last one, which may be much older than what is promised.
#[test]
fn the_last_commit_may_be_one_of_another_program() {
    needs_mounts!();
    for made in [EXT4, BTRFS] {
        let Some(disk) = Disk::new(made) else {
            continue;
        };
        disk.steer(SLOW);
        let last = || disk.status()["apps"][0]["last_checkpoint"]["time"].clone();
        let before = last();
        let file = fs::File::create(disk.at.join("file")).unwrap();
        file.sync_all().unwrap();
        wait_until(|| last() != before);
        let status = disk.status();
        let others = status["native"]["other_commits"].as_u64();
        assert!(others.unwrap() >= 1, "{status}");
    }
}
