//! A store and a mount point, and the real program.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::alone::Shared;

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_mobifs");
/// How the program ends where a mount is in use.
pub(crate) const IN_USE: i32 = 3;
/// How umount(8) ends where it could not unmount.
const UMOUNT_FAILED: i32 = 32;
/// How long a mount without users may be busy.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long to wait before the next try.
const PAUSE: Duration = Duration::from_millis(1);

/// Leaves the test, with a message, where mounts are not possible.
macro_rules! needs_mounts {
    () => {
        if !mobifs_skip::can_mount() {
            return;
        }
    };
}
pub(crate) use needs_mounts;

/// Leaves the test, with a message, where the laboratory was not built beside the program, as by
/// `cargo test -p mobifs-cli` alone.
macro_rules! needs_laboratory {
    () => {
        let is_built = crate::fixture::laboratory().is_file();
        if !mobifs_skip::can((!is_built).then_some("no mobifs-lab beside mobifs")) {
            return;
        }
    };
}
pub(crate) use needs_laboratory;

/// Where the laboratory's program is.
pub(crate) fn laboratory() -> PathBuf {
    Path::new(PROGRAM).with_file_name("mobifs-lab")
}

/// A store and a mount point in a directory of their own.
pub(crate) struct Fixture {
    base: tempfile::TempDir,
    pub(crate) store: PathBuf,
    pub(crate) mountpoint: PathBuf,
    /// Other mounts to be taken away at the end, innermost last.
    others: Vec<PathBuf>,
    _shared: Shared,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        let shared = Shared::new();
        let base = tempfile::tempdir().unwrap();
        let root = base.path().canonicalize().unwrap();
        let (store, mountpoint) = (root.join("store"), root.join("mount"));
        fs::create_dir(&store).unwrap();
        fs::create_dir(&mountpoint).unwrap();
        Self {
            base,
            store,
            mountpoint,
            others: Vec::new(),
            _shared: shared,
        }
    }

    /// A path beside store and mount point.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.base.path().canonicalize().unwrap().join(name)
    }

    /// A new directory beside store and mount point.
    pub(crate) fn directory(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(&path).unwrap();
        path
    }

    /// A configuration file.
    pub(crate) fn config(&self, text: &str) -> PathBuf {
        let path = self.path("mobifs.toml");
        fs::write(&path, text).unwrap();
        path
    }

    /// Mounts another filesystem; it goes with the fixture.
    pub(crate) fn mount_other(&mut self, words: &[&str], at: &Path) {
        let done = Command::new("mount").args(words).arg(at).output().unwrap();
        assert!(done.status.success(), "mount {words:?}: {done:?}");
        self.unmount_at_end(at);
    }

    /// What is mounted there goes with the fixture.
    pub(crate) fn unmount_at_end(&mut self, at: &Path) {
        self.others.push(at.to_owned());
    }

    /// Mounts the store with these words before STORE and MOUNTPOINT.
    pub(crate) fn mount(&self, words: &[&str]) {
        succeeds(&self.try_mount(words));
    }

    pub(crate) fn try_mount(&self, words: &[&str]) -> Output {
        let log = self.path("log");
        let mut command = Command::new(PROGRAM);
        command.args(["mount", "--log"]).arg(log).args(words);
        command
            .arg(&self.store)
            .arg(&self.mountpoint)
            .output()
            .unwrap()
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    pub(crate) fn umount(&self) {
        self.umount_by(Command::new(PROGRAM).arg("umount"));
    }

    /// Unmounts with this command. A process that another test is starting has all our files open
    /// until it executes its program: the mount may be busy for that long.
    pub(crate) fn umount_by(&self, command: &mut Command) {
        command.arg(&self.mountpoint);
        let start = Instant::now();
        loop {
            let output = command.output().unwrap();
            let is_busy = matches!(output.status.code(), Some(IN_USE | UMOUNT_FAILED));
            if !is_busy || start.elapsed() > PATIENCE {
                return succeeds(&output);
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Begins to unmount with this command, and returns when the mount is out of the tree.
    pub(crate) fn begin_umount(&self, command: &mut Command) -> Child {
        command.arg(&self.mountpoint).stderr(Stdio::null());
        let start = Instant::now();
        let mut unmounting = command.spawn().unwrap();
        while self.is_mounted() {
            // Busy, as in `umount_by`.
            let has_failed = unmounting
                .try_wait()
                .unwrap()
                .is_some_and(|ended| !ended.success());
            if has_failed {
                assert!(start.elapsed() < PATIENCE, "{command:?}: the mount stays");
                unmounting = command.spawn().unwrap();
            }
        }
        unmounting
    }

    pub(crate) fn cut_power(&self) {
        succeeds(&mobifs(&["drill", "power-cut", "--yes"], &self.mountpoint));
    }

    pub(crate) fn is_mounted(&self) -> bool {
        is_mounted(&self.mountpoint)
    }

    pub(crate) fn status(&self) -> serde_json::Value {
        let output = mobifs(&["status", "--json"], &self.mountpoint);
        succeeds(&output);
        serde_json::from_slice(&output.stdout).unwrap()
    }

    pub(crate) fn daemon_pid(&self) -> u32 {
        u32::try_from(self.status()["daemon_pid"].as_u64().unwrap()).unwrap()
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("the daemon's log:\n{}", self.log());
        }
        if self.is_mounted() {
            // A test failed half-way: the daemon must end, in any state.
            let _ended = mobifs(&["drill", "power-cut", "--yes"], &self.mountpoint);
            let _ended = Command::new("umount")
                .arg("-l")
                .arg(&self.mountpoint)
                .output();
        }
        if std::thread::panicking() {
            // Those of a mount that is out of the tree, too.
            self.kill_processes();
        }
        for other in self.others.iter().rev() {
            let _ended = Command::new("umount").arg("-l").arg(other).output();
        }
    }
}

impl Fixture {
    /// Kills the supervisors and daemons that were started with this store.
    fn kill_processes(&self) {
        let store = self.store.as_os_str().as_encoded_bytes();
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let words = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let is_ours = words.starts_with(b"mobifs\0")
                && words.split(|&byte| byte == 0).any(|word| word == store);
            let pid = entry.file_name().to_str().and_then(|pid| pid.parse().ok());
            if let Some(pid) = pid.filter(|_| is_ours).and_then(Pid::from_raw) {
                let _ended = kill_process(pid, Signal::KILL);
            }
        }
    }
}

pub(crate) fn is_mounted(path: &Path) -> bool {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let path = path.to_str().unwrap();
    table
        .lines()
        .any(|line| line.split(' ').nth(4) == Some(path))
}

/// What a test waits for comes long before, on any machine.
const WAIT_MAX: Duration = Duration::from_secs(180);

/// Ends when the condition holds.
///
/// # Panics
/// If it does not in [`WAIT_MAX`].
pub(crate) fn wait_until(condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(
            start.elapsed() < WAIT_MAX,
            "it did not come in {WAIT_MAX:?}"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Mounts any store anywhere.
pub(crate) fn try_mount_at(store: &Path, mountpoint: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(PROGRAM);
    command
        .arg("mount")
        .args(words)
        .arg(store)
        .arg(mountpoint)
        .output()
        .unwrap()
}

/// Runs a command about one place.
pub(crate) fn mobifs(words: &[&str], place: &Path) -> Output {
    Command::new(PROGRAM)
        .args(words)
        .arg(place)
        .output()
        .unwrap()
}

/// Copies the program, by another process: while this one has a file open for writing, a process that
/// another test starts may have it, too, and the kernel refuses to execute it ("Text file busy").
pub(crate) fn copy_program(to: &Path) {
    succeeds(&Command::new("cp").arg(PROGRAM).arg(to).output().unwrap());
}

/// Runs the program under another name, as mount(8) does.
pub(crate) fn as_helper(name: &str, words: &[&str]) -> Output {
    Command::new(PROGRAM)
        .arg0(name)
        .args(words)
        .output()
        .unwrap()
}

pub(crate) fn succeeds(output: &Output) {
    assert!(
        output.status.success(),
        "{}: {}",
        output.status,
        message(output)
    );
}

/// What was said, without the program's name.
pub(crate) fn message(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).trim().to_owned()
}

/// The command failed with this exit code and one line that has these words, beside that it had to
/// wait, which it may have on a machine that is busy.
#[track_caller]
pub(crate) fn fails(output: &Output, code: i32, needles: &[&str]) {
    let said = message(output);
    let lines = said
        .lines()
        .filter(|line| !line.starts_with("mobifs: waiting for"));
    let said = lines.collect::<Vec<_>>().join("\n");
    assert_eq!(output.status.code(), Some(code), "{said}");
    assert_eq!(said.lines().count(), 1, "one clear sentence, not: {said}");
    for needle in needles {
        assert!(said.contains(needle), "{said:?} does not say {needle:?}");
    }
}

/// Every path below `directory` with kind and content, to see that nothing changed.
pub(crate) fn snapshot(directory: &Path) -> Vec<(PathBuf, String, Vec<u8>)> {
    let mut found = Vec::new();
    let mut waiting = vec![directory.to_owned()];
    while let Some(at) = waiting.pop() {
        for entry in fs::read_dir(&at).unwrap() {
            let entry = entry.unwrap();
            let kind = entry.file_type().unwrap();
            let content = if kind.is_file() {
                fs::read(entry.path()).unwrap()
            } else {
                Vec::new()
            };
            if kind.is_dir() {
                waiting.push(entry.path());
            }
            found.push((entry.path(), format!("{kind:?}"), content));
        }
    }
    found.sort();
    found
}
