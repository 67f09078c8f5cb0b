//! Power cuts and killed daemons.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::fixture::{
    Fixture, PROGRAM, fails, message, mobifs, needs_mounts, snapshot, succeeds, try_mount_at,
};

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

/// A power cut that leaves one committed file in the journal, of a durable app.
fn cut_with_a_commit(fixture: &Fixture) {
    mount_with_classes(fixture);
    fs::create_dir(fixture.mountpoint.join("bank-a")).unwrap();
    write_synced(&fixture.mountpoint.join("bank-a/f"), "kept");
    fixture.cut_power();
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
    cut_with_a_commit(&fixture);
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

/// A user copies what a power cut has left, before anything else. A journal names inodes, and a
/// copy has others: changes of files that had been there were lost.
#[test]
fn a_copy_of_a_store_that_was_not_unmounted_has_what_was_committed() {
    needs_mounts!();
    let mut fixture = Fixture::new();
    fs::create_dir_all(fixture.store.join("mail/deep/down")).unwrap();
    for name in ["changed", "moved", "removed", "linked", "deep/down/changed"] {
        fs::write(fixture.store.join("mail").join(name), "old").unwrap();
    }
    fixture.mount(&[]);
    let mail = fixture.mountpoint.join("mail");
    fs::write(mail.join("changed"), "newer").unwrap();
    fs::write(mail.join("deep/down/changed"), "newer").unwrap();
    fs::rename(mail.join("moved"), mail.join("deep/was moved")).unwrap();
    fs::remove_file(mail.join("removed")).unwrap();
    fs::hard_link(mail.join("linked"), mail.join("link")).unwrap();
    fs::write(mail.join("new"), "new").unwrap();
    let expected = snapshot(&fixture.mountpoint);
    succeeds(&mobifs(&["sync"], &fixture.mountpoint));
    fixture.cut_power();
    let original = fixture.store.clone();
    for number in 0..2 {
        let copy = fixture.path(&format!("copy {number}"));
        let mut cp = Command::new("cp");
        let copied = cp.arg("-a").args([&fixture.store, &copy]).status();
        assert!(copied.unwrap().success());
        // The second is a copy of the first, which was never mounted.
        fixture.store = copy;
    }
    for store in [fixture.store.clone(), original] {
        fixture.store = store;
        let looked = mobifs(&["recover", "--dry-run"], &fixture.store);
        succeeds(&looked);
        let text = String::from_utf8(looked.stdout).unwrap();
        assert!(!text.contains("PROBLEM"), "{text}");
        fixture.mount(&["-o", "ro"]);
        assert!(snapshot(&fixture.mountpoint) == expected);
        fixture.umount();
        fixture.mount(&[]);
        assert!(snapshot(&fixture.mountpoint) == expected);
        fixture.cut_power();
        succeeds(&mobifs(&["recover"], &fixture.store));
        succeeds(&mobifs(&["check"], &fixture.store));
        fixture.mount(&[]);
        assert!(snapshot(&fixture.mountpoint) == expected);
        fixture.umount();
    }
}

/// Both succeeded without a word, and what was committed was not in the files of the store.
#[test]
fn sync_and_umount_of_a_read_only_mount_say_what_stays_in_the_journal() {
    needs_mounts!();
    let fixture = Fixture::new();
    cut_with_a_commit(&fixture);
    let says = |words: &[&str]| {
        let output = mobifs(words, &fixture.mountpoint);
        succeeds(&output);
        message(&output)
    };
    fixture.mount(&["-o", "ro"]);
    for words in [["sync"], ["umount"]] {
        let said = says(&words);
        let store = fixture.store.to_str().unwrap();
        let needles = [
            "read-only",
            "stay in the journal of",
            store,
            "mobifs recover",
        ];
        assert!(needles.iter().all(|needle| said.contains(needle)), "{said}");
    }
    fixture.mount(&[]);
    assert_eq!(says(&["sync"]), "");
    assert_eq!(says(&["umount"]), "");
    fixture.mount(&["-o", "ro"]);
    assert_eq!(says(&["sync"]), "", "there is nothing");
    fixture.umount();
}

/// Nothing told a store without damage from one that was not examined.
#[test]
fn a_check_says_that_it_found_no_damage() {
    needs_mounts!();
    let fixture = Fixture::new();
    cut_with_a_commit(&fixture);
    for _ in 0..2 {
        let checked = mobifs(&["check"], &fixture.store);
        succeeds(&checked);
        let text = String::from_utf8(checked.stdout).unwrap();
        assert!(text.ends_with("  no damage found\n"), "{text}");
        succeeds(&mobifs(&["recover"], &fixture.store));
    }
    let plain = mobifs(&["check"], &fixture.directory("plain"));
    let text = String::from_utf8(plain.stdout).unwrap();
    assert!(!text.contains("damage"), "it is no store: {text}");
}

#[test]
fn a_power_cut_needs_a_yes_and_ends_a_mount_that_is_in_use() {
    needs_mounts!();
    let fixture = Fixture::new();
    // Another test's sync(2) would write between the look at the store and the cut.
    fixture.mount(&["-o", "syncfs=off"]);
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
fn a_killed_daemon_without_a_supervisor_is_noticed_and_its_mount_taken_away() {
    needs_mounts!();
    let fixture = Fixture::new();
    let config = fixture.config(CLASSES);
    let config = config.to_str().unwrap();
    fixture.mount(&["--config", config, "-o", "nosupervise"]);
    fs::create_dir(fixture.mountpoint.join("bank-a")).unwrap();
    write_synced(&fixture.mountpoint.join("bank-a/f"), "kept");
    let pid = fixture.daemon_pid();
    kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL).unwrap();
    while !has_ended(pid) {
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

/// Whether no thread of a process is left. Its first one may wait for a parent.
fn has_ended(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let threads = fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    stat.is_empty() || (stat.contains(") Z ") && threads <= 1)
}

/// Found by power cuts of mounts on real filesystems: the thread of the daemon that unmounts
/// waits for the daemon's last answer, and when that was killed before it had answered, the
/// thread waited for ever, with the store locked.
#[test]
fn a_daemon_killed_while_it_unmounts_goes_away() {
    needs_mounts!();
    let fixture = Fixture::new();
    for _ in 0..30 {
        fixture.mount(&["-o", "nosupervise"]);
        let pid = fixture.daemon_pid();
        // Out of the tree it goes first, and then the daemon is asked.
        let mut unmounting = fixture.begin_umount(Command::new(PROGRAM).arg("umount"));
        // It may have ended by itself.
        let _ended = kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL);
        let start = Instant::now();
        while !has_ended(pid) {
            let waited = start.elapsed() < Duration::from_secs(60);
            assert!(waited, "process {pid} is killed and does not end");
            std::thread::sleep(Duration::from_millis(1));
        }
        unmounting.wait().unwrap();
    }
    fixture.mount(&[]);
    fixture.umount();
}

#[test]
fn an_order_to_a_mount_that_ended_does_not_reach_another_with_its_device_number() {
    // Regression: a client that waited for a daemon that died asked again at the same socket, which
    // by then could be that of any other mount; so `mobifs umount A` unmounted B.
    needs_mounts!();
    let [ended, other] = [Fixture::new(), Fixture::new()];
    ended.mount(&["-o", "nosupervise"]);
    let daemon = Pid::from_raw(ended.daemon_pid() as i32).unwrap();
    kill_process(daemon, Signal::STOP).unwrap();
    let mut unmounting = Command::new(PROGRAM)
        .arg("umount")
        .arg(&ended.mountpoint)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    while !has_socket(unmounting.id()) {
        std::thread::yield_now();
    }
    let waiting = Pid::from_child(&unmounting);
    kill_process(waiting, Signal::STOP).unwrap();
    kill_process(daemon, Signal::KILL).unwrap();
    while !has_ended(daemon.as_raw_nonzero().get() as u32) {
        std::thread::yield_now();
    }
    let done = Command::new("umount")
        .arg("-l")
        .arg(&ended.mountpoint)
        .status();
    assert!(done.unwrap().success());
    // The lowest free number is given first.
    other.mount(&[]);
    kill_process(waiting, Signal::CONT).unwrap();
    // What it was to unmount is gone.
    assert!(unmounting.wait().unwrap().success());
    assert!(other.is_mounted());
    other.umount();
}

/// Whether a process has opened a socket.
fn has_socket(pid: u32) -> bool {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd"))
        .into_iter()
        .flatten();
    let mut targets = descriptors.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    targets.any(|target| target.to_string_lossy().starts_with("socket:"))
}

#[test]
fn a_file_whose_names_a_moved_directory_parted_is_committed_with_both_apps() {
    // Regression: the kernel asks for a name that it knows only once, so the volume did not learn
    // that the file has a name in the other app now.
    needs_mounts!();
    let fixture = Fixture::new();
    let config = fixture.config("[defaults]\nage_max_ms = 60000\n");
    let words = ["--config", config.to_str().unwrap()];
    fixture.mount(&words);
    let mnt = &fixture.mountpoint;
    for name in ["mail", "mail/d", "photos"] {
        fs::create_dir(mnt.join(name)).unwrap();
    }
    fs::write(mnt.join("mail/d/a"), "").unwrap();
    fs::hard_link(mnt.join("mail/d/a"), mnt.join("mail/b")).unwrap();
    fs::rename(mnt.join("mail/d"), mnt.join("photos/d")).unwrap();
    succeeds(&mobifs(&["sync", "--commit-only"], mnt));
    fs::write(mnt.join("mail/b"), "content").unwrap();
    fs::write(mnt.join("mail/later"), "").unwrap();
    succeeds(&mobifs(&["sync", "--commit-only", "--app", "mail"], mnt));
    fixture.cut_power();
    fixture.mount(&words);
    assert!(mnt.join("mail/later").exists());
    assert_eq!(fs::read(mnt.join("mail/b")).unwrap(), b"content");
    assert_eq!(fs::read(mnt.join("photos/d/a")).unwrap(), b"content");
    fixture.umount();
}

/// The files of a transaction were all open until they were durable.
#[test]
fn a_daemon_commits_more_new_files_than_it_may_have_open() {
    needs_mounts!();
    const FILES: usize = 3000;
    let fixture = Fixture::new();
    let mnt = &fixture.mountpoint;
    let mut command = Command::new("sh");
    let limited = "ulimit -n 1024 && exec \"$0\" mount \"$@\"";
    command.args(["-c", limited, PROGRAM]);
    succeeds(&command.arg(&fixture.store).arg(mnt).output().unwrap());
    fs::create_dir(mnt.join("app")).unwrap();
    for number in 0..FILES {
        let content = format!("{number}\n").repeat(200);
        fs::write(mnt.join(format!("app/{number}")), content).unwrap();
    }
    succeeds(&mobifs(&["sync", "--commit-only"], mnt));
    fixture.cut_power();
    fixture.mount(&[]);
    for number in 0..FILES {
        let found = fs::read_to_string(mnt.join(format!("app/{number}"))).unwrap();
        assert!(found == format!("{number}\n").repeat(200), "{number}");
    }
    fixture.umount();
}

/// A mount whose mount point lies in another one, with its store elsewhere.
struct Inner {
    store: std::path::PathBuf,
    mountpoint: std::path::PathBuf,
}

impl Inner {
    fn mount(outer: &Fixture) -> Self {
        let inner = Self {
            store: outer.directory("inner"),
            mountpoint: outer.mountpoint.join("app/inner"),
        };
        fs::create_dir_all(&inner.mountpoint).unwrap();
        succeeds(&try_mount_at(&inner.store, &inner.mountpoint, &[]));
        inner
    }

    fn daemon(&self) -> Pid {
        let output = mobifs(&["status", "--json"], &self.mountpoint);
        succeeds(&output);
        let status: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        Pid::from_raw(status["daemon_pid"].as_u64().unwrap() as i32).unwrap()
    }
}

#[test]
fn a_mount_in_a_mount_survives_the_daemons_of_both() {
    needs_mounts!();
    let mut outer = Fixture::new();
    outer.mount(&[]);
    let inner = Inner::mount(&outer);
    outer.unmount_at_end(&inner.mountpoint);
    fs::write(inner.mountpoint.join("file"), "one").unwrap();
    fs::write(outer.mountpoint.join("app/file"), "two").unwrap();
    let busy = mobifs(&["umount"], &outer.mountpoint);
    assert!(!busy.status.success() && outer.is_mounted());
    let daemon = Pid::from_raw(outer.daemon_pid() as i32).unwrap();
    for daemon in [daemon, inner.daemon()] {
        kill_process(daemon, Signal::KILL).unwrap();
        assert_eq!(fs::read(inner.mountpoint.join("file")).unwrap(), b"one");
        assert_eq!(fs::read(outer.mountpoint.join("app/file")).unwrap(), b"two");
    }
    assert!(
        fs::remove_dir(&inner.mountpoint).is_err(),
        "it is a mount point"
    );
    succeeds(&mobifs(&["sync"], &inner.mountpoint));
    succeeds(&mobifs(&["umount"], &inner.mountpoint));
    outer.umount();
    assert_eq!(fs::read(inner.store.join("file")).unwrap(), b"one");
    assert_eq!(fs::read(outer.store.join("app/file")).unwrap(), b"two");
    assert!(
        outer
            .store
            .join("app/inner")
            .read_dir()
            .unwrap()
            .next()
            .is_none()
    );
}

/// Regression: `mobifs check` has a descriptor for each directory that the journal knows, and did not raise its
/// limit of them.
#[test]
fn check_looks_at_more_changed_directories_than_its_limit_of_descriptors() {
    needs_mounts!();
    let fixture = Fixture::new();
    mount_with_classes(&fixture);
    let directory = |number: u32| fixture.mountpoint.join(format!("mail/{number}"));
    fs::create_dir(fixture.mountpoint.join("mail")).unwrap();
    (0..300).for_each(|number| fs::create_dir(directory(number)).unwrap());
    fixture.umount();
    mount_with_classes(&fixture);
    for number in 0..300 {
        fs::set_permissions(directory(number), fs::Permissions::from_mode(0o700)).unwrap();
    }
    succeeds(&mobifs(&["sync", "--commit-only"], &fixture.mountpoint));
    fixture.cut_power();
    let check = Command::new("sh")
        .args(["-c", "ulimit -S -n 64; exec \"$0\" check \"$1\"", PROGRAM])
        .arg(&fixture.store)
        .output();
    succeeds(&check.unwrap());
}
