//! A mount does not depend on what the process that makes it has inherited: descriptors, signals,
//! limits, and the mask of file modes.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::process::{Command, Output};

use rustix::process::{Pid, Resource, Signal, getrlimit, kill_process, setrlimit};

use crate::fixture::{Fixture, PROGRAM, fails, mobifs, needs_mounts, succeeds, wait_until};
use crate::kills::{child_of, kill, parent_of, successor_of, wait_for_end};

/// Mounts with a command that ends with the program.
fn mount_by(command: &mut Command, fixture: &Fixture) -> Output {
    command.args(["mount", "--log"]).arg(fixture.path("log"));
    let command = command.arg(&fixture.store).arg(&fixture.mountpoint);
    command.output().unwrap()
}

/// Signals that the process blocks.
fn blocked_by(pid: u32) -> u64 {
    number_in_status(pid, "SigBlk:")
}

/// A hexadecimal number in what the system says of a process.
fn number_in_status(pid: u32, key: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let found = status.lines().find_map(|line| line.strip_prefix(key));
    u64::from_str_radix(found.unwrap().trim(), 16).unwrap()
}

/// Regression: daemon and supervisor kept what the program that mounts had open. Another filesystem
/// could not be unmounted, and its locks stayed taken, for as long as the mount was there.
#[test]
fn descriptors_of_the_mounting_process_are_not_kept_open_by_the_mount() {
    needs_mounts!();
    let fixture = Fixture::new();
    let other = fixture.path("other");
    fs::write(&other, "content").unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", "exec 7<\"$0\" 8>>\"$0\"; exec \"$@\""]);
    succeeds(&mount_by(command.arg(&other).arg(PROGRAM), &fixture));
    let daemon = fixture.daemon_pid();
    for pid in [daemon, parent_of(daemon)] {
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
        let open: Vec<_> = descriptors
            .map(|entry| fs::read_link(entry.unwrap().path()).unwrap_or_default())
            .collect();
        assert!(open.len() > 3 && !open.contains(&other), "{open:?}");
    }
    fixture.umount();
}

/// Regression: a mount that was out of the tree stayed in use by the command that waited for its
/// end, and by the daemon that this had started: they named themselves, and gave up.
#[test]
fn a_mount_does_not_wait_for_what_its_own_command_has_open() {
    needs_mounts!();
    let fixture = Fixture::new();
    fixture.mount(&[]);
    let held = fixture.mountpoint.join("held");
    fs::write(&held, "content").unwrap();
    let script = "exec 7<\"$0\"; umount -i -l \"$1\"; shift; exec \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-c", script]).arg(&held);
    command.arg(&fixture.mountpoint).arg(PROGRAM);
    succeeds(&mount_by(&mut command, &fixture));
    assert_eq!(fs::read(&held).unwrap(), b"content");
    fixture.umount();
}

/// Regression: with `SIGCHLD` blocked the supervisor never noticed that its daemon had died, and
/// the mount hung; with `SIGTERM` blocked a request to end was ignored.
#[test]
fn the_mounting_process_may_have_blocked_and_ignored_any_signals() {
    needs_mounts!();
    let cases: [&[&str]; 5] = [
        &["--block-signal=CHLD"],
        &["--block-signal=TERM,INT"],
        &["--ignore-signal=CHLD"],
        &["--ignore-signal=HUP,PIPE,TERM,INT"],
        &["--block-signal", "--ignore-signal"],
    ];
    for signals in cases {
        let fixture = Fixture::new();
        let mut command = Command::new("env");
        succeeds(&mount_by(command.args(signals).arg(PROGRAM), &fixture));
        let file = fixture.mountpoint.join("file");
        fs::write(&file, "content").unwrap();
        let pid = fixture.daemon_pid();
        let supervisor = parent_of(pid);
        assert_eq!((blocked_by(pid), blocked_by(supervisor)), (0, 0));
        kill(pid);
        assert_eq!(fs::read(&file).unwrap(), b"content");
        successor_of(&fixture, pid);
        let supervisor_pid = Pid::from_raw(supervisor as i32).unwrap();
        kill_process(supervisor_pid, Signal::TERM).unwrap();
        wait_for_end(supervisor);
        assert!(!fixture.is_mounted(), "{signals:?}");
        assert_eq!(fs::read(fixture.store.join("file")).unwrap(), b"content");
    }
}

