//! Daemons that cannot take over: each successor dies at a chosen place, in a chosen way. What
//! was acknowledged is in the store afterwards, the mount is gone, no process is left, and the
//! store can be mounted again. A request to end ends all of it at any time.
//!
//! `MOBIFS_POISON_ROUNDS` and `MOBIFS_POISON_SEED` make it longer and different
//! (`make poison-campaign`).

use std::fs;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use mobifs_numerics::Random;
use mobifs_volume::{FAULT_POINTS, FAULTS};
use rustix::process::{Pid, Signal, kill_process};

use crate::fixture::{Fixture, PROGRAM, needs_mounts, snapshot, succeeds, wait_until};
use crate::kills::kill;

/// Nothing is committed by itself: what is found afterwards was committed by the last process.
const CONFIG: &str = "
[defaults]
age_max_ms = 3600000
policy = \"interval\"
interval_ms = 3600000
";
/// How long a process may take until its next report here.
const PATIENCE_MS: &str = "2500";
/// Deeper than recursion in any process would get.
const DEPTH: usize = 300;

/// What ends the mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The supervisor sees that no daemon can take over.
    ByItself,
    /// A user asks for it, so long after the first daemon died.
    Asked(Duration),
}

/// The processes that have this path among their words.
fn processes_of(path: &Path) -> Vec<u32> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<u32>() else {
            continue;
        };
        let words = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let mut words = words.split(|&byte| byte == 0);
        if pid != std::process::id() && words.any(|word| word == path.as_os_str().as_bytes()) {
            found.push(pid);
        }
    }
    found
}

fn parent_of(pid: u32) -> u32 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("PPid:"));
    line.unwrap()[5..].trim().parse().unwrap()
}

fn ask_to_end(pid: u32) {
    // It may have ended already.
    let _gone = kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), Signal::TERM);
}

/// Some of everything that a program does, in several apps; none of it is committed.
fn work_on(mountpoint: &Path, random: &mut Random) {
    for app in ["one", "two", "three"] {
        let app = mountpoint.join(app);
        fs::create_dir(&app).unwrap();
        for number in 0..20 {
            let path = app.join(format!("file-{number}"));
            let length = random.below(20_000) as usize;
            fs::write(&path, vec![number as u8; length]).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600 + number)).unwrap();
        }
        fs::remove_file(app.join("file-3")).unwrap();
        fs::rename(app.join("file-4"), app.join("moved")).unwrap();
        fs::hard_link(app.join("file-5"), app.join("link")).unwrap();
        std::os::unix::fs::symlink("file-6", app.join("symlink")).unwrap();
        let mut options = fs::OpenOptions::new();
        let mut file = options.append(true).open(app.join("file-7")).unwrap();
        file.write_all(b"appended").unwrap();
    }
    fs::rename(mountpoint.join("one/file-8"), mountpoint.join("two/across")).unwrap();
    let mut deep = mountpoint.join("three");
    for _ in 0..DEPTH {
        deep.push("d");
        fs::create_dir(&deep).unwrap();
    }
    fs::write(deep.join("bottom"), b"deep").unwrap();
}

