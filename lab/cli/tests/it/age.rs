//! `mobifs frag age`: its command line, through MobiFS, and killed.

#![expect(
    clippy::unwrap_used,
    reason = "a helper of a test fails the test by panicking, as the test itself does"
)]

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::flash_serve::Server;

/// How long a test waits for something that must happen, before it says that it did not.
const PATIENCE: Duration = Duration::from_secs(60);
const PROGRAM: &str = env!("CARGO_BIN_EXE_mobifs-lab");
/// Seconds of work.
const SMALL: [&str; 14] = [
    "--capacity",
    "512MiB",
    "--scale",
    "0.004",
    "--days",
    "2",
    "--minutes-per-day",
    "7",
    "--update-days",
    "1",
    "--start-full",
    "40",
    "--full",
    "80",
];

/// An image that is aged; what a killed run left mounted goes with it.
pub(crate) struct Phone {
    base: TempDir,
}

impl Phone {
    pub(crate) fn new() -> Option<Self> {
        if !mobifs_skip::is_root() {
            return None;
        }
        let base = std::env::var_os("MOBIFS_SCRATCH").unwrap_or_else(|| "/var/tmp".into());
        let base = tempfile::tempdir_in(base).unwrap();
        let phone = Self { base };
        // Whether loop devices can be mounted here.
        let (image, at) = (phone.base.path().join("try"), phone.base.path().join("at"));
        fs::create_dir(&at).unwrap();
        fs::File::create(&image).unwrap().set_len(16 << 20).unwrap();
        let mut mkfs = Command::new("mkfs.ext4");
        let mut mount = Command::new("mount");
        for command in [
            mkfs.args(["-q", "-F"]).arg(&image),
            mount.args(["-o", "loop"]).arg(&image).arg(&at),
        ] {
            if !mobifs_skip::can(mobifs_skip::why_fails(command)) {
                return None;
            }
        }
        assert!(Command::new("umount").arg(&at).status().unwrap().success());
        Some(phone)
    }

    pub(crate) fn image(&self) -> PathBuf {
        self.base.path().join("phone.img")
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        command.args(["frag", "age", "--json", "--image"]);
        command.arg(self.image()).args(words);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        command.stderr(Stdio::piped());
        command
    }

    fn run(&self, words: &[&str]) -> Output {
        self.command(words).output().unwrap()
    }

    fn assert_nothing_is_mounted(&self) {
        let beside = self.base.path().join("phone.img.age");
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let beside = beside.canonicalize().unwrap();
        assert!(!table.contains(beside.to_str().unwrap()), "{table}");
    }

    /// The checksums of a run through this.
    pub(crate) fn aged(&self, through: &str) -> Vec<String> {
        let output = self.run(&[&SMALL[..], &["--through", through]].concat());
        assert!(output.status.success(), "{through}: {}", errors(&output));
        checksums(&output)
    }
}

impl Drop for Phone {
    fn drop(&mut self) {
        let beside = self.base.path().join("phone.img.age");
        for name in ["mount", "disk"] {
            let _output = Command::new("umount").arg(beside.join(name)).output();
        }
    }
}

pub(crate) fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn checksums(output: &Output) -> Vec<String> {
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let days = report["work"]["scenarios"]["days"].as_array().unwrap();
    let of_day = |day: &Value| day["checksum"].as_str().unwrap().to_owned();
    days.iter().map(of_day).collect()
}

/// Whether the product's program is built and can mount.
pub(crate) fn has_mobifs() -> bool {
    let program = Path::new(PROGRAM).with_file_name("mobifs");
    let is_there = program.is_file();
    mobifs_skip::can((!is_there).then_some("no mobifs beside mobifs-lab"))
        && mobifs_skip::can_mount()
}

#[test]
fn through_mobifs_the_tree_is_the_same_as_without() {
    let Some(phone) = Phone::new() else { return };
    if !has_mobifs() {
        return;
    }
    let plain = phone.aged("plain");
    assert_eq!(plain.len(), 3);
    for through in ["mount", "native", "vfs"] {
        let phone = Phone::new().unwrap();
        assert_eq!(phone.aged(through), plain, "{through}");
    }
}

/// What was deleted through the mount was still on the filesystem below when it was asked how full it is.
#[test]
fn filling_through_a_mount_ends_at_its_target() {
    let Some(phone) = Phone::new() else { return };
    if !has_mobifs() {
        return;
    }
    let words = [
        "--capacity",
        "400MB",
        "--fill",
        "moderate",
        "--through",
        "mount",
    ];
    let output = phone.run(&words);
    assert!(output.status.success(), "{}", errors(&output));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let filled = &report["work"]["large_and_small"]["filled"];
    assert!(
        filled["small_files_deleted"].as_u64() > Some(50),
        "{filled}"
    );
}

