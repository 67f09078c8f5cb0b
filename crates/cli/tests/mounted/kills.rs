//! The daemon is killed again and again while programs work. They see pauses and nothing
//! else; nothing is lost, done twice or mixed up.
//!
//! `MOBIFS_KILLS` and `MOBIFS_KILL_SEED` make it longer and different
//! (`make kill-campaign`).

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mobifs_numerics::Random;
use rustix::process::{Pid, Signal, kill_process};

use crate::fixture::{Fixture, IN_USE, PROGRAM, fails, message, mobifs, needs_mounts, succeeds};
use crate::loads::{self, Check, Load};

const CONFIG: &str = "
[defaults]
age_max_ms = 150
[[app]]
match = \"durable\"
class = \"durable\"
";
const KILLS: u64 = 20;

pub(crate) fn kill(pid: u32) {
    // It may be gone already.
    let _gone = kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL);
}

pub(crate) fn parent_of(pid: u32) -> u32 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("PPid:"));
    line.unwrap()[5..].trim().parse().unwrap()
}

/// It may stay a while as a zombie.
pub(crate) fn wait_for_end(pid: u32) {
    while fs::exists(format!("/proc/{pid}/exe")).unwrap() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The daemon of this moment; none between two.
pub(crate) fn child_of(supervisor: u32) -> Option<u32> {
    let children = format!("/proc/{supervisor}/task/{supervisor}/children");
    let children = fs::read_to_string(children).ok()?;
    children.split_whitespace().next()?.parse().ok()
}

fn variable(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().unwrap())
}

/// Programs that work on the mount until they are stopped.
struct Programs {
    stop: Arc<AtomicBool>,
    threads: Vec<(&'static str, std::thread::JoinHandle<Check>)>,
}

impl Programs {
    fn start(mountpoint: &Path, loads: &[(&'static str, Load)], seed: u64) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let start = |(number, (name, load)): (usize, &(&'static str, Load))| {
            let directory = mountpoint.join(name);
            fs::create_dir(&directory).unwrap();
            let (load, stop) = (*load, Arc::clone(&stop));
            let random = Random::new(seed.wrapping_add(number as u64));
            let run = move || load(&directory, &stop, random);
            (*name, std::thread::spawn(run))
        };
        let threads = loads.iter().enumerate().map(start).collect();
        Self { stop, threads }
    }

    /// Whether one of them has seen an error.
    fn has_failed(&self) -> bool {
        self.threads.iter().any(|(_, thread)| thread.is_finished())
    }