/// The supervisor sees that its daemon has died without any signal: it waits for the process.
#[test]
fn a_daemon_that_dies_is_succeeded_although_no_signal_is_sent_to_the_supervisor() {
    needs_mounts!();
    let fixture = Fixture::new();
    fixture.mount(&[]);
    let pid = fixture.daemon_pid();
    let supervisor = parent_of(pid);
    let waits_for = |what: &str| {
        let descriptors = fs::read_dir(format!("/proc/{supervisor}/fd")).unwrap();
        let targets = descriptors.filter_map(|entry| fs::read_link(entry.unwrap().path()).ok());
        let targets: Vec<_> = targets.collect();
        targets.iter().any(|to| to.to_string_lossy().contains(what))
    };
    assert!(waits_for("pidfd"));
    kill(pid);
    wait_until(|| child_of(supervisor).is_some_and(|next| next != pid));
    successor_of(&fixture, pid);
    assert!(waits_for("pidfd"));
    fixture.umount();
}

/// Whatever mask of file modes is inherited, the daemon may use what it makes.
#[test]
fn what_a_mount_makes_can_be_used_with_any_mask_of_file_modes() {
    needs_mounts!();
    let fixture = Fixture::new();
    for _ in 0..2 {
        let mut command = Command::new("sh");
        command.args(["-c", "umask 0777; exec \"$@\"", "sh", PROGRAM]);
        succeeds(&mount_by(&mut command, &fixture));
        let pid = fixture.daemon_pid();
        let umask = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        assert!(umask.contains("\nUmask:\t0077\n"), "{umask}");
        fs::write(fixture.mountpoint.join("file"), "content").unwrap();
        kill(pid);
        successor_of(&fixture, pid);
        fixture.umount();
    }
}

/// Mounts by a shell that sets limits first; without the privilege to raise them again, or with it.
fn mount_with_limits(fixture: &Fixture, limits: &str, is_privileged: bool) -> Output {
    let mut command = if is_privileged {
        Command::new("env")
    } else {
        let mut command = Command::new("setpriv");
        command.args(["--bounding-set", "-sys_resource"]);
        command.args(["--inh-caps", "-sys_resource"]);
        command
    };
    let script = format!("{limits}; exec \"$@\"");
    mount_by(command.args(["sh", "-c", &script, "sh", PROGRAM]), fixture)
}

/// Regression: with a limited address space nothing outlived the daemon, and with a limit of file
/// sizes below that of the journal neither; programs without a limit could not write large files.
#[test]
fn limits_of_the_mounting_process_are_not_those_of_the_mount() {
    needs_mounts!();
    for limits in [
        "ulimit -S -v 400000",
        "ulimit -S -f 2000",
        "ulimit -S -d 100000",
        "ulimit -S -n 64; ulimit -S -s 2000; ulimit -l 0; ulimit -c 0",
    ] {
        work_with_limits(limits, false);
    }
}

/// Where the hard limits may be raised, too, they are.
#[test]
fn hard_limits_of_the_mounting_process_are_raised_where_that_is_permitted() {
    const CAP_SYS_RESOURCE: u64 = 24;
    needs_mounts!();
    let capabilities = number_in_status(std::process::id(), "CapEff:");
    let may_not = capabilities & (1 << CAP_SYS_RESOURCE) == 0;
    if !mobifs_skip::can(may_not.then_some("no CAP_SYS_RESOURCE")) {
        return;
    }
    for limits in [
        "ulimit -v 400000",
        "ulimit -f 2000",
        "ulimit -d 100000",
        "ulimit -n 64",
    ] {
        work_with_limits(limits, true);
    }
}