#[test]
fn a_killed_run_is_resumed_to_the_same_tree() {
    let Some(phone) = Phone::new() else { return };
    let whole = phone.aged("plain");
    for kill_after_ms in [300, 1_500] {
        assert_eq!(killed("plain", kill_after_ms), whole, "{kill_after_ms} ms");
    }
}

/// The worker under `mobifs run` went on with the image when the process was killed that had mounted it.
#[test]
fn a_killed_run_in_native_mode_leaves_no_worker_behind() {
    let Some(phone) = Phone::new() else { return };
    if !has_mobifs() {
        return;
    }
    assert_eq!(killed("native", 1_000), phone.aged("plain"));
}

/// Kills a run after some time, and resumes it.
fn killed(through: &str, kill_after_ms: u64) -> Vec<String> {
    let phone = Phone::new().unwrap();
    let words = [&SMALL[..], &["--through", through]].concat();
    let mut child = phone.command(&words).spawn().unwrap();
    wait_for_state(&phone);
    std::thread::sleep(Duration::from_millis(kill_after_ms));
    child.kill().unwrap();
    child.wait().unwrap();
    let output = phone.run(&["--resume"]);
    assert!(output.status.success(), "{}", errors(&output));
    checksums(&output)
}

/// An image on a small filesystem in memory, which is its host.
struct OnSmallHost(Phone);

impl OnSmallHost {
    fn new() -> Option<Self> {
        let phone = Phone::new()?;
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=400m", "tmpfs"]);
        succeed(mount.arg(phone.base.path()));
        Some(Self(phone))
    }

    /// Whether the first day is under way: a database is there.
    fn is_under_way(&self, through: &str) -> bool {
        let below = if through == "mount" { "mount" } else { "disk" };
        let beside = self.0.base.path().join("phone.img.age").join(below);
        beside.join("aged/data/camera/databases/media0.db").exists()
    }

    /// Takes all room of the host.
    fn fill(&self) {
        let mut hog = fs::File::create(self.0.base.path().join("hog")).unwrap();
        for part in [1 << 20, 4096] {
            while hog.write_all(&vec![1; part]).is_ok() {}
        }
    }
}

impl Drop for OnSmallHost {
    fn drop(&mut self) {
        // A daemon that cannot commit stays otherwise.
        let mut cut = Command::new(Path::new(PROGRAM).with_file_name("mobifs"));
        cut.args(["drill", "power-cut", "--yes"]);
        let _output = cut
            .arg(self.0.base.path().join("phone.img.age/mount"))
            .output();
        for name in ["phone.img.age/mount", "phone.img.age/disk", ""] {
            let mut umount = Command::new("umount");
            let _output = umount.arg("-l").arg(self.0.base.path().join(name)).output();
        }
    }
}

/// The error was one of the filesystem in the image or of a program, and with a mount of MobiFS, whose store cannot be
/// written any more, everything stayed mounted, and `--resume` could not unmount it either.
#[test]
fn a_host_that_becomes_full_is_named_and_with_room_the_run_goes_on() {
    let Some(phone) = Phone::new() else { return };
    // Long enough to become full meanwhile.
    let words = SMALL.map(|word| if word == "7" { "20" } else { word });
    let whole = checksums(&phone.run(&words));
    let through: &[&str] = if has_mobifs() {
        &["plain", "vfs", "mount"]
    } else {
        &["plain", "vfs"]
    };
    for through in through {
        let host = OnSmallHost::new().unwrap();
        let phone = &host.0;
        let words = [&words[..], &["--through", through]].concat();
        let child = phone.command(&words).spawn().unwrap();
        let start = Instant::now();
        while !host.is_under_way(through) {
            assert!(start.elapsed() < PATIENCE, "{through}: no database");
            std::thread::sleep(Duration::from_millis(5));
        }
        host.fill();
        let output = child.wait_with_output().unwrap();
        let said = errors(&output);
        assert_eq!(output.status.code(), Some(1), "{through}: {said}");
        let last = said.lines().next_back().unwrap();
        let is_named = last.contains("the filesystem below the image")
            && last.contains("make room there")
            && last.contains("frag age --resume --image");
        assert!(is_named, "{through}: {said}");
        phone.assert_nothing_is_mounted();
        fs::remove_file(phone.base.path().join("hog")).unwrap();
        let output = phone.run(&["--resume"]);
        assert!(output.status.success(), "{through}: {}", errors(&output));
        assert_eq!(checksums(&output), whole, "{through}");
    }
}

