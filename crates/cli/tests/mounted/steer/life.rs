//! Daemons that end, in every way.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::{BTRFS, Disk, EXT4, Made, mount_line, unmount};
use crate::fixture::{PROGRAM, fails, message, mobifs, needs_mounts, succeeds, wait_until};

pub(super) fn pid(disk: &Disk) -> Pid {
    let pid = disk.status()["daemon_pid"].as_i64().unwrap();
    Pid::from_raw(i32::try_from(pid).unwrap()).unwrap()
}

/// Where the daemon keeps what was before.
fn note_of(disk: &Disk) -> PathBuf {
    let line = mount_line(&disk.at);
    let device = line.split(' ').nth(2).unwrap().replace(':', "-");
    let note = Path::new("/run/mobifs").join(format!("steer-{device}.json"));
    assert!(note.exists(), "{}", note.display());
    note
}

#[test]
fn a_signal_restores_the_mount() {
    needs_mounts!();
    for signal in [Signal::TERM, Signal::INT] {
        let Some(disk) = Disk::new(EXT4) else { return };
        let before = disk.options();
        disk.steer("");
        kill_process(pid(&disk), signal).unwrap();
        wait_until(|| disk.options() == before);
        wait_until(|| !mobifs(&["status"], &disk.at).status.success());
        assert!(!disk.is_in_force());
    }
}

/// An attacker steered in a shell that `mobifs run` had begun: the supervisor answered the daemon's
/// own calls, and what `mobifs sync` had made durable was gone after a power cut. So it was with the
/// store of a mount.
#[test]
fn daemons_are_refused_under_mobifs_run() {
    needs_mounts!();
    let (Some(disk), Some(other)) = (Disk::new(EXT4), Disk::new(EXT4)) else {
        return;
    };
    disk.steer("");
    let run = |words: &[&Path]| {
        let mut command = Command::new(PROGRAM);
        command.args(["run", "--mechanism", "seccomp", "--", PROGRAM]);
        command.args(words).output().unwrap()
    };
    let refused = ["under `mobifs run`", "start it outside"];
    fails(&run(&["steer".as_ref(), &other.at]), 2, &refused);
    let fixture = &disk.fixture;
    let mount = [
        "mount".as_ref(),
        fixture.store.as_path(),
        &fixture.mountpoint,
    ];
    fails(&run(&mount), 2, &refused);
    // What asks a daemon works there.
    succeeds(&run(&["sync".as_ref(), &disk.at]));
}

#[test]
fn the_foreground_steers_until_it_is_ended() {
    needs_mounts!();
    let Some(disk) = Disk::new(EXT4) else { return };
    let before = disk.options();
    let mut daemon = Command::new(PROGRAM)
        .args(["steer", "--foreground"])
        .arg(&disk.at)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_until(|| disk.is_in_force());
    wait_until(|| mobifs(&["status"], &disk.at).status.success());
    disk.stop();
    assert!(daemon.wait().unwrap().success());
    assert_eq!(disk.options(), before);
}

