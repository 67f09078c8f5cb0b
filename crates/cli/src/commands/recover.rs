//! `mobifs recover`

use std::path::Path;
use std::time::Duration;

use mobifs_daemon::{Code, Failure, predecessor, raise_limits};
use mobifs_host::{printable, printable_path};
use mobifs_store::{RecoveryReport, StoreError};
use mobifs_volume::{Config, OpenOptions, OpenedStore};

use super::progress::Progress;
use super::{check, print};
use crate::arguments::RecoverArguments;

pub(crate) fn run(arguments: &RecoverArguments) -> Result<(), Failure> {
    let path = check::existing(&arguments.store, arguments.dry_run)?;
    normally(&path, arguments)
}

/// Recovers a store that is not damaged.
pub(super) fn normally(path: &Path, arguments: &RecoverArguments) -> Result<(), Failure> {
    let wait = arguments.wait.limit();
    let progress = Progress::of_reading("recovering", check::journal_of(path));
    let found = check::look(path, wait)?;
    if !found.is_store {
        return Err(Failure::new(
            Code::Failed,
            format!(
                "{} is not a MobiFS store: it has no .mobifs directory",
                path.display()
            ),
        ));
    }
    if arguments.dry_run {
        drop(progress);
        return check::print(path, &found);
    }
    let report = open_and_close(path, wait)?;
    drop(progress);
    let shown = printable_path(path);
    let mut text = if report.clean {
        format!("{shown}: properly closed, nothing to recover\n")
    } else {
        format!(
            "{shown}: {} committed transactions applied; {} bytes of an incomplete one discarded\n",
            report.transactions, report.discarded_tail_bytes
        )
    };
    if report.copied {
        text +=
            "  the store had been copied; what its transactions change was found by its names\n";
    }
    for name in &report.lost {
        text += &format!("  found and kept: .mobifs/lost/{}\n", printable(name));
    }
    print(&text)
}

/// Opens a store and closes it again, so that everything committed is in its place.
pub(super) fn open_and_close(path: &Path, wait: Duration) -> Result<RecoveryReport, Failure> {
    raise_limits()?;
    let config = Config::defaults()?;
    let options = OpenOptions::new(&config);
    let opened = predecessor::for_command(path, wait, || OpenedStore::open(path, &options))?;
    let report = opened.report().clone();
    let failed = |error| Failure::of_store(path, &error);
    opened.close().map_err(failed)?;
    Ok(report)
}

/// Whether a mount would take the store, which is not changed.
pub(super) fn try_open(path: &Path, wait: Duration) -> Result<Result<(), StoreError>, Failure> {
    raise_limits()?;
    let config = Config::defaults()?;
    let options = OpenOptions::new(&config);
    let mut refused = None;
    let opened =
        predecessor::for_command(path, wait, || match OpenedStore::open(path, &options) {
            Ok(opened) => Ok(Some(opened)),
            Err(error @ StoreError::InUse { .. }) => Err(error),
            Err(error) => {
                refused = Some(error);
                Ok(None)
            }
        })?;
    if let Some(opened) = opened {
        opened.abandon();
    }
    Ok(refused.map_or(Ok(()), Err))
}