/// Whatever it was at: neither a new run nor `--resume` was possible when there was no state yet.
#[test]
fn a_run_that_is_killed_as_it_begins_is_started_again_or_resumed() {
    if Phone::new().is_none() {
        return;
    }
    let through: &[&str] = if has_mobifs() {
        &["plain", "mount", "native"]
    } else {
        &["plain"]
    };
    for through in through {
        for kill_after_ms in [10, 50, 150, 400] {
            let phone = Phone::new().unwrap();
            let words = [&SMALL[..], &["--through", through]].concat();
            let mut child = phone.command(&words).spawn().unwrap();
            std::thread::sleep(Duration::from_millis(kill_after_ms));
            child.kill().unwrap();
            child.wait().unwrap();
            let has_state = phone.base.path().join("phone.img.age/state.json").exists();
            // What it has started may take longer on a busy machine than a run waits for it.
            let start = Instant::now();
            let output = loop {
                let output = if has_state {
                    phone.run(&["--resume"])
                } else {
                    phone.run(&words)
                };
                let is_in_use = output.status.code() == Some(3) && start.elapsed() < PATIENCE;
                if !is_in_use {
                    break output;
                }
            };
            let errors = errors(&output);
            assert!(
                output.status.success(),
                "{through}, {kill_after_ms} ms: {errors}"
            );
            assert_eq!(checksums(&output).len(), 3);
            phone.assert_nothing_is_mounted();
        }
    }
}

/// Neither did `--through native`, whose work is another process's.
#[test]
fn a_signal_ends_a_run_with_the_words_that_resume_it() {
    signalled("plain");
    if has_mobifs() {
        signalled("native");
    }
}

