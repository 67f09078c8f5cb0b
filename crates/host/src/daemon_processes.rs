//! Daemons that are found without their sockets.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// The directory below which runtime directories lie.
const RUN: &str = "/run";
/// What starts a daemon. Other commands ask one, or work on a store.
const COMMANDS: [&str; 3] = ["mount", "steer", "supervise"];

/// A process that serves a mount, steers a filesystem, or supervises one that does, or is about to.
#[derive(Clone, Debug)]
pub struct DaemonProcess {
    /// The process.
    pub pid: u32,
    words: Vec<OsString>,
}

impl DaemonProcess {
    fn of(pid: u32) -> Option<Self> {
        let read = |name: &str| std::fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
        if read("comm").trim_ascii_end() != b"mobifs" {
            return None;
        }
        let words = read("cmdline");
        let words = words.split(|&byte| byte == 0);
        let words: Vec<_> = words
            .map(|word| OsString::from_vec(word.to_vec()))
            .collect();
        let is_daemon = |word: &OsString| COMMANDS.iter().any(|command| word == command);
        words
            .get(1)
            .is_some_and(is_daemon)
            .then_some(Self { pid, words })
    }

    /// The last word of its command line, which is the mount point unless options follow it.
    pub fn last_word(&self) -> &OsStr {
        let mut words = self.words.iter().rev();
        words
            .find(|word| !word.is_empty())
            .map_or(OsStr::new(""), |word| word)
    }

    fn serves(&self, mountpoint: &Path) -> bool {
        self.words
            .iter()
            .skip(2)
            .any(|word| word.as_bytes() == mountpoint.as_os_str().as_bytes())
    }

    /// Whether the directory is the same for it as for this process; not if this process may not look.
    fn shares(&self, directory: &str) -> bool {
        let identity = |path: &Path| {
            let about = path.metadata().ok()?;
            Some((about.dev(), about.ino()))
        };
        let theirs = identity(Path::new(&format!("/proc/{}/root{directory}", self.pid)));
        theirs.is_some() && theirs == identity(Path::new(directory))
    }
}

/// The daemons that this process sees and that have the same root directory: not those in containers.
pub fn daemon_processes() -> Vec<DaemonProcess> {
    let mut found = all();
    found.retain(|process| process.shares("/"));
    found
}

/// A daemon that was started for the mount point and sees the same `/run` as this process; none if there is none.
pub fn daemon_here(mountpoint: &Path) -> Option<u32> {
    let mut found = all().into_iter();
    let here = found.find(|process| process.serves(mountpoint) && process.shares(RUN))?;
    Some(here.pid)
}

fn all() -> Vec<DaemonProcess> {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    let pids = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|&pid| pid != std::process::id())
        .filter_map(DaemonProcess::of)
        .collect()
}
