//! A store is mounted again as soon as umount(8) has returned, which does not wait for the daemon;
//! and the users that keep a mount busy are named.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use crate::alone::Alone;
use crate::filesystems::put_store_on;
use crate::fixture::{
    Fixture, PROGRAM, as_helper, fails, message, mobifs, needs_mounts, succeeds, wait_until,
};

/// How often the store is unmounted and mounted again: by mount(8), and otherwise.
const ROUNDS: usize = 40;
const ROUNDS_OTHERWISE: usize = 12;
/// What is to be committed at the end of each mount.
const FILES: usize = 40;

fn fill(fixture: &Fixture, round: usize) {
    let app = fixture.mountpoint.join("app");
    fs::create_dir_all(&app).unwrap();
    for number in 0..FILES {
        fs::write(app.join(number.to_string()), format!("{round} {number}")).unwrap();
    }
}

fn check(fixture: &Fixture, round: usize) {
    for number in 0..FILES {
        let found = fs::read(fixture.mountpoint.join("app").join(number.to_string()));
        assert_eq!(found.unwrap(), format!("{round} {number}").as_bytes());
    }
}

/// umount(8), which finds no helper here and makes the system call.
fn plain_umount(fixture: &Fixture) {
    fixture.umount_by(Command::new("umount").arg("-i"));
}

fn rounds(fixture: &Fixture, mount: impl Fn()) {
    mount();
    for round in 0..ROUNDS_OTHERWISE {
        fill(fixture, round);
        plain_umount(fixture);
        mount();
        check(fixture, round);
    }
    fixture.umount();
}

/// At its exit the daemon closed the connection of the command before files of the store now and
/// then: unmounting the filesystem under the store right after was refused.
#[test]
fn the_filesystem_under_the_store_can_be_unmounted_when_the_command_returns() {
    needs_mounts!();
    let mut fixture = Fixture::new();
    if !put_store_on(&mut fixture, &["mkfs.ext4", "-q"]) {
        return;
    }
    let (image, disk) = (fixture.path("image"), fixture.path("disk"));
    for round in 0..ROUNDS {
        fixture.mount(&[]);
        fill(&fixture, round);
        fixture.umount();
        succeeds(&Command::new("umount").arg(&disk).output().unwrap());
        let mut mount = Command::new("mount");
        mount.args(["-o", "loop"]).arg(&image).arg(&disk);
        succeeds(&mount.output().unwrap());
    }
}

/// "umount M; mobifs mount S M" was refused in 33 of 40 tries: in use by process N.
#[test]
fn a_store_is_mounted_again_right_after_umount() {
    needs_mounts!();
    for options in ["syncfs=auto", "syncfs=off", "nosupervise"] {
        let fixture = Fixture::new();
        rounds(&fixture, || fixture.mount(&["-o", options]));
    }
}

/// The lock of a mount that only reads is shared, and nothing can be written into it.
#[test]
fn a_store_is_mounted_again_right_after_a_mount_that_only_read() {
    needs_mounts!();
    let fixture = Fixture::new();
    fixture.mount(&[]);
    for round in 0..ROUNDS_OTHERWISE {
        fill(&fixture, round);
        plain_umount(&fixture);
        fixture.mount(&["-o", "ro"]);
        check(&fixture, round);
        plain_umount(&fixture);
        fixture.mount(&[]);
        check(&fixture, round);
    }
    fixture.umount();
}

/// "umount M; mobifs check S" and "umount M; mobifs recover S" were refused.
#[test]
fn a_store_is_checked_and_recovered_right_after_umount() {
    needs_mounts!();
    let fixture = Fixture::new();
    for round in 0..ROUNDS_OTHERWISE {
        for words in [&["check"][..], &["recover"], &["recover", "--dry-run"]] {
            fixture.mount(&[]);
            fill(&fixture, round);
            plain_umount(&fixture);
            let output = mobifs(words, &fixture.store);
            succeeds(&output);
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(said.contains("properly closed"), "{words:?}: {said}");
        }
    }
}

