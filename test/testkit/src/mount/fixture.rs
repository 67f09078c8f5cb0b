//! A mount whose daemon is our own child, so that it can be killed.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::program::Program;

/// What the daemon says on standard output when its mount is usable.
const MOUNTED: &str = "\"mounted\"";

/// How long a killed daemon may take to end.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long to wait between two checks.
const PAUSE: Duration = Duration::from_micros(500);

/// Where a mount is and how it is configured.
#[derive(Clone, Debug)]
pub struct Places {
    /// Directory that holds the files.
    pub store: PathBuf,
    /// Where it is mounted.
    pub mountpoint: PathBuf,
    /// Configuration file.
    pub config: PathBuf,
    /// Where the daemon logs to.
    pub log: PathBuf,
}

impl Places {
    /// Everything in one directory; nothing is made there.
    pub fn below(base: &Path) -> Self {
        Self {
            store: base.join("store"),
            mountpoint: base.join("mnt"),
            config: base.join("mobifs.toml"),
            log: base.join("log"),
        }
    }

    /// Makes the directories that are not there, and writes the configuration.
    ///
    /// # Errors
    /// One of them cannot be made.
    pub fn make(&self, config: &str) -> io::Result<()> {
        fs::create_dir_all(&self.store)?;
        fs::create_dir_all(&self.mountpoint)?;
        fs::write(&self.config, config)
    }
}

/// A directory on a real disk that other users can enter, gone with the value: in what
/// `MOBIFS_SCRATCH` names, else in `/var/tmp`.
///
/// # Errors
/// It cannot be made.
pub fn scratch() -> io::Result<TempDir> {
    let directory = tempfile::Builder::new()
        .prefix("mobifs-test-")
        .tempdir_in(scratch_parent())?;
    fs::set_permissions(directory.path(), Permissions::from_mode(0o755))?;
    Ok(directory)
}

/// Where [`scratch`] makes directories.
pub fn scratch_parent() -> PathBuf {
    let parent = std::env::var_os("MOBIFS_SCRATCH");
    parent.map_or_else(|| PathBuf::from("/var/tmp"), PathBuf::from)
}

/// A mount that ends with the value.
#[derive(Debug)]
pub struct Mount {
    program: Program,
    places: Places,
    daemon: Option<Child>,
}

impl Mount {
    /// Nothing is mounted yet.
    pub const fn new(program: Program, places: Places) -> Self {
        Self {
            program,
            places,
            daemon: None,
        }
    }

    /// Where everything is.
    pub const fn places(&self) -> &Places {
        &self.places
    }

    /// Mounts, and returns when the mount is usable.
    ///
    /// # Errors
    /// What the daemon says.
    pub fn mount(&mut self) -> Result<(), String> {
        self.begin()?;
        let output = self.daemon.as_mut().and_then(|child| child.stdout.take());
        let mut line = String::new();
        let read = output.map(|output| BufReader::new(output).read_line(&mut line));
        if matches!(read, Some(Ok(_))) && line.trim_end() == MOUNTED {
            return Ok(());
        }
        self.kill()?;
        Err(format!("no mount: {line}{}", self.log()))
    }

    /// Starts the daemon, which recovers and then mounts, and does not wait for it.
    ///
    /// # Errors
    /// It does not start.
    pub fn begin(&mut self) -> Result<(), String> {
        let failed = |error: io::Error| format!("no daemon: {error}");
        let mut options = OpenOptions::new();
        let log: File = options
            .create(true)
            .append(true)
            .open(&self.places.log)
            .map_err(failed)?;
        let child = Command::new(self.program.path())
            .args(["mount", "--foreground", "--background-child", "--config"])
            .args([&self.places.config])
            .args([&self.places.store, &self.places.mountpoint])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .map_err(failed)?;
        self.daemon = Some(child);
        Ok(())
    }

    /// Runs `mobifs` with these words on the mount point.
    ///
    /// # Errors
    /// What it says.
    pub fn command(&self, words: &[&str]) -> Result<String, String> {
        self.program.run(words, &[&self.places.mountpoint])
    }

    /// Unmounts properly.
    ///
    /// # Errors
    /// What `mobifs umount` says.
    pub fn umount(&mut self) -> Result<(), String> {
        self.program.umount(&self.places.mountpoint)?;
        self.wait();
        Ok(())
    }

    /// Cuts the power of the store, as `mobifs drill` does.
    ///
    /// # Errors
    /// What it says.
    pub fn drill(&mut self) -> Result<(), String> {
        self.command(&["drill", "power-cut", "--yes"])?;
        self.wait();
        self.detach();
        Ok(())
    }

    /// Kills the daemon, and takes the mount out of the tree.
    ///
    /// # Errors
    /// The daemon is killed and does not end.
    pub fn kill(&mut self) -> Result<(), String> {
        if let Some(daemon) = &mut self.daemon {
            // It fails for nothing but a daemon that has ended.
            let _ended = daemon.kill();
            let start = Instant::now();
            while matches!(daemon.try_wait(), Ok(None)) {
                if start.elapsed() > PATIENCE {
                    return Err(format!(
                        "process {} is killed and does not end",
                        daemon.id()
                    ));
                }
                std::thread::sleep(PAUSE);
            }
        }
        self.daemon = None;
        self.detach();
        Ok(())
    }

    /// Whether the daemon still runs.
    pub fn is_alive(&mut self) -> bool {
        match &mut self.daemon {
            Some(daemon) => matches!(daemon.try_wait(), Ok(None)),
            None => false,
        }
    }

    /// What the daemon logged so far.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.places.log).unwrap_or_default()
    }

    fn wait(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            let _status = daemon.wait();
        }
    }

    fn is_mounted(&self) -> bool {
        is_mounted(&self.places.mountpoint)
    }

    fn detach(&self) {
        while self.is_mounted() {
            // It fails only where the mount ends by itself at this moment.
            let _raced = Command::new("umount")
                .arg("-l")
                .arg(&self.places.mountpoint)
                .output();
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.is_alive() && self.is_mounted() {
            let _tried = self.command(&["umount"]);
        }
        let _ended = self.kill();
    }
}

/// Whether something is mounted there.
pub fn is_mounted(path: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let wanted = path.to_string_lossy();
    mounts
        .lines()
        .any(|line| line.split(' ').nth(1) == Some(&*wanted))
}
