//! `mobifs recover`

use mobifs_daemon::{Code, Failure, predecessor, raise_limits};
use mobifs_host::{printable, printable_path};
use mobifs_volume::{Config, OpenOptions, OpenedStore};

use super::progress::Progress;
use super::{check, print};
use crate::arguments::RecoverArguments;

pub(crate) fn run(arguments: &RecoverArguments) -> Result<(), Failure> {
    let path = check::existing(&arguments.store, arguments.dry_run)?;
    let wait = arguments.wait.limit();
    let progress = Progress::of_reading("recovering", check::journal_of(&path));
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
        drop(progress);
        return check::print(&path, &found);
    }
    raise_limits()?;
    let failed = |error| Failure::of_store(&path, &error);
    let config = Config::defaults()?;
    let options = OpenOptions::new(&config);
    let opened = predecessor::for_command(&path, wait, || OpenedStore::open(&path, &options))?;
    let report = opened.report().clone();
    opened.close().map_err(failed)?;
    drop(progress);
    let shown = printable_path(&path);
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