/// A service that systemd started after the daemon's was refused, as nothing was steered yet.
#[test]
fn the_service_manager_hears_when_it_is_steered() {
    needs_mounts!();
    let Some(disk) = Disk::new(EXT4) else { return };
    let path = disk.fixture.path("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    let patience = Duration::from_secs(60);
    manager.set_read_timeout(Some(patience)).unwrap();
    let mut daemon = Command::new(PROGRAM)
        .args(["steer", "--foreground"])
        .arg(&disk.at)
        .env("NOTIFY_SOCKET", &path)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut message = [0; 256];
    let length = manager.recv(&mut message).unwrap();
    assert!(disk.is_in_force());
    let message = String::from_utf8_lossy(&message[..length]).into_owned();
    let status = format!("STATUS=steers {}", disk.at.display());
    assert_eq!(message, format!("READY=1\n{status}"));
    disk.stop();
    assert!(daemon.wait().unwrap().success());
}

/// The kernel keeps the promise of a daemon that was killed; what was before is not forgotten.
#[test]
fn a_killed_daemon_leaves_its_interval_and_the_way_back() {
    needs_mounts!();
    for made in [EXT4, BTRFS] {
        let Some(disk) = Disk::new(made) else {
            continue;
        };
        let before = disk.options();
        disk.steer("[defaults]\nage_max_ms = 12000\n");
        let during = disk.options();
        let killed = pid(&disk);
        kill_process(killed, Signal::KILL).unwrap();
        wait_until(|| disk.registration().is_none());
        assert_eq!(disk.options(), during);
        let shown = disk.at.display().to_string();
        let steer = format!("mobifs steer {shown}");
        let stop = format!("mobifs steer --stop {shown}");
        wait_until(|| !mobifs(&["status"], &disk.at).status.success());
        fails(&mobifs(&["status"], &disk.at), 5, &[&steer, &stop]);
        // The next daemon knows what was before.
        disk.steer("[defaults]\nage_max_ms = 9000\n");
        assert_eq!(disk.is_in_force(), disk.keeps_order());
        let next = pid(&disk);
        assert_ne!(next, killed);
        kill_process(next, Signal::KILL).unwrap();
        wait_until(|| disk.registration().is_none());
        let stopped = mobifs(&["steer", "--stop"], &disk.at);
        succeeds(&stopped);
        let said = message(&stopped);
        assert!(said.contains("its mount options are restored"), "{said}");
        assert_eq!(disk.options(), before);
        fails(
            &mobifs(&["steer", "--stop"], &disk.at),
            5,
            &["is not steered"],
        );
    }
}

/// It was refused: the daemon that was dying counted as one that steers.
#[test]
fn a_daemon_can_follow_another_one_right_after_its_kill() {
    needs_mounts!();
    let Some(disk) = Disk::new(EXT4) else { return };
    disk.steer("");
    for _ in 0..5 {
        kill_process(pid(&disk), Signal::KILL).unwrap();
        succeeds(&disk.try_steer(&[]));
    }
    disk.stop();
}

/// `steer --stop` said that all is well, and what the program had made durable was gone.
#[test]
fn what_a_killed_daemon_s_filesystem_cannot_commit_is_an_error_of_stop() {
    needs_mounts!();
    for (options, fails_to_commit) in [
        ("loop,data=journal,errors=remount-ro", true),
        ("loop,data=journal,errors=continue", false),
    ] {
        let Some(disk) = Disk::new(Made { options, ..EXT4 }) else {
            return;
        };
        let before = disk.options();
        disk.steer("");
        fs::write(disk.at.join("file"), "content").unwrap();
        kill_process(pid(&disk), Signal::KILL).unwrap();
        wait_until(|| disk.registration().is_none());
        if fails_to_commit {
            meet_error(&disk);
        }
        let stopped = mobifs(&["steer", "--stop"], &disk.at);
        let said = message(&stopped);
        assert_eq!(stopped.status.success(), !fails_to_commit, "{said}");
        assert_eq!(said.contains("could not commit"), fails_to_commit, "{said}");
        assert!(said.contains("is gone"), "{said}");
        if !fails_to_commit {
            assert!(said.contains("its mount options are restored"), "{said}");
            assert_eq!(disk.options(), before);
        }
    }
}

/// A program that had found the registration of a daemon went on by it for ever after the daemon was
/// killed. Now the daemon renews its promise, also where nothing happens, and it lapses.
#[test]
fn a_promise_lapses_unless_a_daemon_renews_it() {
    needs_mounts!();
    let Some(disk) = Disk::new(EXT4) else { return };
    disk.steer("");
    let found = disk.registration().unwrap();
    let at_first = found.record().valid_until_s();
    wait_until(|| found.record().valid_until_s() > at_first);
    assert!(found.is_in_force());
    kill_process(pid(&disk), Signal::KILL).unwrap();
    wait_until(|| !found.is_in_force());
}

/// Lets an ext4 meet an error.
fn meet_error(disk: &Disk) {
    let device = mount_line(&disk.at);
    let device = Path::new(device.rsplit(' ').nth(1).unwrap());
    let trigger = Path::new("/sys/fs/ext4").join(device.file_name().unwrap());
    fs::write(trigger.join("trigger_fs_error"), "a test\n").unwrap();
}

/// Found by strangers: the log had the same line every 5 s.
#[test]
fn a_failure_that_lasts_is_logged_once() {
    needs_mounts!();
    let made = Made {
        options: "loop,data=journal,errors=remount-ro",
        ..EXT4
    };
    let Some(disk) = Disk::new(made) else { return };
    disk.steer("");
    meet_error(&disk);
    for _ in 0..3 {
        fails(&mobifs(&["sync"], &disk.at), 1, &["could not commit"]);
    }
    let log = disk.fixture.log();
    assert_eq!(log.matches("could not commit").count(), 1, "{log}");
}

/// An error was found by the next look at the mount options, up to ten seconds later, and until then
/// calls for durability returned at once.
#[test]
fn an_error_that_the_kernel_reports_withdraws_the_promise() {
    needs_mounts!();
    for options in [
        "loop,data=journal,errors=remount-ro",
        "loop,data=journal,errors=continue",
    ] {
        let Some(disk) = Disk::new(Made { options, ..EXT4 }) else {
            return;
        };
        disk.steer("");
        assert!(disk.is_in_force());
        meet_error(&disk);
        wait_until(|| !disk.is_in_force());
        let log = fs::read_to_string(disk.fixture.path("log")).unwrap();
        assert!(log.contains("the kernel has reported an error"), "{log}");
        // A commit that succeeds says that the filesystem goes on.
        let goes_on = options.ends_with("continue");
        assert_eq!(mobifs(&["sync"], &disk.at).status.success(), goes_on);
        assert_eq!(disk.is_in_force(), goes_on);
    }
}

/// `syncfs` says that everything is committed where the filesystem has failed and become read-only.
#[test]
fn a_filesystem_that_fails_withdraws_the_promise() {
    needs_mounts!();
    let failing = Made {
        options: "loop,data=journal,errors=remount-ro",
        ..EXT4
    };
    let Some(disk) = Disk::new(failing) else {
        return;
    };
    disk.steer("");
    fs::write(disk.at.join("file"), "content").unwrap();
    meet_error(&disk);
    fails(&mobifs(&["sync"], &disk.at), 1, &["Read-only"]);
    let status = disk.status();
    let why = status["native"]["promise_withdrawn"].as_str().unwrap();
    assert!(why.contains("read-only"), "{why}");
    assert!(!disk.is_in_force());
}

/// What another program has set after a daemon was killed stays; the rest goes back.
#[test]
fn the_next_daemon_restores_what_the_killed_one_has_changed() {
    needs_mounts!();
    let Some(disk) = Disk::new(BTRFS) else { return };
    disk.steer("");
    kill_process(pid(&disk), Signal::KILL).unwrap();
    wait_until(|| disk.registration().is_none());
    let mut mount = Command::new("mount");
    mount.args(["-o", "remount,commit=3"]).arg(&disk.at);
    succeeds(&mount.output().unwrap());
    disk.steer("");
    disk.stop();
    let (line, _) = disk.options();
    assert!(line.contains("commit=3"), "{line}");
    assert!(
        !line.contains("flushoncommit") && !line.contains("notreelog"),
        "{line}"
    );
}

#[test]
fn a_filesystem_has_one_daemon() {
    needs_mounts!();
    let Some(disk) = Disk::new(EXT4) else { return };
    disk.steer("");
    let shown = disk.options();
    let stop = format!("mobifs steer --stop {}", disk.at.display());
    fails(&disk.try_steer(&[]), 3, &["steered already", &stop]);
    assert_eq!(disk.options(), shown);
    assert!(disk.is_in_force());
}

#[test]
fn a_filesystem_that_leaves_the_tree_ends_its_daemon() {
    needs_mounts!();
    let Some(disk) = Disk::new(EXT4) else { return };
    disk.steer("");
    let daemon = pid(&disk);
    let directory = format!("/proc/{}", daemon.as_raw_nonzero());
    let note = note_of(&disk);
    let written = fs::read(&note).unwrap();
    let unmounted = Command::new("umount")
        .arg("-l")
        .arg(&disk.at)
        .output()
        .unwrap();
    succeeds(&unmounted);
    wait_until(|| !Path::new(&directory).exists());
    // A later mount of another test may have the same device, and its daemon a note of its own.
    let now = fs::read(&note).unwrap_or_default();
    assert!(
        now.is_empty() || now != written,
        "{} is left",
        note.display()
    );
}

/// It failed because the daemon was dead when the command asked it.
#[test]
fn stop_restores_right_after_a_kill() {
    needs_mounts!();
    for _ in 0..8 {
        let Some(disk) = Disk::new(EXT4) else { return };
        let before = disk.options();
        disk.steer("");
        kill_process(pid(&disk), Signal::KILL).unwrap();
        disk.stop();
        assert_eq!(disk.options(), before);
    }
}

/// The control socket and the registration stayed, so that the mount was taken for one whose daemon
/// is gone, also when it was another one with the same device number.
#[test]
fn stop_after_a_kill_leaves_nothing_behind() {
    needs_mounts!();
    for made in [EXT4, BTRFS] {
        let Some(disk) = Disk::new(made) else {
            continue;
        };
        let before = disk.options();
        let line = mount_line(&disk.at);
        let device = line.split(' ').nth(2).unwrap().to_owned();
        let named = device.replace(':', "-");
        let left = [
            Path::new("/run/mobifs").join(format!("steered-{named}.sock")),
            Path::new("/run/mobifs").join(format!("steer-{named}.json")),
            Path::new(mobifs_steered::STANDARD_DIRECTORY).join(&device),
        ];
        let are_there = || left.iter().filter(|path| path.exists()).count();
        disk.steer("");
        assert_eq!(are_there(), 3);
        let found = disk.registration().unwrap();
        kill_process(pid(&disk), Signal::KILL).unwrap();
        disk.stop();
        assert!(!found.is_in_force(), "programs rely on it until it lapses");
        assert_eq!(disk.options(), before);
        assert_eq!(are_there(), 0, "{left:?}");
        fails(
            &mobifs(&["status"], &disk.at),
            5,
            &["is not a MobiFS mount"],
        );
        // Those of an earlier mount with the same number confuse neither stop nor start.
        for _ in 0..2 {
            disk.steer("");
            let note: Option<serde_json::Value> =
                serde_json::from_slice(&fs::read(&left[1]).unwrap()).ok();
            kill_process(pid(&disk), Signal::KILL).unwrap();
            wait_until(|| disk.registration().is_none());
            let mut note = note.unwrap();
            note["mount_id"] = u64::from(u32::MAX).into();
            note["filesystem"] = 1.into();
            fs::write(&left[1], note.to_string()).unwrap();
            let stopped = mobifs(&["steer", "--stop"], &disk.at);
            succeeds(&stopped);
            assert!(message(&stopped).contains("it has noted no options of this mount"));
            assert_eq!(are_there(), 0, "{left:?}");
        }
        disk.steer("");
        disk.stop();
    }
}

/// It removed what the daemon had left and said "is not steered", or left it where nothing was mounted.
#[test]
fn stop_after_a_kill_and_an_unmount_says_what_was_left() {
    needs_mounts!();
    let Some(disk) = Disk::new(EXT4) else { return };
    let stop = || mobifs(&["steer", "--stop"], &disk.at);
    let kill_and_unmount = || {
        disk.steer("");
        let note = note_of(&disk);
        let daemon = pid(&disk);
        kill_process(daemon, Signal::KILL).unwrap();
        wait_until(|| disk.registration().is_none());
        unmount(&disk.at);
        note
    };
    let says = |needles: &[&str], note: &Path| {
        let output = stop();
        succeeds(&output);
        let said = message(&output);
        let left = [
            "is gone",
            "registration, control socket, note of the mount options",
        ];
        for needle in needles.iter().chain(&left) {
            assert!(said.contains(needle), "{said}");
        }
        assert!(!note.exists());
    };
    let note = kill_and_unmount();
    says(&["nothing is mounted there now"], &note);
    fails(&stop(), 5, &["is not a mount point"]);
    disk.mount_again();
    let before = disk.options();
    fails(&stop(), 5, &["is not steered"]);
    let note = kill_and_unmount();
    disk.mount_again();
    says(&["it has noted no options of this mount"], &note);
    fails(&stop(), 5, &["is not steered"]);
    assert_eq!(disk.options().1, before.1);
}

/// "Is not a mount point" was said, and what the daemon had left stayed: the filesystem was mounted at another place,
/// so its number was that of a mount.
#[test]
fn stop_where_it_was_mounted_removes_what_was_left_although_it_is_mounted_anew_elsewhere() {
    needs_mounts!();
    let Some(mut disk) = Disk::new(EXT4) else {
        return;
    };
    disk.steer("");
    let note = note_of(&disk);
    kill_process(pid(&disk), Signal::KILL).unwrap();
    wait_until(|| disk.registration().is_none());
    let line = mount_line(&disk.at);
    let device = line.rsplit(' ').nth(1).unwrap().to_owned();
    // The number stays.
    let held = fs::File::open(&device).unwrap();
    unmount(&disk.at);
    let elsewhere = disk.fixture.directory("elsewhere");
    let words = ["-o", "data=journal", device.as_str()];
    disk.fixture.mount_other(&words, &elsewhere);
    drop(held);
    let stopped = mobifs(&["steer", "--stop"], &disk.at);
    succeeds(&stopped);
    let said = message(&stopped);
    for needle in [
        "is gone; nothing is mounted there now",
        "registration, control socket, note of the mount options",
    ] {
        assert!(said.contains(needle), "{said}");
    }
    assert!(!note.exists());
    let stop = || mobifs(&["steer", "--stop"], &disk.at);
    fails(&stop(), 5, &["is not a mount point"]);
    fails(
        &mobifs(&["status"], &elsewhere),
        5,
        &["is not a MobiFS mount"],
    );
    unmount(&elsewhere);
}

/// The note of what was before stayed, and a later mount with the same numbers got its options.
#[test]
fn what_was_noted_of_a_mount_is_for_no_other() {
    needs_mounts!();
    let Some(disk) = Disk::new(EXT4) else { return };
    disk.steer("");
    let note = note_of(&disk);
    let daemon = pid(&disk);
    // As one that a killed daemon has left, of an earlier mount with the same number.
    let mut left: serde_json::Value = serde_json::from_slice(&fs::read(&note).unwrap()).unwrap();
    kill_process(daemon, Signal::KILL).unwrap();
    wait_until(|| disk.registration().is_none());
    let Some(unique) = left["unique_mount_id"].as_u64() else {
        mobifs_skip::skip(format_args!("this kernel numbers mounts again"));
        return;
    };
    left["unique_mount_id"] = (unique - 1).into();
    left["filesystem"] = 1.into();
    fs::write(&note, left.to_string()).unwrap();
    let during = disk.options();
    succeeds(&mobifs(&["steer", "--stop"], &disk.at));
    assert_eq!(disk.options(), during);
    assert!(!note.exists());
}

/// A stop that met a daemon which was beginning restored the options and forgot them, and then the
/// daemon changed them.
#[test]
fn stop_and_start_at_once_leave_the_way_back() {
    needs_mounts!();
    let Some(disk) = Disk::new(EXT4) else { return };
    let before = disk.options();
    for round in 0..10 {
        let mut start = Command::new(PROGRAM)
            .args(["steer", "--log"])
            .arg(disk.fixture.path("log"))
            .arg(&disk.at)
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(std::time::Duration::from_millis(round));
        // Before it begins there is nothing to stop.
        let _stopped = mobifs(&["steer", "--stop"], &disk.at);
        start.wait().unwrap();
        if let Some(steered) = disk.registration() {
            let daemon = Pid::from_raw(i32::try_from(steered.record().pid()).unwrap()).unwrap();
            kill_process(daemon, Signal::KILL).unwrap();
            wait_until(|| disk.registration().is_none());
            disk.stop();
        }
        assert_eq!(disk.options(), before, "round {round}");
    }
}

/// With the mount that was named the daemon ends; the filesystem is still mounted elsewhere, with the
/// options that steering had set.
#[test]
fn options_are_restored_where_another_mount_stays() {
    needs_mounts!();
    let Some(mut disk) = Disk::new(EXT4) else {
        return;
    };
    let second = disk.fixture.directory("second");
    let shown = disk.at.display().to_string();
    disk.fixture.mount_other(&["--bind", &shown], &second);
    let before = mount_line(&second);
    disk.steer("[defaults]\nage_max_ms = 7000\n");
    assert!(mount_line(&second).contains("commit=7"));
    let unmounted = Command::new("umount").arg("-l").arg(&disk.at).output();
    succeeds(&unmounted.unwrap());
    wait_until(|| mount_line(&second) == before);
}

/// A table that makes an app durable was passed over: its fsync returned at once.
#[test]
fn an_app_that_is_to_be_durable_makes_all_wait() {
    needs_mounts!();
    let Some(disk) = Disk::new(EXT4) else { return };
    let config = disk
        .fixture
        .config("[[app]]\nmatch = \"bank*\"\nclass = \"durable\"\n");
    let output = disk.try_steer(&["--config", config.to_str().unwrap()]);
    succeeds(&output);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("durable apps"), "{said}");
    assert!(!disk.is_in_force());
    assert_eq!(disk.status()["apps"][0]["class"], "durable");
}
