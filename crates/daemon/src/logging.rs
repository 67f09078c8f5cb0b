//! Where log lines go.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, IsTerminal as _};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use mobifs_host::{LOG_VARIABLE, log_directives};
use rustix::fs::{FlockOperation, flock};
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::writer::BoxMakeWriter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::failure::{Code, Failure};
use crate::journal::{self, JournalFormat};
use crate::rate_limit::RateLimit;

/// A log file that has grown beyond this is put aside at the next mount.
const LOG_BYTES_MAX: u64 = 10 << 20;
/// A log of an ended mount that has warnings is kept for so long.
const LOG_KEPT: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// Sends log lines to `file`, or to standard error.
pub fn start(file: Option<&Path>, default_level: &str) -> Result<(), Failure> {
    let directives = log_directives(default_level);
    let directives = directives.map_err(|error| Failure::new(Code::Usage, error.to_string()))?;
    let filter: Targets = directives
        .parse()
        .map_err(|error| Failure::new(Code::Usage, format!("{LOG_VARIABLE}: {error}")))?;
    let to_terminal = file.is_none() && io::stderr().is_terminal();
    let to_journal = file.is_none() && journal::is_behind(io::stderr(), Path::new(journal::SOCKET));
    if to_journal && let Err(error) = journal::never_wait(io::stderr()) {
        let what = format!("cannot set the stream to journald: {error}");
        return Err(Failure::new(Code::Failed, what));
    }
    let writer = match file {
        Some(path) => BoxMakeWriter::new(open(path)?),
        None => BoxMakeWriter::new(io::stderr),
    };
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(writer)
        .with_ansi(to_terminal)
        .with_target(false);
    let lines = if to_journal {
        lines.event_format(JournalFormat::new()).boxed()
    } else {
        lines.boxed()
    };
    tracing_subscriber::registry()
        .with(filter)
        .with(RateLimit::default())
        .with(lines)
        .init();
    Ok(())
}

/// Opens a log file for appending.
pub fn open(path: &Path) -> Result<File, Failure> {
    let failed = |error: io::Error| {
        Failure::new(
            Code::Failed,
            format!("cannot open the log {}: {error}", path.display()),
        )
    };
    if path
        .metadata()
        .is_ok_and(|about| about.len() > LOG_BYTES_MAX)
    {
        let mut aside = path.as_os_str().to_owned();
        aside.push(".old");
        std::fs::rename(path, &aside).map_err(failed)?;
    }
    // Others may pass through the runtime directory (`status_group`), and logs have names of files.
    let is_ours = mobifs_host::runtime_directory().is_ok_and(|own| path.starts_with(own));
    let mode = if is_ours { 0o600 } else { 0o666 };
    loop {
        let mut options = OpenOptions::new();
        let options = options.create(true).append(true).mode(mode);
        let file = options.open(path);
        let file = file.map_err(failed)?;
        // Held as long as a process has the file open. Not every filesystem has such locks.
        let _in_use = flock(&file, FlockOperation::LockShared);
        // It may have been removed as an old one before it was locked.
        let linked = file.metadata().map_err(failed)?.nlink() > 0;
        if linked {
            return Ok(file);
        }
    }
}

/// Removes the logs of mounts that have ended from the runtime directory: those without a warning,
/// and those that are old.
pub fn remove_old(directory: &Path) -> io::Result<()> {
    // A daemon of an older version has not locked its log.
    let mounts = mobifs_host::mounts()?.into_iter();
    let in_use: BTreeSet<_> = mounts.map(|mount| file_name(&mount.mountpoint)).collect();
    for entry in directory.read_dir()?.flatten() {
        let path = entry.path();
        let name = entry.file_name();
        let bytes = name.as_bytes();
        let is_log = bytes.ends_with(b".log") || bytes.ends_with(b".log.old");
        let is_in_use = name.to_str().is_some_and(|name| in_use.contains(name));
        if is_log && !is_in_use && entry.file_type().is_ok_and(|kind| kind.is_file()) {
            remove_if_old(&path)?;
        }
    }
    Ok(())
}

fn remove_if_old(path: &Path) -> io::Result<()> {
    let file = File::open(path)?;
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        return Ok(());
    }
    let about = file.metadata()?;
    let age = about.modified()?.elapsed().unwrap_or_default();
    if age > LOG_KEPT || (about.len() <= LOG_BYTES_MAX && !has_warnings(&file)?) {
        std::fs::remove_file(path)?;
    }
    Ok(())
}