    /// Waits for their end; what they say about the files they leave.
    fn end(self) -> Vec<(&'static str, Check)> {
        self.stop.store(true, Ordering::SeqCst);
        let join = |(name, thread): (_, std::thread::JoinHandle<Check>)| match thread.join() {
            Ok(check) => (name, check),
            Err(_) => panic!("{name} has failed; see above"),
        };
        self.threads.into_iter().map(join).collect()
    }
}

/// Kills daemons at random moments, some of them while they take over.
fn kill_at_random(
    mountpoint: &Path,
    supervisor: u32,
    programs: &Programs,
    kills: u64,
    random: &mut Random,
) -> Vec<Duration> {
    let mut pauses = Vec::new();
    for number in 0..kills {
        std::thread::sleep(Duration::from_micros(random.below(120_000)));
        let killed = Instant::now();
        if let Some(pid) = child_of(supervisor) {
            kill(pid);
        }
        if number % 3 == 2 {
            std::thread::sleep(Duration::from_micros(random.below(30_000)));
            if let Some(pid) = child_of(supervisor) {
                kill(pid);
            }
        }
        // Only a daemon can answer that there is no such file.
        let absent = mountpoint.join(format!("absent-{number}"));
        assert!(!absent.try_exists().unwrap());
        pauses.push(killed.elapsed());
        if programs.has_failed() {
            break;
        }
    }
    pauses
}

/// Found by the campaign on a busy machine: daemons that were killed before they had answered what
/// the one before had left counted as crashes, and the sixth ended the mount.
#[test]
fn daemons_that_are_killed_while_they_take_over_do_not_end_the_mount() {
    const KILLED: usize = 9;
    needs_mounts!();
    let fixture = Fixture::new();
    fixture.mount(&[]);
    let file = fixture.mountpoint.join("file");
    fs::write(&file, "uncommitted").unwrap();
    let first = fixture.daemon_pid();
    let supervisor = parent_of(first);
    let mut killed = first;
    kill(first);
    for _ in 0..KILLED {
        killed = loop {
            match child_of(supervisor) {
                Some(pid) if pid != killed => break pid,
                _ => std::thread::yield_now(),
            }
        };
        // Time to begin; to be ready takes longer.
        std::thread::sleep(Duration::from_millis(20));
        kill(killed);
    }
    assert_eq!(fs::read(&file).unwrap(), b"uncommitted");
    assert_eq!(fixture.status()["supervised_by"], "mobifs");
    fixture.umount();
    assert_eq!(
        fs::read(fixture.store.join("file")).unwrap(),
        b"uncommitted"
    );
}

#[test]
fn programs_do_not_notice_that_daemons_are_killed() {
    needs_mounts!();
    let kills = variable("MOBIFS_KILLS", KILLS);
    let seed = variable("MOBIFS_KILL_SEED", 1);
    let mut random = Random::new(seed);
    let fixture = Fixture::new();
    let config = fixture.config(CONFIG);
    let config = ["--config", config.to_str().unwrap()];
    fixture.mount(&config);
    let supervisor = parent_of(fixture.daemon_pid());
    let loads = loads::available();
    let programs = Programs::start(&fixture.mountpoint, &loads, seed);
    let mut pauses = kill_at_random(
        &fixture.mountpoint,
        supervisor,
        &programs,
        kills,
        &mut random,
    );
    let checks = programs.end();
    let status = fixture.status();
    let restarts = status["restarts"].as_u64().unwrap();
    assert!(restarts >= kills / 2, "{restarts} restarts");
    assert_eq!(status["supervised_by"], "mobifs");
    pauses.sort_unstable();
    eprintln!(
        "seed {seed}: {restarts} restarts; pauses: median {:?}, longest {:?}",
        pauses[pauses.len() / 2],
        pauses[pauses.len() - 1]
    );
    check_all(&checks, &fixture.mountpoint);
    fixture.umount();
    check_all(&checks, &fixture.store);
    let checked = mobifs(&["check"], &fixture.store);
    succeeds(&checked);
    let text = String::from_utf8(checked.stdout).unwrap();
    assert!(
        text.contains("properly closed, nothing to recover"),
        "{text}"
    );
    fixture.mount(&config);
    check_all(&checks, &fixture.mountpoint);
    fixture.umount();
}

fn check_all(checks: &[(&'static str, Check)], base: &Path) {
    for (name, check) in checks {
        check(&base.join(name));
    }
}

/// The pid of a daemon other than `old`.
pub(crate) fn successor_of(fixture: &Fixture, old: u32) -> u32 {
    loop {
        let pid = fixture.daemon_pid();
        if pid != old {
            return pid;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_killed_daemon_is_followed_by_one_with_the_same_settings() {
    needs_mounts!();
    let fixture = Fixture::new();
    let config = fixture.config("objects_max = 5000\n[defaults]\nage_max_ms = 7777\n");
    fixture.mount(&["--config", config.to_str().unwrap()]);
    fs::create_dir(fixture.mountpoint.join("app")).unwrap();
    let words = ["set", "--app", "app", "--class", "durable"];
    succeeds(&mobifs(&words, &fixture.mountpoint));
    let words = ["set", "--app", "app", "--policy", "interval"];
    let interval = ["--interval-ms", "999"];
    let words = [&words[..], &interval].concat();
    succeeds(&mobifs(&words, &fixture.mountpoint));
    // A user is editing it.
    fs::write(&config, "objects_max = five").unwrap();
    let old = fixture.daemon_pid();
    kill(old);
    successor_of(&fixture, old);
    let status = fixture.status();
    assert_eq!(status["restarts"], 1);
    let apps = status["apps"].as_array().unwrap();
    let app = apps.iter().find(|app| app["name"] == "app").unwrap();
    assert_eq!(app["class"], "durable");
    assert_eq!(app["age_max_ms"], 7777);
    assert_eq!(app["policy"]["name"], "interval");
    assert_eq!(app["policy"]["interval_ms"], 999);
    fixture.umount();
}

#[test]
fn a_power_cut_is_not_undone_by_a_new_daemon() {
    needs_mounts!();
    let fixture = Fixture::new();
    fixture.mount(&[]);
    fs::create_dir(fixture.mountpoint.join("app")).unwrap();
    fs::write(fixture.mountpoint.join("app/f"), "in memory").unwrap();
    let supervisor = parent_of(fixture.daemon_pid());
    fixture.cut_power();
    assert!(!fixture.is_mounted());
    wait_for_end(supervisor);
    assert!(!fixture.is_mounted());
    fixture.mount(&[]);
    assert!(!fixture.mountpoint.join("app").exists());
    fixture.umount();
}

#[test]
fn a_daemon_whose_supervisor_is_killed_serves_on() {
    needs_mounts!();
    let fixture = Fixture::new();
    fixture.mount(&[]);
    let pid = fixture.daemon_pid();
    kill(parent_of(pid));
    while !fixture.status()["supervised_by"].is_null() {
        std::thread::sleep(Duration::from_millis(1));
    }
    fs::create_dir(fixture.mountpoint.join("app")).unwrap();
    assert_eq!(fixture.daemon_pid(), pid);
    let text = mobifs(&["status"], &fixture.mountpoint).stdout;
    assert!(String::from_utf8(text).unwrap().contains("unsupervised"));
    fixture.umount();
    assert!(fixture.store.join("app").is_dir());
}

#[test]
fn a_daemon_that_is_not_to_be_supervised_has_no_supervisor() {
    needs_mounts!();
    let fixture = Fixture::new();
    fixture.mount(&["-o", "nosupervise"]);
    assert!(fixture.status()["supervised_by"].is_null());
    let pid = fixture.daemon_pid();
    kill(pid);
    while mobifs(&["status"], &fixture.mountpoint).status.success() {}
    let status = mobifs(&["status"], &fixture.mountpoint);
    fails(&status, 5, &["gone", "mobifs umount"]);
    fixture.umount();
}

/// Its last answer is the one that the unmount waits for.
#[test]
fn a_daemon_that_is_killed_while_it_unmounts_is_followed_by_one_that_does() {
    needs_mounts!();
    let fixture = Fixture::new();
    for round in 0..20 {
        fixture.mount(&[]);
        let pid = fixture.daemon_pid();
        let supervisor = parent_of(pid);
        let app = fixture.mountpoint.join(format!("app{round}"));
        fs::create_dir(&app).unwrap();
        fs::write(app.join("f"), "content").unwrap();
        let mut unmounting = fixture.begin_umount(Command::new("umount").arg("-i"));
        kill(pid);
        assert!(unmounting.wait().unwrap().success());
        wait_for_end(supervisor);
        let content = fs::read(fixture.store.join(format!("app{round}/f"))).unwrap();
        assert_eq!(content, b"content");
    }
}

/// What a mount keeps outside its daemon is as private as the daemon's memory.
#[test]
fn others_cannot_reach_what_outlives_the_daemon() {
    needs_mounts!();
    let fixture = Fixture::new();
    fixture.mount(&[]);
    let pid = fixture.daemon_pid();
    let supervisor = parent_of(pid);
    for process in [pid, supervisor] {
        let descriptors = PathBuf::from(format!("/proc/{process}/fd"));
        let as_nobody = Command::new("setpriv")
            .args([
                "--reuid",
                "65534",
                "--regid",
                "65534",
                "--clear-groups",
                "ls",
            ])
            .arg(&descriptors)
            .output()
            .unwrap();
        assert!(!as_nobody.status.success(), "{as_nobody:?}");
        assert!(fs::read_dir(&descriptors).unwrap().count() > 3);
    }
    let directory = Path::new("/run/mobifs");
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    // With a `status_group`, as another test has, its members pass through, and see no names.
    assert_eq!(mode(directory) & !0o011, 0o700);
    let socket = directory.join(format!("supervisor-{supervisor}.sock"));
    assert_eq!(mode(&socket), 0o600);
    // Nor does the supervisor listen to other processes of the same user.
    let stranger = std::os::unix::net::UnixDatagram::unbound().unwrap();
    stranger
        .send_to(b"FDSTOREREMOVE=1\nFDNAME=mobifs-device", &socket)
        .unwrap();
    kill(pid);
    successor_of(&fixture, pid);
    fixture.umount();
    wait_for_end(supervisor);
    assert!(!socket.exists());
}

#[test]
fn read_only_mounts_and_mounts_out_of_the_tree_are_taken_over_too() {
    needs_mounts!();
    let fixture = Fixture::new();
    fixture.mount(&[]);
    fs::create_dir(fixture.mountpoint.join("app")).unwrap();
    let path = fixture.mountpoint.join("app/f");
    let mut file = fs::File::create(&path).unwrap();
    file.write_all(b"one ").unwrap();
    let pid = fixture.daemon_pid();
    let supervisor = parent_of(pid);
    succeeds(&mobifs(&["umount", "--lazy"], &fixture.mountpoint));
    kill(pid);
    file.write_all(b"two").unwrap();
    drop(file);
    wait_for_end(supervisor);
    assert_eq!(fs::read(fixture.store.join("app/f")).unwrap(), b"one two");

    fixture.mount(&["-o", "ro"]);
    let pid = fixture.daemon_pid();
    kill(pid);
    assert_eq!(fs::read(&path).unwrap(), b"one two");
    assert_ne!(fixture.daemon_pid(), pid);
    fixture.umount();
}

#[test]
fn a_request_to_end_reaches_the_next_daemon_if_this_one_dies() {
    needs_mounts!();
    for is_killed in [false, true] {
        let fixture = Fixture::new();
        fixture.mount(&[]);
        fs::create_dir(fixture.mountpoint.join("app")).unwrap();
        fs::write(fixture.mountpoint.join("app/f"), "content").unwrap();
        let pid = fixture.daemon_pid();
        let supervisor = parent_of(pid);
        if is_killed {
            kill(pid);
        }
        let supervisor_pid = Pid::from_raw(supervisor as i32).unwrap();
        kill_process(supervisor_pid, Signal::TERM).unwrap();
        wait_for_end(supervisor);
        assert!(!fixture.is_mounted());
        let content = fs::read(fixture.store.join("app/f")).unwrap();
        assert_eq!(content, b"content");
    }
}

/// The daemon dies before, while or after it is asked: each time the mount is taken away. (It was
/// left where the daemon had taken the connection and not yet answered.)
#[test]
fn a_mount_whose_daemon_dies_while_it_is_unmounted_is_taken_away() {
    needs_mounts!();
    for lazily in [false, true].repeat(10) {
        let fixture = Fixture::new();
        fixture.mount(&["-o", "nosupervise"]);
        fs::write(fixture.mountpoint.join("file"), "content").unwrap();
        kill(fixture.daemon_pid());
        let mut umount = Command::new(PROGRAM);
        umount.arg("umount").args(lazily.then_some("--lazy"));
        let done = umount.arg(&fixture.mountpoint).output().unwrap();
        succeeds(&done);
        assert!(!fixture.is_mounted(), "{}", message(&done));
    }
}

/// Regression: the daemon dies at any moment of an unmount. Whether a successor unmounts, finds the
/// mount out of the tree and commits, or there is none: `mobifs umount` succeeds, the mount is gone,
/// and everything is in the store.
#[test]
fn an_unmount_succeeds_whenever_the_daemon_is_killed() {
    const KILLS: u64 = 12;
    needs_mounts!();
    let mut random = Random::new(variable("MOBIFS_KILL_SEED", 1));
    let fixture = Fixture::new();
    for round in 0..variable("MOBIFS_KILLS", KILLS) {
        // With another name in the table of mounts the daemon is asked for the store.
        let options = ["rw", "fsname=name"][round as usize % 2];
        fixture.mount(&["-o", options]);
        let pid = fixture.daemon_pid();
        let supervisor = parent_of(pid);
        let app = fixture.mountpoint.join(format!("app{round}"));
        fs::create_dir(&app).unwrap();
        let content: Vec<u8> = (0..300_000_u32).map(|at| (at / 9) as u8).collect();
        for number in 0..4 {
            fs::write(app.join(number.to_string()), &content).unwrap();
        }
        let mut umount = Command::new(PROGRAM);
        umount.arg("umount").arg(&fixture.mountpoint);
        let mut umount = umount.stderr(std::process::Stdio::piped()).spawn().unwrap();
        if round % 3 == 2 {
            // About when the mount has left the tree.
            while fixture.is_mounted() && umount.try_wait().unwrap().is_none() {}
        }
        std::thread::sleep(Duration::from_micros(random.below(60_000)));
        for _ in 0..1 + random.below(2) {
            if let Some(pid) = child_of(supervisor) {
                kill(pid);
            }
            std::thread::sleep(Duration::from_micros(random.below(10_000)));
        }
        let done = umount.wait_with_output().unwrap();
        if done.status.code() == Some(IN_USE) {
            // Another test is just starting a process, which has all our files.
            fixture.umount();
        } else {
            succeeds(&done);
        }
        assert!(!fixture.is_mounted(), "{}", message(&done));
        for number in 0..4 {
            let found = fs::read(fixture.store.join(format!("app{round}/{number}"))).unwrap();
            assert!(found == content, "round {round}: {}", message(&done));
        }
    }
}
