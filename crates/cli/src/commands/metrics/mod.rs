//! `mobifs metrics`: figures of mounts for a monitoring system.
//!
//! [`families`] says which there are, [`exposition`] how they are written, and [`server`] answers a
//! system that fetches them over HTTP, [`clients`] at a time.

#[cfg(test)]
mod checker;
mod clients;
mod exposition;
mod families;
mod server;

use std::io::{IsTerminal as _, Write as _};
use std::path::Path;

use mobifs_daemon::control::find_mount;
use mobifs_daemon::{Code, Failure};
use mobifs_volume::AppSelection;

use super::mounts::{self, Found};
use super::{fetch, print, print_as_is};
use crate::arguments::{MetricsArguments, MetricsFormat};
use exposition::Format;

/// A status lists so many apps at most: enough to choose those with the most at risk.
const APPS_LOOKED_AT: u64 = 100_000;

pub(crate) fn run(arguments: &MetricsArguments) -> Result<(), Failure> {
    if let Some(address) = &arguments.listen {
        return server::serve(address, arguments.group.as_deref(), &|format| {
            text(arguments, format)
        });
    }
    let format = match (arguments.format, &arguments.textfile) {
        (Some(MetricsFormat::Openmetrics), _) | (None, None) => Format::OpenMetrics,
        (Some(MetricsFormat::Prometheus), _) | (None, Some(_)) => Format::Prometheus,
    };
    let text = text(arguments, format)?;
    match &arguments.textfile {
        Some(path) => replace(path, &text),
        None if std::io::stdout().is_terminal() => print(&text),
        // A monitoring system reads it: label values are as the names are.
        None => print_as_is(&text),
    }
}

fn text(arguments: &MetricsArguments, format: Format) -> Result<String, Failure> {
    let found = if arguments.mounts.is_empty() {
        let mut found = mounts::all(APPS_LOOKED_AT)?;
        // Another mount may be at the place by now, and series must differ.
        found.retain(|found| found.is_in_tree && !is_refused(found));
        found
    } else {
        let named = arguments.mounts.iter().map(|path| named(path));
        named.collect::<Result<Vec<_>, _>>()?
    };
    let families = families::families(
        &found,
        usize::try_from(arguments.apps).unwrap_or(usize::MAX),
    );
    Ok(exposition::text_of(&families, format))
}

/// A mount that the user has named, which must be one; its daemon may be silent.
fn named(path: &Path) -> Result<Found, Failure> {
    let mount = find_mount(path)?;
    let select = AppSelection {
        limit: Some(APPS_LOOKED_AT),
        ..AppSelection::default()
    };
    let status = fetch(&mount.mountpoint, select, &mounts::PATIENCE);
    let found = Found {
        mount,
        status,
        is_in_tree: true,
        is_covered: false,
    };
    match found.status {
        Err(failure) if !mounts::may_ask(&found.mount) => Err(failure),
        status => Ok(Found { status, ..found }),
    }
}

/// Whether the mount is another user's: nothing is known of it, also not that it is down.
fn is_refused(found: &Found) -> bool {
    found.status.is_err() && !mounts::may_ask(&found.mount)
}

/// Puts a file in the place of another at once: a collector sees the one or the other.
fn replace(path: &Path, text: &str) -> Result<(), Failure> {
    let failed = |error: std::io::Error| {
        let path = path.display();
        Failure::new(Code::Failed, format!("cannot write {path}: {error}"))
    };
    let name = path
        .file_name()
        .ok_or_else(|| Failure::new(Code::Usage, "--textfile needs the name of a file"))?;
    let mut hidden = std::ffi::OsString::from(".");
    hidden.push(name);
    // Root would take a device, such as /dev/null, away from all programs.
    if path.metadata().is_ok_and(|about| !about.is_file()) {
        let message = format!("{} is not a file that can be replaced", path.display());
        return Err(Failure::new(Code::Usage, message));
    }
    // Collectors pass over what does not end in .prom.
    hidden.push(format!(".{}", std::process::id()));
    let beside = path.with_file_name(hidden);
    let written = std::fs::File::create_new(&beside)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .and_then(|()| std::fs::rename(&beside, path));
    if written.is_err() {
        let _absent = std::fs::remove_file(&beside);
    }
    written.map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_textfile_is_replaced_whole() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("mobifs.prom");
        replace(&path, "a 1\n").unwrap();
        replace(&path, "a 2\n").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "a 2\n");
        assert_eq!(directory.path().read_dir().unwrap().count(), 1);
        let absent = directory.path().join("absent/mobifs.prom");
        let failure = replace(&absent, "").unwrap_err();
        assert!(failure.message.starts_with("cannot write "), "{failure}");
    }

    #[test]
    fn what_is_no_file_stays() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let _socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let failure = replace(&path, "a 1\n").unwrap_err();
        assert!(
            failure
                .message
                .contains("is not a file that can be replaced"),
            "{failure}"
        );
        assert!(!path.metadata().unwrap().is_file());
    }
}