fn signalled(through: &str) {
    let Some(phone) = Phone::new() else { return };
    // Long enough for the signal to come before the end.
    let long = [&SMALL[..], &["--minutes-per-day", "90"]].concat();
    let long: Vec<&str> = long
        .iter()
        .enumerate()
        .filter(|&(at, _)| !(6..8).contains(&at))
        .map(|(_, word)| *word)
        .collect();
    let long = [&long[..], &["--through", through]].concat();
    let child = phone.command(&long).spawn().unwrap();
    wait_for_state(&phone);
    // Its worker is there.
    std::thread::sleep(Duration::from_millis(500));
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = errors(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    let times = said.matches("frag age --resume --image").count();
    assert_eq!(times, 1, "{through}: {said}");
    phone.assert_nothing_is_mounted();
}

/// A mount point of its own was taken for a directory of the filesystem around it, and a link to one as well.
#[test]
fn a_mount_point_is_known_by_any_path() {
    let Some(phone) = Phone::new() else { return };
    let base = phone.base.path();
    fs::create_dir(base.join("beside")).unwrap();
    std::os::unix::fs::symlink("at", base.join("link")).unwrap();
    let mut mount = Command::new("mount");
    succeed(
        mount
            .args(["-o", "loop"])
            .arg(base.join("try"))
            .arg(base.join("at")),
    );
    for path in ["beside/../at", "link", "link/../at/."] {
        fs::write(base.join("at/mine"), "").unwrap();
        let mut command = Command::new(PROGRAM);
        let output = command
            .args(["frag", "age"])
            .arg(base.join(path))
            .output()
            .unwrap();
        let said = errors(&output);
        assert!(said.contains("is not empty"), "{path}: {said}");
    }
    succeed(Command::new("umount").arg(base.join("at")));
}

fn wait_for_state(phone: &Phone) {
    let state = phone.base.path().join("phone.img.age/state.json");
    let start = Instant::now();
    while !state.exists() {
        assert!(start.elapsed() < PATIENCE, "no state");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_directory_is_filled_and_a_full_one_is_refused() {
    let base = tempfile::tempdir().unwrap();
    let path = base.path().to_str().unwrap();
    let run = |words: &[&str]| {
        let mut command = Command::new(PROGRAM);
        command.args(["frag", "age"]).args(words).output().unwrap()
    };
    let refused = |words: &[&str], code: i32, said: &str| {
        let output = run(words);
        let errors = errors(&output);
        assert_eq!(output.status.code(), Some(code), "{words:?}: {errors}");
        assert!(errors.contains(said), "{words:?}: {errors}");
        assert!(output.stdout.is_empty(), "{words:?}");
    };
    let output = run(&["--fill", "low", path]);
    assert!(output.status.success(), "{}", errors(&output));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("no files were made"), "{said}");
    refused(&["--fill", "low", path], 2, "is not empty");
    refused(&["--fill", "full", path], 2, "or add --yes");
    refused(&[path], 2, "or add --yes");
    refused(&["--yes", path], 2, "is not empty");
    refused(&["--resume", "/nonexistent"], 2, "no run to resume");
    refused(&["--resume", "--seed", "1", path], 2, "cannot be used");
    refused(&["--seed", "x", path], 2, "--seed");
    refused(&["--yes", "--seed", "9007199254740992", path], 2, "--seed");
    refused(&["--yes", "--full", "101", path], 2, "0 to 100 %");
    refused(
        &["--yes", "--full", "60", path],
        2,
        "--start-full is 70 %, and must be less than --full",
    );
    refused(&["--through", "mount", "--yes", path], 2, "--image");
    refused(
        &["--yes", "--profile", "/nonexistent", path],
        1,
        "No such file",
    );
    refused(&["--image", "/x", "--capacity", "many"], 2, "many");
    refused(&["--image", "/dev/null"], 2, "there already");
    refused(&["/nonexistent"], 1, "No such file");
    refused(&[], 2, "DIR");
    let state = base.path().join("mobifs-age.json");
    fs::write(&state, "{").unwrap();
    refused(&["--resume", path], 4, "damaged");
}

/// A directory on a served device, which is aged there.
struct OnDevice {
    base: TempDir,
    server: Server,
}

impl OnDevice {
    fn new() -> Self {
        let base = std::env::var_os("MOBIFS_SCRATCH").unwrap_or_else(|| "/var/tmp".into());
        let base = tempfile::tempdir_in(base).unwrap();
        let server = Server::of_size(&base.path().join("device"), "512MiB");
        let device = Self { base, server };
        fs::create_dir(device.at()).unwrap();
        let mut mkfs = Command::new("mkfs.ext4");
        succeed(
            mkfs.args(["-q", "-m0", "-b4096"])
                .arg(&device.server.loop_device),
        );
        device.mount();
        fs::remove_dir(device.at().join("lost+found")).unwrap();
        device
    }

    fn at(&self) -> PathBuf {
        self.base.path().join("at")
    }

    fn mount(&self) {
        let mut mount = Command::new("mount");
        succeed(mount.arg(&self.server.loop_device).arg(self.at()));
    }

    fn flash(&self, words: &[&str]) {
        let mut flash = Command::new(PROGRAM);
        let image = self.base.path().join("device");
        succeed(flash.arg("flash").args(words).arg(image));
    }

    fn age(&self, words: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        command
            .args(["frag", "age", "--json"])
            .args(words)
            .arg(self.at());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }
}

impl Drop for OnDevice {
    fn drop(&mut self) {
        let _output = Command::new("umount").arg(self.at()).output();
    }
}

fn succeed(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", errors(&output));
}

/// The device loses power while the tree ages: a sentence that says how to go on, and then the tree is that of a
/// run without a cut.
#[test]
fn a_device_that_is_cut_meanwhile_loses_nothing() {
    const WORDS: [&str; 10] = [
        "--scale",
        "0.004",
        "--days",
        "2",
        "--minutes-per-day",
        "7",
        "--start-full",
        "40",
        "--full",
        "80",
    ];
    if Phone::new().is_none() || !mobifs_skip::can_mount() {
        return;
    }
    let device = OnDevice::new();
    let whole = checksums(&device.age(&WORDS).output().unwrap());
    assert_eq!(whole.len(), 3);
    // Now and then a cut tears the superblock of ext4, of which so small a filesystem has no copy.
    let resumed = (3..13).find_map(|seed| aged_with_a_cut(&WORDS, seed));
    assert_eq!(resumed.expect("no cut leaves the superblock whole"), whole);
}

/// The checksums of a run that a power cut ends and another one resumes; none if the cut tears the superblock.
fn aged_with_a_cut(words: &[&str], seed: u32) -> Option<Vec<String>> {
    let device = OnDevice::new();
    let run = device.age(words).spawn().unwrap();
    let start = Instant::now();
    // Databases are there: the first day is under way.
    while !device
        .at()
        .join("aged/data/facebook/databases/newsfeed1.db")
        .exists()
    {
        assert!(start.elapsed() < PATIENCE, "no database");
        std::thread::sleep(Duration::from_millis(5));
    }
    device.flash(&["cut", "--keep", &format!("random:{seed}")]);
    let output = run.wait_with_output().unwrap();
    let said = errors(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    let last = said.lines().next_back().unwrap();
    assert!(
        last.contains("go on with: mobifs frag age --resume"),
        "{said}"
    );
    succeed(Command::new("umount").arg(device.at()));
    device.flash(&["power-on"]);
    let mut check = Command::new("e2fsck");
    let checked = check.arg("-fy").arg(&device.server.loop_device).output();
    let checked = checked.unwrap();
    let found = String::from_utf8_lossy(&checked.stdout);
    if checked.status.code() == Some(8) && found.contains("The superblock could not be read") {
        return None;
    }
    assert!(matches!(checked.status.code(), Some(0 | 1)), "{checked:?}");
    device.mount();
    let resumed = device.age(&["--resume"]).output().unwrap();
    assert!(resumed.status.success(), "{}", errors(&resumed));
    Some(checksums(&resumed))
}
