//! What happens around the machine, as a steered filesystem takes it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use mobifs_daemon::EventTarget as _;
use mobifs_host::{MountEntry, mount_at};
use mobifs_native::{Filesystem, Steering};
use mobifs_steered::{Device, Directory};
use mobifs_volume::{BatterySource, Config};

/// An ext4 on a loop device that is steered by a thread.
struct Steered {
    steering: Arc<Steering>,
    thread: Option<JoinHandle<()>>,
    disk: Disk,
}

struct Disk {
    at: PathBuf,
    _base: tempfile::TempDir,
}

impl Disk {
    fn new() -> Option<Self> {
        let base = tempfile::tempdir().unwrap();
        let (image, at) = (base.path().join("image"), base.path().join("disk"));
        fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
        fs::create_dir(&at).unwrap();
        let runs = |command: &mut Command| {
            let done = command.output();
            done.is_ok_and(|done| done.status.success())
        };
        let mut make = Command::new("mkfs.ext4");
        make.args(["-q", "-J", "size=8", "-E", "lazy_itable_init=0"]);
        let mut mount = Command::new("mount");
        mount.args(["-o", "loop,data=journal"]).arg(&image).arg(&at);
        if !runs(make.arg(&image)) || !runs(&mut mount) {
            mobifs_skip::skip("ext4 cannot be made or mounted here");
            return None;
        }
        let at = at.canonicalize().unwrap();
        Some(Self { at, _base: base })
    }

    fn mount(&self) -> MountEntry {
        mount_at(&self.at).unwrap().unwrap()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ended = Command::new("umount").arg("-l").arg(&self.at).output();
    }
}

impl Steered {
    fn new(config: &str) -> Option<Self> {
        if !mobifs_skip::is_root() {
            return None;
        }
        let disk = Disk::new()?;
        let mount = disk.mount();
        let filesystem = Filesystem::of(&mount).unwrap().unwrap();
        let config = Config::parse(config, Path::new("test")).unwrap();
        let steering = Steering::begin(&mount, &filesystem, &[], &config, None).unwrap();
        let steering = Arc::new(steering);
        let running = Arc::clone(&steering);
        let thread = std::thread::spawn(move || running.run().unwrap());
        Some(Self {
            steering,
            thread: Some(thread),
            disk,
        })
    }

    /// By another process: changes of the daemon's own are no changes.
    fn write(&self, content: &str) {
        let mut write = Command::new("sh");
        write.args(["-c", "printf '%s' \"$1\" > \"$0\""]);
        write.arg(self.disk.at.join("file")).arg(content);
        assert!(write.status().unwrap().success());
    }

    fn commits(&self) -> u64 {
        self.steering.filesystem().commits().unwrap()
    }

    fn is_in_force(&self) -> bool {
        let mount = self.disk.mount();
        let device = Device {
            major: mount.device_major,
            minor: mount.device_minor,
        };
        let steered = Directory::standard().find(device);
        steered.is_some_and(|steered| steered.is_in_force())
    }
}

impl Drop for Steered {
    fn drop(&mut self) {
        self.steering.end().unwrap();
        self.thread.take().unwrap().join().unwrap();
    }
}

/// Ends when the condition holds; if it never does, the runner's limit ends us.
fn wait_until(condition: impl Fn() -> bool) {
    while !condition() {
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}

#[test]
fn on_a_low_battery_everything_is_committed_and_calls_wait() {
    let Some(steered) = Steered::new("") else {
        return;
    };
    assert!(steered.is_in_force());
    steered.write("one");
    let before = steered.commits();
    steered
        .steering
        .set_battery_low(BatterySource::Kernel, true);
    assert!(steered.commits() > before);
    assert!(!steered.is_in_force());
    let status = steered.steering.status();
    assert!(status.battery_low);
    assert_eq!(status.native.unwrap().promise_withdrawn, None);
    steered
        .steering
        .set_battery_low(BatterySource::Upower, true);
    steered
        .steering
        .set_battery_low(BatterySource::Kernel, false);
    assert!(!steered.is_in_force(), "one still says so");
    steered
        .steering
        .set_battery_low(BatterySource::Upower, false);
    assert!(steered.is_in_force());
}

/// The thread that commits was not woken where a status had taken the report of the first change.
#[test]
fn a_change_that_a_status_has_seen_is_committed() {
    let Some(steered) = Steered::new("[defaults]\ninterval_ms = 1\n") else {
        return;
    };
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::SeqCst) {
                steered.steering.status();
            }
        });
        for round in 0..50 {
            let before = steered.commits();
            steered.write(&round.to_string());
            wait_until(|| steered.commits() > before);
        }
        is_done.store(true, Ordering::SeqCst);
    });
}

#[test]
fn everything_is_committed_before_the_machine_sleeps() {
    let Some(steered) = Steered::new("") else {
        return;
    };
    steered.write("one");
    let before = steered.commits();
    steered.steering.power_goes();
    assert!(steered.commits() > before);
}

/// While the user is at work, what the policy has closed waits; when nothing waits for a user, it is
/// committed.
#[test]
fn commits_wait_for_the_user_up_to_the_limits() {
    let Some(steered) = Steered::new("[defaults]\ninterval_ms = 1\n") else {
        return;
    };
    steered.steering.set_screen(false);
    steered.write("in standby");
    let closed = || steered.steering.status().apps[0].transactions.closed;
    wait_until(|| closed() == 1);
    let before = steered.commits();
    steered.steering.set_screen(true);
    wait_until(|| steered.commits() > before);
}

#[test]
fn short_memory_writes_back_what_is_dirty() {
    let Some(steered) = Steered::new("") else {
        return;
    };
    let before = steered.commits();
    steered.steering.flush_under_pressure();
    assert_eq!(steered.commits(), before, "there was nothing to flush");
    fs::write(steered.disk.at.join("file"), vec![7; 4 << 20]).unwrap();
    wait_until(|| {
        let status = steered.steering.status();
        status.memory.used_bytes >= 2 << 20
            || steered.steering.filesystem().commits() > Some(before)
    });
    steered.steering.flush_under_pressure();
    assert!(steered.commits() > before);
}
