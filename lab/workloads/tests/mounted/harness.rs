//! A real mount for a test: the binary, a store, cleaning up.

pub(crate) use mobifs_skip::can_mount;
use mobifs_testkit::mount::{self, Program, printed};
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
    mount::succeed(command).unwrap_or_else(|problem| panic!("{problem}"))
}

/// A directory on a real disk that other users can enter, gone with the value.
pub(crate) fn scratch() -> TempDir {
    use std::os::unix::fs::PermissionsExt;
    let parent = std::env::var_os("MOBIFS_SCRATCH").unwrap_or_else(|| "/var/tmp".into());
    let dir = tempfile::Builder::new()
        .prefix("mobifs-test-")
        .tempdir_in(parent)
        .expect("a scratch directory");
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).expect("chmod");
    dir
}

/// A mounted store. Dropping it unmounts.
#[derive(Debug)]
pub(crate) struct Mount {
    store: PathBuf,
    mountpoint: PathBuf,
    config: Option<PathBuf>,
}

impl Mount {
    /// Mounts `<base>/store` at `<base>/mnt`.
    pub(crate) fn new(base: &Path) -> Self {
        Self::at(base.join("store"), base.join("mnt"), None)
    }

    /// Mounts `store` at `mountpoint`, with a configuration file if one is given.
    pub(crate) fn at(store: PathBuf, mountpoint: PathBuf, config: Option<PathBuf>) -> Self {
        fs::create_dir_all(&store).expect("the store directory");
        fs::create_dir_all(&mountpoint).expect("the mount point");
        let mount = Self {
            store,
            mountpoint,
            config,
        };
        mount.mount();
        mount
    }

    pub(crate) fn path(&self) -> &Path {
        &self.mountpoint
    }

    /// Mounts again, after [`Mount::cut_power`].
    pub(crate) fn mount(&self) {
        let mut command = Command::new(binary());
        command.arg("mount");
        if let Some(config) = &self.config {
            command.arg("--config").arg(config);
        }
        succeed(command.arg(&self.store).arg(&self.mountpoint));
    }

    /// Unmounts cleanly.
    pub(crate) fn umount(&self) {
        let unmounted = Program::of_workspace().umount(&self.mountpoint);
        unmounted.unwrap_or_else(|problem| panic!("{problem}"));
    }

    /// Commits everything.
    pub(crate) fn sync(&self) {
        succeed(Command::new(binary()).arg("sync").arg(&self.mountpoint));
    }

    /// The status document.
    pub(crate) fn status(&self) -> serde_json::Value {
        let output = Command::new(binary())
            .args(["status", "--json"])
            .arg(&self.mountpoint)
            .output()
            .expect("mobifs runs");
        assert!(output.status.success(), "status: {}", printed(&output));
        serde_json::from_slice(&output.stdout).expect("status prints JSON")
    }

    /// Ends the mount as a power cut would, and waits until the daemon is gone.
    pub(crate) fn cut_power(&self) {
        let pid = self.status()["daemon_pid"]
            .as_u64()
            .expect("daemon_pid in the status");
        succeed(
            Command::new(binary())
                .args(["drill", "power-cut", "--yes"])
                .arg(&self.mountpoint),
        );
        wait_until("the daemon ends after the power cut", || {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.is_empty() || stat.contains(") Z ")
        });
        self.detach();
    }

    fn is_mounted(&self) -> bool {
        mount::is_mounted(&self.mountpoint)
    }

    fn detach(&self) {
        while self.is_mounted() {
            // A lazy unmount of something mounted fails for nothing but a race with its end.
            let _raced = Command::new("umount")
                .arg("-l")
                .arg(&self.mountpoint)
                .output();
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.is_mounted() {
            let _tried = Command::new(binary())
                .arg("umount")
                .arg(&self.mountpoint)
                .output();
        }
        self.detach();
    }
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
    let mount = Mount::new(base.path());
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