/// The same by mount(8), as from fstab. Helpers are looked for in /sbin only, so this mounts in
/// a mount namespace of its own, where a directory with the helper lies over it.
#[test]
fn a_line_of_fstab_is_mounted_again_right_after_umount() {
    needs_mounts!();
    let _alone = Alone::new();
    let fixture = Fixture::new();
    let helpers = fixture.directory("sbin");
    symlink(PROGRAM, helpers.join("mount.fuse.mobifs")).unwrap();
    let line = format!(
        "{} {} fuse.mobifs noauto,nofail,x-mobifs.test,log={} 0 0\n",
        fixture.store.display(),
        fixture.mountpoint.display(),
        fixture.path("log").display()
    );
    let table = fixture.path("fstab");
    fs::write(&table, line).unwrap();
    let script = format!(
        "set -e
         mount --bind {helpers} /sbin
         cd /
         mount -T {table} {mnt}
         for round in $(seq {ROUNDS}); do
             mkdir -p {mnt}/app
             for number in $(seq {FILES}); do echo $round > {mnt}/app/$number; done
             umount {mnt}
             mount -T {table} {mnt}
             grep -qx $round {mnt}/app/{FILES}
         done
         {program} umount {mnt}",
        helpers = helpers.display(),
        table = table.display(),
        mnt = fixture.mountpoint.display(),
        program = PROGRAM,
    );
    let mut command = Command::new("unshare");
    let output = command.args(["--mount", "sh", "-c", &script]).output();
    succeeds(&output.unwrap());
}

/// A daemon in the foreground, as systemd starts it.
fn in_foreground(fixture: &Fixture) -> Child {
    let log = File::options()
        .create(true)
        .append(true)
        .open(fixture.path("log"))
        .unwrap();
    let mut child = Command::new(PROGRAM)
        .args(["mount", "--foreground"])
        .args([&fixture.store, &fixture.mountpoint])
        .stderr(log)
        .spawn()
        .unwrap();
    while !fixture.is_mounted() {
        let ended = child.try_wait().unwrap();
        assert!(ended.is_none(), "{ended:?}: {}", fixture.log());
        std::thread::sleep(Duration::from_millis(5));
    }
    child
}

#[test]
fn a_daemon_in_the_foreground_waits_for_its_predecessor() {
    needs_mounts!();
    let fixture = Fixture::new();
    let mut before: Option<Child> = None;
    for round in 0..ROUNDS_OTHERWISE {
        let daemon = in_foreground(&fixture);
        if let Some(mut before) = before.take() {
            check(&fixture, round - 1);
            assert!(before.wait().unwrap().success());
        }
        fill(&fixture, round);
        plain_umount(&fixture);
        before = Some(daemon);
    }
    assert!(before.unwrap().wait().unwrap().success());
}

