//! `mobifs frag defrag`

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use clap::Args;
use mobifs_defragmenter::{DefragError, FreeRun, Mode, Options, Stopped, defragment, table};
use mobifs_fragmentation::size;
use mobifs_volume::parse_size;
use signal_hook::consts::{SIGINT, SIGTERM};

use super::model::{ModelArguments, facts_of};
use crate::failure::{Code, Failure, put};

pub(super) const HELP: &str = "\
A PATH is a directory or a file on a mounted ext4, XFS, btrfs or f2fs; several lie on the same one. Only
what is below a PATH moves. On ext4 free room is brought together as well: what lies between free
extents moves away where a file needs the run. --remap is for an ext4 on a device of `mobifs flash
serve`, which then changes its mapping instead of programming the content again.

On ext4 most of the free room is taken meanwhile, to work with. --leave stays free; of the rest, what other
programs need is given back as soon as half of that is gone, and when they are faster than that they may find
the filesystem full for a moment.

The first SIGINT or SIGTERM ends it between two pieces: it says what has moved, and the exit code is 130 or 143. A
power cut leaves each file with its content.

--dry-run names the files that would move, and about how much would be written. It refuses what a run would refuse,
which it tries on two files without a name. Where the run of --free-run is not there at the end the exit code is 1.

  mobifs frag defrag --dry-run /data
  mobifs frag defrag --copy --rate 20MiB --flash-writes-max 1GiB /data
  mobifs frag defrag --remap --all /mnt/served

S4: C. Ji et al., File Fragmentation in Mobile Devices, IEEE Transactions on Mobile Computing, 2018.";

#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("how").required(true)))]
pub(super) struct DefragArguments {
    /// Only say what would be done; nothing is changed
    #[arg(long, group = "how")]
    dry_run: bool,
    /// Copy content to its new place
    #[arg(long, group = "how")]
    copy: bool,
    /// Have the served device below remap content to its new place
    #[arg(long, group = "how")]
    remap: bool,
    /// Take all fragmented files and all their pieces, not only what is worth it
    #[arg(long)]
    all: bool,
    /// Take only what this trace reads
    #[arg(long, value_name = "TRACE")]
    hot: Option<PathBuf>,
    /// Move so much in a second at most; not 0
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    rate: Option<u64>,
    /// End before more than so much is written to flash; with --remap when about so much is
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    flash_writes_max: Option<u64>,
    /// Leave so much free room to others meanwhile (ext4) [default: a quarter of it]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    leave: Option<u64>,
    /// Make a free run of this length, too (ext4)
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    free_run: Option<u64>,
    /// Move shared extents, too; they are not shared any more afterwards and take more room
    #[arg(long)]
    unshare: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    model: ModelArguments,
    /// What to defragment
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
}

pub(super) fn run(arguments: &DefragArguments) -> Result<ExitCode, Failure> {
    let failed = |message: String| Failure::new(Code::Failed, message);
    let mode = if arguments.remap {
        Mode::Remap
    } else if arguments.copy {
        Mode::Copy
    } else {
        Mode::DryRun
    };
    let facts = arguments.hot.as_deref().map(facts_of).transpose()?;
    let options = Options {
        mode,
        takes_all: arguments.all,
        unshares: arguments.unshare,
        model: arguments.model.model(),
        hot: facts.map(|facts| facts.hot().clone()),
        rate_bytes: arguments.rate,
        flash_writes_max_bytes: arguments.flash_writes_max,
        leave_bytes: arguments.leave,
        free_run_bytes: arguments.free_run,
    };
    let signalled = Arc::new(AtomicUsize::new(0));
    // A dry run has nothing to bring to an end.
    for signal in [SIGINT, SIGTERM]
        .into_iter()
        .filter(|_| mode != Mode::DryRun)
    {
        let number = usize::try_from(signal).unwrap_or_default();
        let registered = signal_hook::flag::register_usize(signal, Arc::clone(&signalled), number);
        registered.map_err(|error| failed(format!("cannot watch for signals: {error}")))?;
    }
    let signal = || signalled.load(Ordering::Relaxed);
    let report = defragment(&arguments.paths, &options, &|| signal() != 0).map_err(failure)?;
    if arguments.json {
        let text = serde_json::to_string_pretty(&report);
        put(&(text.map_err(|error| failed(error.to_string()))? + "\n"))?;
    } else {
        put(&table(&report))?;
    }
    if report.stopped == Some(Stopped::Cancelled) {
        // As a shell says it of a program that a signal has ended.
        let code = u8::try_from(128 + signal()).unwrap_or(Code::Failed.number());
        return Ok(ExitCode::from(code));
    }
    match report.free_run.filter(|run| !run.is_reached) {
        Some(run) => Err(failed(not_reached(&run, mode))),
        None => Ok(ExitCode::SUCCESS),
    }
}

fn not_reached(run: &FreeRun, mode: Mode) -> String {
    let (what, is) = match mode {
        Mode::DryRun => ("would be", "would be"),
        _ => ("was", "is"),
    };
    format!(
        "no free run of {} {what} made: the largest {is} {}; leave less to others (--leave), or delete something",
        size(run.wanted_bytes),
        size(run.largest_after_bytes)
    )
}

fn failure(error: DefragError) -> Failure {
    let code = match &error {
        DefragError::NoTree(_)
        | DefragError::Several(..)
        | DefragError::Image(_)
        | DefragError::NoRate
        | DefragError::LeavesTooMuch { .. } => Code::Usage,
        DefragError::NoDevice(_) => Code::NotServed,
        _ => Code::Failed,
    };
    Failure::new(code, error.to_string())
}
