//! `mobifs recover`

use std::io::Write as _;

use mobifs_daemon::{Code, Failure, predecessor, raise_limits};
use mobifs_volume::{Config, OpenOptions, OpenedStore};

use super::check;
use crate::arguments::RecoverArguments;

pub(crate) fn run(arguments: &RecoverArguments) -> Result<(), Failure> {
    let path = check::existing(&arguments.store, arguments.dry_run)?;
    let wait = arguments.wait.limit();
    let found = check::look(&path, wait)?;
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
        check::print(&path, &found);
        return Ok(());
    }
    raise_limits()?;
    let failed = |error| Failure::of_store(&path, &error);
    let config = Config::defaults()?;
    let options = OpenOptions::new(&config);
    let opened = predecessor::for_command(&path, wait, || OpenedStore::open(&path, &options))?;
    let report = opened.report().clone();
    opened.close().map_err(failed)?;
    let mut out = std::io::stdout().lock();
    // The reader of standard output has closed it.
    let _unread = if report.clean {
        writeln!(
            out,
            "{}: properly closed, nothing to recover",
            path.display()
        )
    } else {
        writeln!(
            out,
            "{}: {} committed transactions applied; {} bytes of an incomplete one discarded",
            path.display(),
            report.transactions,
            report.discarded_tail_bytes
        )
    };
    if report.copied {
        let _unread = writeln!(
            out,
            "  the store had been copied; what its transactions change was found by its names"
        );
    }
    for name in &report.lost {
        let _unread = writeln!(out, "  found and kept: .mobifs/lost/{name}");
    }
    Ok(())
}
