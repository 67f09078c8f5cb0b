//! A real mount for a test: the binary, a store, cleaning up.

pub(crate) use mobifs_skip::can_mount;
use mobifs_testkit::mount::{self, Places, Program};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long a test waits for something that must happen, before it says that it did not.
const PATIENCE: Duration = Duration::from_secs(120);

/// The `mobifs` binary under test.
pub(crate) fn binary() -> PathBuf {
    Program::of_workspace().path().to_owned()
}

/// Runs a command that must succeed; returns what it printed.
pub(crate) fn succeed(command: &mut Command) -> String {
    done(mount::succeed(command))
}

/// A directory on a real disk that other users can enter, gone with the value.
pub(crate) fn scratch() -> TempDir {
    mount::scratch().expect("a scratch directory")
}

/// A mounted store; dropping it unmounts. Where it cannot do something, the test fails.
#[derive(Debug)]
pub(crate) struct Mount(mount::Mount);

impl Mount {
    /// Mounts `<base>/store` at `<base>/mnt`.
    pub(crate) fn new(base: &Path) -> Self {
        Self::over(base, base.join("store"), "")
    }

    /// Mounts `store` at `<base>/mnt`, with this configuration.
    pub(crate) fn over(base: &Path, store: PathBuf, config: &str) -> Self {
        let places = Places {
            store,
            ..Places::below(base)
        };
        places.make(config).expect("a store and a mount point");
        let mut mount = Self(mount::Mount::new(Program::of_workspace(), places));
        mount.mount();
        mount
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0.places().mountpoint
    }

    /// Mounts again, after [`Mount::cut_power`].
    pub(crate) fn mount(&mut self) {
        done(self.0.mount());
    }

    /// Unmounts cleanly.
    pub(crate) fn umount(&mut self) {
        done(self.0.umount());
    }

    /// Commits everything.
    pub(crate) fn sync(&self) {
        done(self.0.command(&["sync"]));
    }

    /// Ends the mount as a power cut would, and waits until the daemon is gone.
    pub(crate) fn cut_power(&mut self) {
        done(self.0.drill());
    }
}

fn done<T>(outcome: Result<T, String>) -> T {
    outcome.unwrap_or_else(|problem| panic!("{problem}"))
}

/// Waits for a condition that must come true.
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "timed out: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Runs a check on the bare disk and then on a mount over it.
pub(crate) fn on_both(check: impl Fn(&Path)) {
    if !can_mount() {
        return;
    }
    let base = scratch();
    let bare = base.path().join("bare");
    fs::create_dir(&bare).expect("a directory");
    check(&bare);
    let mut mount = Mount::new(base.path());
    let app = mount.path().join("app");
    fs::create_dir(&app).expect("a directory in the mount");
    check(&app);
    mount.umount();
}

/// Runs a Python program in `directory`; it must end well. Python is what makes shared
/// mappings, fork and lock calls reachable from a test without unsafe code.
pub(crate) fn python(directory: &Path, program: &str) {
    succeed(
        Command::new("python3")
            .arg("-c")
            .arg(program)
            .current_dir(directory),
    );
}

/// A filesystem in an image file on a loop device, mounted; undone on drop.
#[derive(Debug)]
pub(crate) struct Image {
    device: String,
    file: PathBuf,
    mountpoint: PathBuf,
}

impl Image {
    /// Formats `<base>/<name>.img` and mounts it at `<base>/<name>`.
    pub(crate) fn format(base: &Path, name: &str, filesystem: &str, mebibytes: u64) -> Self {
        let file = base.join(format!("{name}.img"));
        fs::File::create(&file)
            .and_then(|f| f.set_len(mebibytes << 20))
            .expect("an image file");
        let force = if filesystem == "ext4" { "-F" } else { "-f" };
        succeed(
            Command::new(format!("mkfs.{filesystem}"))
                .args(["-q", force])
                .arg(&file),
        );
        Self::open(file, base.join(name))
    }

    /// Mounts an image that is there, for example a copy of a running one.
    pub(crate) fn open(file: PathBuf, mountpoint: PathBuf) -> Self {
        fs::create_dir_all(&mountpoint).expect("a mount point");
        let printed = succeed(
            // Direct I/O: what the filesystem has flushed is in the file, and nothing else.
            Command::new("losetup")
                .args(["--find", "--show", "--direct-io=on"])
                .arg(&file),
        );
        let device = printed.trim().to_owned();
        let image = Self {
            device,
            file,
            mountpoint,
        };
        succeed(
            Command::new("mount")
                .arg(&image.device)
                .arg(&image.mountpoint),
        );
        image
    }

    pub(crate) fn file(&self) -> &Path {
        &self.file
    }

    pub(crate) fn path(&self) -> &Path {
        &self.mountpoint
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg(&self.mountpoint).output();
        if !unmounted.is_ok_and(|output| output.status.success()) {
            let _lazily = Command::new("umount")
                .arg("-l")
                .arg(&self.mountpoint)
                .output();
        }
        let _detached = Command::new("losetup")
            .arg("--detach")
            .arg(&self.device)
            .output();
    }
}
