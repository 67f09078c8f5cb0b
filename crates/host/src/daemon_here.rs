//! A daemon that is found without its socket.

use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// The directory below which runtime directories lie.
const RUN: &str = "/run";

/// A process of MobiFS that was started for the mount point, and sees the same `/run` as this process; none if there
/// is none, or this process may not look.
pub fn daemon_here(mountpoint: &Path) -> Option<u32> {
    let entries = std::fs::read_dir("/proc").ok()?.flatten();
    let mut processes = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    processes.find(|&pid| pid != std::process::id() && serves(pid, mountpoint) && has_same_run(pid))
}

fn serves(pid: u32, mountpoint: &Path) -> bool {
    let read = |name: &str| std::fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
    if read("comm").trim_ascii_end() != b"mobifs" {
        return false;
    }
    let words = read("cmdline");
    let mut words = words.split(|&byte| byte == 0);
    // Not a command that asks for it, as this one does.
    let _program = words.next();
    let is_daemon = words
        .next()
        .is_some_and(|word| [&b"mount"[..], b"steer", b"supervise"].contains(&word));
    is_daemon && words.any(|word| word == mountpoint.as_os_str().as_bytes())
}

fn has_same_run(pid: u32) -> bool {
    let identity = |path: &Path| {
        let about = path.metadata().ok()?;
        Some((about.dev(), about.ino()))
    };
    let theirs = identity(Path::new(&format!("/proc/{pid}/root{RUN}")));
    theirs.is_some() && theirs == identity(Path::new(RUN))
}