/// A process that holds the store's lock, with its state written there.
fn holding(fixture: &Fixture, state: &str) -> Child {
    let lock = fixture.store.join(".mobifs/lock");
    let script = "exec 9<>\"$0\" && flock 9 && printf '%s\\n%s' $$ \"$1\" > \"$0\" && \
                  echo locked && exec sleep 1000";
    let mut child = Command::new("sh")
        .args(["-c", script])
        .arg(lock)
        .arg(format!("{state}\n"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let output = child.stdout.as_mut().unwrap();
    BufReader::new(output).read_line(&mut line).unwrap();
    assert_eq!(line, "locked\n");
    child
}

fn begin_mount(fixture: &Fixture, words: &[&str]) -> Child {
    Command::new(PROGRAM)
        .args(["mount", "--log"])
        .arg(fixture.path("log"))
        .args(words)
        .args([&fixture.store, &fixture.mountpoint])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
fn a_mount_waits_for_a_finishing_daemon_with_a_message() {
    needs_mounts!();
    let fixture = Fixture::new();
    fixture.mount(&[]);
    fixture.umount();
    let mut holder = holding(&fixture, "finishing");
    let pid = holder.id().to_string();
    // No error but the limit: the limit holds, and zero is a limit, too.
    let output = fixture.try_mount(&["-o", "wait=0"]);
    fails(&output, 3, &["in use by process", &pid, "-o wait="]);
    let mut mounting = begin_mount(&fixture, &[]);
    let mut said = BufReader::new(mounting.stderr.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert!(line.contains("waiting for process"), "{line}");
    assert!(line.contains(&pid), "{line}");
    assert!(mounting.try_wait().unwrap().is_none(), "it goes on waiting");
    holder.kill().unwrap();
    holder.wait().unwrap();
    assert!(mounting.wait().unwrap().success());
    let mut rest = String::new();
    said.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "", "one message is enough");
    fixture.umount();
}

#[test]
fn commands_wait_for_a_finishing_daemon_with_a_message() {
    needs_mounts!();
    let fixture = Fixture::new();
    fixture.mount(&[]);
    fixture.umount();
    for word in ["check", "recover"] {
        let mut holder = holding(&fixture, "finishing");
        // The limit holds, and zero is a limit, too.
        let output = mobifs(&[word, "--wait", "0"], &fixture.store);
        fails(&output, 3, &["in use by process", "after 0 s", "--wait"]);
        let mut waiting = Command::new(PROGRAM)
            .arg(word)
            .arg(&fixture.store)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut said = BufReader::new(waiting.stderr.take().unwrap());
        said.read_line(&mut line).unwrap();
        let words = ["waiting for process", &holder.id().to_string()];
        assert!(words.iter().all(|word| line.contains(word)), "{line}");
        assert!(line.contains("--wait SECONDS"), "{line}");
        holder.kill().unwrap();
        holder.wait().unwrap();
        assert!(waiting.wait().unwrap().success(), "{word}");
    }
}

/// A mount that was taken out of the tree while a program worked there held its store for as long
/// as the program ran, and a program that needed the store waited a minute and got an error that
/// named only the daemon.
#[test]
fn processes_that_keep_a_detached_mount_are_named() {
    needs_mounts!();
    let fixture = Fixture::new();
    fixture.mount(&[]);
    let inside = fixture.mountpoint.join("inside");
    fs::create_dir(&inside).unwrap();
    fs::write(inside.join("held"), "content").unwrap();
    let mut by_directory = Command::new("sleep")
        .arg("1000")
        .current_dir(&inside)
        .spawn()
        .unwrap();
    let mut by_file = Command::new("sleep")
        .arg("1000")
        .stdin(File::open(inside.join("held")).unwrap())
        .spawn()
        .unwrap();
    let detached = Command::new("umount")
        .args(["-i", "-l"])
        .arg(&fixture.mountpoint)
        .output();
    succeeds(&detached.unwrap());
    // A user found nothing mounted, and the store in use.
    let all = Command::new(PROGRAM).arg("status").output().unwrap();
    let all = String::from_utf8(all.stdout).unwrap();
    let place = fixture.mountpoint.display().to_string();
    let line = all.lines().find(|line| line.contains(&place)).unwrap();
    assert!(line.contains("NOT IN THE TREE"), "{line}");
    // The listing named it, and these said that nothing is mounted there.
    for words in [
        &["sync"][..],
        &["set", "--app", ".", "--class", "durable"],
        &["reload"],
    ] {
        succeeds(&mobifs(words, &fixture.mountpoint));
    }
    let drill = mobifs(&["drill", "power-cut", "--yes"], &fixture.mountpoint);
    fails(&drill, 5, &["is not a MobiFS mount"]);
    let (directory, file) = (by_directory.id().to_string(), by_file.id().to_string());
    let words = [
        "is out of the tree",
        "in use by",
        &directory,
        "working directory",
        &file,
        "held is open",
        "end that",
    ];
    fails(&fixture.try_mount(&["-o", "wait=0"]), 3, &words);
    let mut mounting = begin_mount(&fixture, &[]);
    let mut said = BufReader::new(mounting.stderr.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert!(line.contains("waiting for process"), "{line}");
    assert!(words.iter().all(|word| line.contains(word)), "{line}");
    for child in [&mut by_directory, &mut by_file] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    assert!(mounting.wait().unwrap().success());
    assert_eq!(fs::read(inside.join("held")).unwrap(), b"content");
    fixture.umount();
}

#[test]
fn a_wait_for_a_predecessor_can_be_ended() {
    needs_mounts!();
    let fixture = Fixture::new();
    fixture.mount(&[]);
    fixture.umount();
    let mut holder = holding(&fixture, "finishing");
    let mut waiting = Command::new(PROGRAM)
        .args(["mount", "--foreground"])
        .args([&fixture.store, &fixture.mountpoint])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(waiting.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("waiting for process") {
        line.clear();
        assert!(said.read_line(&mut line).unwrap() > 0, "it ended");
    }
    let pid = waiting.id().to_string();
    let sent = Command::new("kill").args(["-TERM", &pid]).status();
    assert!(sent.unwrap().success());
    assert!(!waiting.wait().unwrap().success());
    holder.kill().unwrap();
    holder.wait().unwrap();
}

#[test]
fn a_store_that_is_served_is_refused() {
    needs_mounts!();
    let fixture = Fixture::new();
    let other = fixture.directory("other");
    let again = |fixture: &Fixture| {
        crate::fixture::try_mount_at(&fixture.store, &other, &["-o", "wait=1000000"])
    };
    fixture.mount(&[]);
    let pid = fixture.daemon_pid().to_string();
    fails(&again(&fixture), 3, &["in use by process", &pid]);
    // Its successor serves it, too.
    let killed = Command::new("kill").args(["-KILL", &pid]).status();
    assert!(killed.unwrap().success());
    wait_until(|| fixture.daemon_pid().to_string() != pid);
    let pid = fixture.daemon_pid().to_string();
    fails(&again(&fixture), 3, &["in use by process", &pid]);
    fixture.umount();
    // A process that has the store for another reason records no state.
    let mut holder = holding(&fixture, "");
    let pid = holder.id().to_string();
    fails(&again(&fixture), 3, &["in use by process", &pid]);
    holder.kill().unwrap();
    holder.wait().unwrap();
    succeeds(&again(&fixture));
    succeeds(&mobifs(&["umount"], &other));
}

/// Readers write nothing into the lock, and with `fsname=` a mount does not show its store: it was
/// waited for as if it were about to end.
#[test]
fn a_store_that_is_served_for_reading_is_refused_whatever_its_mount_is_called() {
    needs_mounts!();
    let fixture = Fixture::new();
    let other = fixture.directory("other");
    fixture.mount(&[]);
    fixture.umount();
    for options in ["ro", "ro,fsname=another name", "ro,fsname=/usr"] {
        fixture.mount(&["-o", options]);
        let output = crate::fixture::try_mount_at(&fixture.store, &other, &["-o", "wait=2"]);
        fails(&output, 3, &["in use"]);
        assert!(!message(&output).contains("after 2 s"), "{output:?}");
        let output = mobifs(&["recover", "--wait", "2"], &fixture.store);
        fails(&output, 3, &["in use"]);
        assert!(!message(&output).contains("after 2 s"), "{output:?}");
        succeeds(&mobifs(&["check", "--wait", "0"], &fixture.store));
        fixture.umount();
    }
}

#[test]
fn processes_that_use_a_mount_are_named() {
    needs_mounts!();
    let fixture = Fixture::new();
    fixture.mount(&[]);
    fs::write(fixture.mountpoint.join("held"), "x").unwrap();
    let mut by_file = Command::new("sleep")
        .arg("1000")
        .stdin(File::open(fixture.mountpoint.join("held")).unwrap())
        .spawn()
        .unwrap();
    let mut by_directory = Command::new("sleep")
        .arg("1000")
        .current_dir(&fixture.mountpoint)
        .spawn()
        .unwrap();
    let output = mobifs(&["umount"], &fixture.mountpoint);
    let (file, directory) = (by_file.id().to_string(), by_directory.id().to_string());
    let words = [
        "is in use by",
        &file,
        "held is open",
        &directory,
        "working directory",
        "--lazy",
    ];
    fails(&output, 3, &words);
    for child in [&mut by_file, &mut by_directory] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let inside = fixture.mountpoint.join("inside");
    fs::create_dir(&inside).unwrap();
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "none"])
        .arg(&inside)
        .output();
    succeeds(&mounted.unwrap());
    let output = mobifs(&["umount"], &fixture.mountpoint);
    let unmounted = Command::new("umount").arg(&inside).output();
    succeeds(&unmounted.unwrap());
    fails(&output, 3, &["is in use by the mount at", "inside"]);
    fixture.umount();
}

/// `umount.fuse` is a name for all FUSE filesystems.
#[test]
fn the_helper_for_all_leaves_other_filesystems_to_umount() {
    needs_mounts!();
    let mut fixture = Fixture::new();
    fixture.mount(&[]);
    let other = fixture.directory("other");
    fixture.mount_other(&["-t", "tmpfs", "none"], &other);
    let path = |path: &Path| path.to_str().unwrap().to_owned();
    succeeds(&as_helper(
        "/sbin/umount.fuse",
        &[&path(&other), "-n", "-t", "fuse"],
    ));
    assert!(!crate::fixture::is_mounted(&other));
    let refused: Output = as_helper("/sbin/umount.fuse", &[&path(&other)]);
    assert!(!refused.status.success());
    assert!(message(&refused).contains("not mounted"), "{refused:?}");
    fill(&fixture, 1);
    succeeds(&as_helper(
        "/sbin/umount.fuse",
        &[&path(&fixture.mountpoint)],
    ));
    // Ours waits for the end of the daemon.
    let kept = fs::read(fixture.store.join("app/0"));
    assert_eq!(kept.unwrap(), b"1 0");
    fixture.mount(&["-o", "wait=0"]);
    fixture.umount();
}

/// Regression: it was said to be no mount of MobiFS.
#[test]
fn commands_say_that_a_mount_is_covered_and_by_what() {
    needs_mounts!();
    let mut fixture = Fixture::new();
    fixture.mount(&[]);
    let at = fixture.mountpoint.clone();
    fixture.mount_other(&["-t", "tmpfs", "what-covers"], &at);
    let uncover = format!("umount {}", at.display());
    for command in ["status", "sync"] {
        let refused = mobifs(&[command], &at);
        let needles = ["has a MobiFS mount", "tmpfs what-covers", &uncover];
        fails(&refused, 5, &needles);
    }
    let uncovered = Command::new("umount").arg(&at).status();
    assert!(uncovered.unwrap().success());
    succeeds(&mobifs(&["status"], &at));
    fixture.umount();
}
