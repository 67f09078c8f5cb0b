//! A filesystem that is steered, and another one.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use mobifs_steered::{Device, Directory, Registration};

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_mobifs");

/// Leaves the test, with a message, where no filesystem can be mounted.
macro_rules! needs_root {
    () => {
        if !mobifs_skip::is_root() {
            return;
        }
    };
}
pub(crate) use needs_root;

/// How calls reach whoever decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    Both,
    Preload,
    Seccomp,
}

impl By {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Both => "--mechanism=both",
            Self::Preload => "--mechanism=preload",
            Self::Seccomp => "--mechanism=seccomp",
        }
    }
}

/// One test's `sync` flushes what another test's are counted on.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Longer than any test takes: no daemon renews the promise.
pub(crate) const PROMISE_S: u32 = 3600;

/// Two filesystems on loop devices, one of them registered.
pub(crate) struct Fixture {
    base: tempfile::TempDir,
    mounts: Vec<PathBuf>,
    registration: Option<Registration>,
    _alone: MutexGuard<'static, ()>,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        // A test that failed has not left it in between.
        let alone = ONE_AT_A_TIME.lock();
        let alone = alone.unwrap_or_else(|poisoned| poisoned.into_inner());
        let base = tempfile::tempdir().unwrap();
        let mut fixture = Self {
            base,
            mounts: Vec::new(),
            registration: None,
            _alone: alone,
        };
        fixture.mount("steered", "loop,data=journal,commit=300");
        fixture.mount("other", "loop,commit=300");
        let steered = fs::File::open(fixture.steered()).unwrap();
        let device = Device::of(&steered).unwrap();
        fixture.registration = Some(fixture.promise(device));
        fixture
    }

    /// What a daemon promises that steers the filesystem.
    pub(crate) fn promise(&self, device: Device) -> Registration {
        let registration = Registration::claim_in(&self.directory(), device).unwrap();
        registration.promise(PROMISE_S).unwrap();
        registration
    }

    fn mount(&mut self, name: &str, options: &str) {
        let image = self.path(&format!("{name}.img"));
        fs::File::create(&image).unwrap().set_len(48 << 20).unwrap();
        let place = self.path(name);
        fs::create_dir(&place).unwrap();
        let image = image.to_str().unwrap();
        does("mkfs.ext4", &["-q", "-F", image]);
        does("mount", &["-o", options, image, place.to_str().unwrap()]);
        self.mounts.push(place);
    }

    /// Mounts a filesystem that is larger than what is below it.
    pub(crate) fn mount_on_too_small_a_disk(&mut self) -> PathBuf {
        let (disk, place) = (self.path("disk"), self.path("broken"));
        fs::create_dir(&disk).unwrap();
        fs::create_dir(&place).unwrap();
        let words = [
            "-t",
            "tmpfs",
            "-o",
            "size=10m",
            "none",
            disk.to_str().unwrap(),
        ];
        does("mount", &words);
        self.mounts.push(disk.clone());
        let image = disk.join("image");
        fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
        let image = image.to_str().unwrap();
        does(
            "mkfs.ext4",
            &["-q", "-F", "-E", "lazy_itable_init=1", image],
        );
        let options = "loop,data=journal,commit=300";
        does("mount", &["-o", options, image, place.to_str().unwrap()]);
        self.mounts.push(place.clone());
        place
    }

    pub(crate) fn mount_btrfs(&mut self) -> PathBuf {
        let (image, place) = (self.path("btrfs.img"), self.path("btrfs"));
        fs::File::create(&image)
            .unwrap()
            .set_len(128 << 20)
            .unwrap();
        fs::create_dir(&place).unwrap();
        let image = image.to_str().unwrap();
        does("mkfs.btrfs", &["-q", image]);
        let options = "loop,flushoncommit,commit=300";
        does("mount", &["-o", options, image, place.to_str().unwrap()]);
        self.mounts.push(place.clone());
        place
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.base.path().join(name)
    }

    pub(crate) fn steered(&self) -> PathBuf {
        self.path("steered")
    }

    pub(crate) fn other(&self) -> PathBuf {
        self.path("other")
    }

    pub(crate) fn directory(&self) -> Directory {
        Directory::at(&self.path("registrations")).unwrap()
    }

    pub(crate) fn registration(&self) -> &Registration {
        self.registration.as_ref().unwrap()
    }

    /// Ends the promise as a daemon does that ends.
    pub(crate) fn unregister(&mut self) {
        self.registration = None;
    }

    /// `mobifs run` with these words before the command.
    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        command.arg("run").args(words);
        command.env(mobifs_steered::ENVIRONMENT, self.directory().path());
        command.env("MOBIFS_RUN_PRELOAD", library());
        command
    }

    pub(crate) fn run(&self, words: &[&str]) -> Output {
        self.command(words).output().unwrap()
    }

    /// What the test's own program says about these steps.
    pub(crate) fn outcomes(&self, by: By, steps: &str) -> String {
        let mut command = self.command(&[by.word(), "--"]);
        crate::program::add_to(&mut command, steps);
        crate::program::outcomes(&mut command)
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        for place in self.mounts.iter().rev() {
            let _ended = Command::new("umount").arg("-l").arg(place).output();
        }
    }
}

/// The library as it is built beside the program.
pub(crate) fn library() -> PathBuf {
    Path::new(PROGRAM).with_file_name("libmobifs_run.so")
}

/// Mechanisms that can be tested here; the library is not built by `cargo test -p mobifs-cli` alone.
pub(crate) fn mechanisms() -> Vec<By> {
    if library().is_file() {
        vec![By::Preload, By::Seccomp, By::Both]
    } else {
        mobifs_skip::skip_part("no libmobifs_run.so beside mobifs");
        vec![By::Seccomp]
    }
}

const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn wait_until(condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "it did not come");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A static program, where there is Go.
pub(crate) fn build_go(fixture: &Fixture, text: &str) -> Option<String> {
    let (source, program) = (fixture.path("program.go"), fixture.path("program-go"));
    fs::write(&source, text).unwrap();
    let built = Command::new("go")
        .args(["build", "-o"])
        .args([&program, &source])
        .env("CGO_ENABLED", "0")
        .env("GOFLAGS", "-mod=mod")
        .env("GOCACHE", fixture.path("cache"))
        .current_dir(fixture.path("."))
        .output();
    let obstacle = match built {
        Ok(built) if built.status.success() => None,
        other => Some(format!("no Go: {other:?}")),
    };
    mobifs_skip::can(obstacle).then(|| program.to_str().unwrap().to_owned())
}

pub(crate) fn does(program: &str, words: &[&str]) {
    let output = Command::new(program).args(words).output().unwrap();
    assert!(output.status.success(), "{program} {words:?}: {output:?}");
}

/// What was said, in one line.
pub(crate) fn message(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).trim().to_owned()
}