/// One mount whose successors die at `point` by `fault`, from its beginning to the next one.
fn poisoned(point: &str, fault: &str, end: End, random: &mut Random) {
    let about = format!("{point}={fault}, {end:?}");
    let fixture = Fixture::new();
    let config = fixture.config(CONFIG);
    let words = ["--config", config.to_str().unwrap()];
    // What is committed, and changed again below, is no new object.
    fixture.mount(&words);
    fs::create_dir(fixture.mountpoint.join("before")).unwrap();
    let before = fixture.mountpoint.join("before/file");
    fs::write(&before, vec![b'b'; 30_000]).unwrap();
    fixture.umount();

    let mut command = Command::new(PROGRAM);
    command
        .env("MOBIFS_FAULT_POINT", format!("{point}={fault}"))
        .env("MOBIFS_PATIENCE_MS", PATIENCE_MS)
        .args(["mount", "--log"])
        .arg(fixture.path("log"))
        .args(words)
        .args([&fixture.store, &fixture.mountpoint]);
    succeeds(&command.output().unwrap());
    work_on(&fixture.mountpoint, random);
    let mut file = fs::OpenOptions::new().write(true).open(&before).unwrap();
    file.write_all(b"changed").unwrap();
    drop(file);
    let expected = contents(&fixture.mountpoint);
    let daemon = fixture.daemon_pid();
    let supervisor = parent_of(daemon);
    kill(daemon);
    if let End::Asked(after) = end {
        std::thread::sleep(after);
        // A daemon that serves asks for a second request to end at once.
        while fs::exists(format!("/proc/{supervisor}/exe")).unwrap() {
            ask_to_end(supervisor);
            std::thread::sleep(Duration::from_millis(300));
        }
    }
    wait_until(|| processes_of(&fixture.store).is_empty());
    eprintln!("{about}: {} processes died", deaths(&fixture));
    assert!(!fixture.is_mounted(), "{about}: {}", fixture.log());
    let log = fixture.log();
    // A successor that has taken over and hangs in one thread may still end as it should when it is
    // asked to: the second unmount of the log. What it leaves is checked below, as after all ends.
    let has_ended = matches!(end, End::Asked(_)) && log.matches("unmounted store").count() == 2;
    assert!(
        has_ended || log.contains("no daemon could go on"),
        "{about}"
    );
    fixture.mount(&words);
    let found = contents(&fixture.mountpoint);
    fixture.umount();
    assert!(found == expected, "{about}: {}", fixture.log());
    assert!(contents(&fixture.store) == expected, "{about}");
}

fn deaths(fixture: &Fixture) -> usize {
    fixture.log().matches("the daemon died").count()
}

/// What a snapshot has but the store's own directory.
fn contents(directory: &Path) -> Vec<(PathBuf, String, Vec<u8>)> {
    let mut found = snapshot(directory);
    for (path, ..) in &mut found {
        *path = path.strip_prefix(directory).unwrap().to_owned();
    }
    found.retain(|(path, ..)| !path.starts_with(".mobifs"));
    found
}

fn rounds() -> Option<u64> {
    let rounds = std::env::var("MOBIFS_POISON_ROUNDS").ok()?;
    Some(rounds.parse().unwrap())
}

fn random() -> Random {
    let seed = std::env::var("MOBIFS_POISON_SEED").ok();
    Random::new(seed.map_or(1, |seed| seed.parse().unwrap()))
}

/// Whether successors that fail there are taken for daemons that serve: only a wait for their end
/// shows that they hang.
fn is_after_ready(point: &str) -> bool {
    matches!(point, "ready" | "commit")
}

#[test]
fn what_was_acknowledged_is_in_the_store_wherever_successors_die() {
    needs_mounts!();
    let mut random = random();
    let mut cases = Vec::new();
    match rounds() {
        // Each place, and each way to die at some place.
        None => {
            let faults = FAULTS.into_iter().filter(|fault| *fault != "hang").cycle();
            cases.extend(FAULT_POINTS.into_iter().zip(faults));
            cases.push(("engine", "hang"));
        }
        Some(rounds) => {
            for _ in 0..rounds {
                for point in FAULT_POINTS {
                    let faults = FAULTS.into_iter();
                    let faults = faults.filter(|fault| *fault != "hang" || !is_after_ready(point));
                    cases.extend(faults.map(|fault| (point, fault)));
                }
            }
        }
    }
    for (point, fault) in cases {
        poisoned(point, fault, End::ByItself, &mut random);
    }
}

#[test]
fn a_request_to_end_ends_all_wherever_successors_die() {
    needs_mounts!();
    let mut random = random();
    if let Some(rounds) = rounds() {
        for _ in 0..rounds {
            for (point, fault) in FAULT_POINTS
                .into_iter()
                .flat_map(|point| FAULTS.map(|fault| (point, fault)))
            {
                let after = Duration::from_millis(random.below(2_000));
                poisoned(point, fault, End::Asked(after), &mut random);
            }
        }
        return;
    }
    for (point, fault, after_ms) in [
        ("attach", "hang", 200),
        ("commit", "hang", 500),
        ("session", "abort", 100),
    ] {
        let after = Duration::from_millis(after_ms);
        poisoned(point, fault, End::Asked(after), &mut random);
    }
}
