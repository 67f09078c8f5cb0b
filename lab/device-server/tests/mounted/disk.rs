//! A served device with an ext4 on it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use mobifs_device_model::Preset;
use mobifs_device_server::{EndHandle, Keep, Reply, Request, Scale, ServeOptions, Served, ask};
use serde_json::Value;
use tempfile::TempDir;

/// How long a test waits for something that must happen, before it says that it did not.
const PATIENCE: Duration = Duration::from_secs(120);

/// Whether a test can run here; says so if not.
pub(crate) fn can_run(programs: &[&str]) -> bool {
    let reason = if let Some(reason) = mobifs_skip::why_no_mounts() {
        Some(reason.to_owned())
    } else if !Path::new("/dev/loop-control").exists() {
        Some("no loop devices".to_owned())
    } else {
        let missing = programs.iter().find(|program| !is_installed(program));
        missing.map(|program| format!("no {program}"))
    };
    mobifs_skip::can(reason)
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain([PathBuf::from("/usr/sbin"), PathBuf::from("/sbin")])
        .any(|directory| directory.join(program).exists())
}

pub(crate) fn run(command: &mut Command) -> Output {
    command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

/// Runs a command that must succeed; returns what it printed.
pub(crate) fn succeed(command: &mut Command) -> String {
    let output = run(command);
    let text = text(&output);
    assert!(output.status.success(), "{command:?}: {text}");
    text
}

pub(crate) fn text(output: &Output) -> String {
    let (out, err) = (&output.stdout, &output.stderr);
    String::from_utf8_lossy(out).into_owned() + &String::from_utf8_lossy(err)
}

/// Waits for a condition that must come true.
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "timed out: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// What a check of the filesystem said after a power cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Verdict {
    /// There was nothing to do.
    Clean,
    /// The journal was replayed, and then all was well.
    JournalRecovered,
}

/// How the filesystem is recovered after a cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recovery {
    /// By `e2fsck -p`.
    Check,
    /// By the kernel, at mount.
    Mount,
}

/// A served device; ended on drop, whatever is mounted from it.
pub(crate) struct Disk {
    pub(crate) directory: TempDir,
    pub(crate) mountpoint: PathBuf,
    image: PathBuf,
    served: Option<Served>,
    end: EndHandle,
}

impl Disk {
    pub(crate) fn serve(
        mebibytes: u64,
        scale: f64,
        change: impl FnOnce(&mut ServeOptions),
    ) -> Self {
        let parent = std::env::var_os("MOBIFS_SCRATCH").unwrap_or_else(|| "/var/tmp".into());
        let directory = tempfile::Builder::new()
            .prefix("mobifs-flash-")
            .tempdir_in(parent)
            .unwrap();
        let mountpoint = directory.path().join("mnt");
        fs::create_dir(&mountpoint).unwrap();
        let mut options = ServeOptions {
            image: directory.path().join("image"),
            size_bytes: Some(mebibytes << 20),
            config: Some(Preset::Emmc51.config().unwrap()),
            seed: Some(1),
            scale: Scale::new(scale).unwrap(),
            journal: None,
            nbd: None,
            loop_device: true,
            mountpoint: None,
        };
        change(&mut options);
        let served = Served::start(&options).unwrap();
        Self {
            directory,
            mountpoint,
            image: options.image,
            end: served.end_handle(),
            served: Some(served),
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn image(&self) -> PathBuf {
        self.image.clone()
    }

    pub(crate) fn ask(&self, request: &Request) -> Reply {
        ask(&self.image(), request).unwrap()
    }

    pub(crate) fn loop_device(&self) -> PathBuf {
        self.served.as_ref().unwrap().ready().loop_device.unwrap()
    }

    pub(crate) fn stats(&self) -> Value {
        match self.ask(&Request::Stats) {
            Reply::Stats { stats } => stats,
            other => panic!("{other:?}"),
        }
    }

    /// How many commands of a kind the device has got.
    pub(crate) fn commands(&self, kind: &str) -> u64 {
        let stats = self.stats();
        let kinds = stats["device"]["commands"].as_array().unwrap();
        let found = kinds.iter().find(|entry| entry["kind"] == kind);
        found.map_or(0, |entry| entry["commands"].as_u64().unwrap())
    }

    pub(crate) fn format(&self) {
        succeed(
            Command::new("mkfs.ext4")
                .args(["-q", "-F"])
                .arg(self.loop_device()),
        );
    }

    pub(crate) fn mount(&self) {
        succeed(
            Command::new("mount")
                .arg(self.loop_device())
                .arg(&self.mountpoint),
        );
    }

    /// A process that another test is starting has all our files open until it executes its
    /// program: the filesystem may be busy for that long.
    pub(crate) fn umount(&self) {
        wait_until("unmounted", || {
            let output = run(Command::new("umount").arg(&self.mountpoint));
            let done = output.status.success();
            let said = text(&output);
            assert!(done || said.contains("busy"), "umount: {said}");
            done
        });
    }

    pub(crate) fn cut(&self, keep: Keep) -> Value {
        match self.ask(&Request::Cut { keep }) {
            Reply::Cut { report } => report,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn power_on(&self) {
        match self.ask(&Request::PowerOn) {
            Reply::PoweredOn { .. } => {}
            other => panic!("{other:?}"),
        }
    }

    /// Brings the filesystem back after a cut and checks that it is consistent.
    pub(crate) fn recover(&self, how: Recovery) -> Verdict {
        let device = self.loop_device();
        let needed = succeed(Command::new("dumpe2fs").arg("-h").arg(&device));
        let verdict = if needed.contains("needs_recovery") {
            Verdict::JournalRecovered
        } else {
            Verdict::Clean
        };
        match how {
            Recovery::Check => {
                let checked = run(Command::new("e2fsck").args(["-f", "-p"]).arg(&device));
                let code = checked.status.code();
                assert!(matches!(code, Some(0 | 1)), "e2fsck -p: {}", text(&checked));
            }
            Recovery::Mount => {
                self.mount();
                self.umount();
            }
        }
        // Now there must be nothing at all to complain of.
        succeed(Command::new("e2fsck").args(["-f", "-n"]).arg(&device));
        verdict
    }

    /// Ends the server as SIGTERM does.
    pub(crate) fn end(&mut self) {
        self.end.end().unwrap();
        self.served.take().unwrap().wait().unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.served.is_some() {
            let _lazily = Command::new("umount")
                .arg("-l")
                .arg(&self.mountpoint)
                .output();
            let _ended = self.end.end_now();
        }
    }
}