/// Whether a line is more than information; one that is not ours is, too: a panic, for example.
fn has_warnings(file: &File) -> io::Result<bool> {
    for line in BufReader::new(file).split(b'\n') {
        let line = line?;
        let mut words = line
            .split(|&byte| byte == b' ')
            .filter(|word| !word.is_empty());
        let _time = words.next();
        if !matches!(words.next(), Some(b"INFO" | b"DEBUG" | b"TRACE")) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The log of a daemon in the background.
#[derive(Debug)]
pub struct DaemonLog {
    /// The daemon's standard error.
    pub(crate) stream: OwnedFd,
    /// Where a user finds it.
    pub(crate) place: String,
}

/// Where the daemon of a mount logs in the background: to `file`, or to journald, or, where there is none, to a
/// file in the runtime directory, which a reboot takes.
pub fn of_daemon(file: Option<&Path>, mountpoint: &Path) -> Result<DaemonLog, Failure> {
    let file = match file {
        Some(path) => std::path::absolute(path)
            .map_err(|error| Failure::new(Code::Failed, format!("cannot start: {error}")))?,
        None => match journal::connect(Path::new(journal::SOCKET)) {
            Ok(stream) => {
                let place = "`journalctl -t mobifs`".to_owned();
                return Ok(DaemonLog { stream, place });
            }
            Err(_no_journald) => default_file(mountpoint)?,
        },
    };
    Ok(DaemonLog {
        stream: open(&file)?.into(),
        place: file.display().to_string(),
    })
}

fn default_file(mountpoint: &Path) -> Result<PathBuf, Failure> {
    let directory = mobifs_host::runtime_directory().map_err(|error| {
        Failure::new(
            Code::Failed,
            format!("no runtime directory for sockets and logs can be used: {error}"),
        )
    })?;
    Ok(directory.join(file_name(mountpoint)))
}

/// A file name made of the mount point, as `systemd-escape --path` makes it.
fn file_name(mountpoint: &Path) -> String {
    let mut name = String::new();
    for &byte in mountpoint
        .as_os_str()
        .as_bytes()
        .iter()
        .skip_while(|&&byte| byte == b'/')
    {
        match byte {
            b'/' => name.push('-'),
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'.' => name.push(byte as char),
            _ => name.push_str(&format!("\\x{byte:02x}")),
        }
    }
    // File names end at 255 bytes; the end of a path identifies it better than its start.
    const NAME_BYTES_MAX: usize = 200;
    let start = name.len().saturating_sub(NAME_BYTES_MAX);
    format!("{}.log", &name[start..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_files_are_named_after_the_mount_point() {
        assert_eq!(file_name(Path::new("/mnt/data")), "mnt-data.log");
        assert_eq!(file_name(Path::new("/mnt/a b-c")), "mnt-a\\x20b\\x2dc.log");
        let long = format!("/{}", "ä".repeat(500));
        assert!(file_name(Path::new(&long)).len() <= 204);
    }

    /// Found by hand: hundreds of logs of mounts that had ended without a warning.
    #[test]
    fn logs_of_ended_mounts_are_removed_unless_they_say_something() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let info = "2026-01-01T00:00:00Z  INFO mounted store=/a\n2026-01-01T00:00:01Z DEBUG x\n";
        for name in [
            "ended.log",
            "ended.log.old",
            "empty.log",
            "in-use.log",
            "old.log",
            "7-2.sock",
        ] {
            let text = if name == "empty.log" { "" } else { info };
            std::fs::write(at(name), text).unwrap();
        }
        let warning = "2026-01-01T00:00:00Z  WARN the daemon died\n";
        let panic = "thread 'main' panicked at src/main.rs\n";
        for (name, text) in [
            ("warning.log", warning),
            ("panic.log", panic),
            ("old.log", warning),
        ] {
            std::fs::write(at(name), format!("{info}{text}")).unwrap();
        }
        let long_ago = std::time::SystemTime::now() - LOG_KEPT - Duration::from_secs(60);
        let old = OpenOptions::new().append(true).open(at("old.log")).unwrap();
        old.set_modified(long_ago).unwrap();
        drop(old);
        let in_use = open(&at("in-use.log")).unwrap();
        remove_old(directory.path()).unwrap();
        let mut remaining: Vec<_> = directory
            .path()
            .read_dir()
            .unwrap()
            .map(|e| e.unwrap().file_name())
            .collect();
        remaining.sort();
        assert_eq!(
            remaining,
            ["7-2.sock", "in-use.log", "panic.log", "warning.log"]
        );
        drop(in_use);
        remove_old(directory.path()).unwrap();
        assert!(!at("in-use.log").exists());
    }

    #[test]
    fn a_large_log_is_put_aside() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        File::create(&path)
            .unwrap()
            .set_len(LOG_BYTES_MAX + 1)
            .unwrap();
        drop(open(&path).unwrap());
        assert_eq!(path.metadata().unwrap().len(), 0);
        assert!(directory.path().join("log.old").exists());
    }
}
