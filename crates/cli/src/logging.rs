//! Where log lines go.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal as _};
use std::path::{Path, PathBuf};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::writer::BoxMakeWriter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::failure::{Code, Failure};
use crate::rate_limit::RateLimit;

/// A log file that has grown beyond this is put aside at the next mount.
const LOG_BYTES_MAX: u64 = 10 << 20;

/// Sends log lines to `file`, or to standard error.
pub(crate) fn start(file: Option<&Path>, default_level: &str) -> Result<(), Failure> {
    let filter =
        EnvFilter::try_from_env("MOBIFS_LOG").unwrap_or_else(|_| EnvFilter::new(default_level));
    let to_terminal = file.is_none() && io::stderr().is_terminal();
    let writer = match file {
        Some(path) => BoxMakeWriter::new(open(path)?),
        None => BoxMakeWriter::new(io::stderr),
    };
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(writer)
        .with_ansi(to_terminal)
        .with_target(false);
    tracing_subscriber::registry()
        .with(filter)
        .with(RateLimit::default())
        .with(lines)
        .init();
    Ok(())
}

/// Opens a log file for appending.
pub(crate) fn open(path: &Path) -> Result<File, Failure> {
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
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .map_err(failed)
}

/// Where the daemon of a mount logs if nothing else was said.
pub(crate) fn default_file(mountpoint: &Path) -> Result<PathBuf, Failure> {
    let directory = mobifs_runtime::runtime_directory().map_err(|error| {
        Failure::new(
            Code::Failed,
            format!("there is no place for sockets and logs: {error}"),
        )
    })?;
    Ok(directory.join(file_name(mountpoint)))
}

/// A file name that tells the mount point, as `systemd-escape --path` would.
fn file_name(mountpoint: &Path) -> String {
    use std::os::unix::ffi::OsStrExt as _;
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
    // File names end at 255 bytes; the end of a path tells more than its start.
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