fn work_with_limits(limits: &str, is_privileged: bool) {
    let fixture = Fixture::new();
    // So that there is a journal already.
    fixture.mount(&[]);
    fixture.umount();
    succeeds(&mount_with_limits(&fixture, limits, is_privileged));
    assert_eq!(fixture.status()["supervised_by"], "mobifs", "{limits}");
    let content: Vec<u8> = (0..3_000_000_u32).map(|at| (at / 7) as u8).collect();
    let file = fixture.mountpoint.join("file");
    fs::write(&file, &content).unwrap();
    kill(fixture.daemon_pid());
    assert!(fs::read(&file).unwrap() == content, "{limits}");
    succeeds(&mobifs(&["sync"], &fixture.mountpoint));
    fixture.umount();
    assert!(fs::read(fixture.store.join("file")).unwrap() == content);
}

#[test]
fn limits_that_are_too_low_and_cannot_be_raised_refuse_the_mount() {
    needs_mounts!();
    for (limits, what) in [
        ("ulimit -f 2000", "the size of files"),
        ("ulimit -v 400000", "the address space"),
        ("ulimit -d 100000", "memory for data"),
        ("ulimit -n 128", "open files"),
    ] {
        let fixture = Fixture::new();
        let option = &limits[.."ulimit -f".len()];
        let refused = mount_with_limits(&fixture, limits, false);
        fails(&refused, 1, &["this process is limited in", what, option]);
        assert!(!fixture.store.join(".mobifs").exists(), "{limits}");
    }
}

/// Regression: the store kept a handle for each of the last 512 objects. Where the daemon may not
/// have that many files open, the app became read-only, commands got no answer, and what was
/// acknowledged could not be brought to the store.
#[test]
fn a_daemon_that_may_have_few_files_open_goes_on_with_many_objects() {
    const FILES: u64 = 1200;
    needs_mounts!();
    allow_files(4 * FILES);
    for limits in ["ulimit -n 256", "ulimit -n 400"] {
        let fixture = Fixture::new();
        succeeds(&mount_with_limits(&fixture, limits, false));
        let app = fixture.mountpoint.join("app");
        fs::create_dir(&app).unwrap();
        let content = |number: u64| [vec![b'x'; 5000], number.to_be_bytes().to_vec()].concat();
        let is_deleted = |number: u64| number % 2 == 1;
        let mut files = Vec::new();
        for number in 0..FILES {
            let path = app.join(number.to_string());
            let mut file = fs::File::options();
            let file = file.read(true).write(true).create_new(true);
            let file = file.open(&path).unwrap();
            file.write_all_at(&content(number), 0).unwrap();
            files.push(file);
            if is_deleted(number) {
                fs::remove_file(path).unwrap();
            }
        }
        succeeds(&mobifs(&["sync"], &fixture.mountpoint));
        for (number, file) in (0..).zip(&files) {
            let mut found = vec![0; content(number).len()];
            file.read_exact_at(&mut found, 0).unwrap();
            assert!(found == content(number), "{number}");
        }
        drop(files);
        fs::write(app.join("new"), "content").unwrap();
        fixture.umount();
        let log = fixture.log();
        assert!(!log.contains("Too many open files"), "{log}");
        for number in (0..FILES).filter(|number| !is_deleted(*number)) {
            let found = fs::read(fixture.store.join(format!("app/{number}"))).unwrap();
            assert!(found == content(number), "{number}");
        }
    }
}

/// Lets this process have so many files open.
fn allow_files(count: u64) {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|current| current < count) {
        limit.current = Some(count);
        setrlimit(Resource::Nofile, limit).unwrap();
    }
}
