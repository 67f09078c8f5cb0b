//! `mobifs frag advise`

use std::path::PathBuf;

use clap::Args;
use mobifs_advisor::{AdviseError, Options, advise, table};

use super::measure;
use super::model::{ModelArguments, facts_of};
use super::progress::Progress;
use crate::failure::{Code, Failure, put};

pub(super) const HELP: &str = "\
Looks at a directory or a file on a mounted ext4, btrfs, XFS or f2fs and changes nothing: which journal
mode keeps its databases in one piece, which preallocation, what is worth defragmenting; of each what it
brings by t = a * pieces + b * size, and what it costs. With --trace all of it is for the files that the trace
reads. docs/FRAGMENTATION-REFERENCE.md has the rules.

  mobifs frag advise /data
  mobifs frag advise --measure-cost --trace week.parquet /data

S4: C. Ji et al., File Fragmentation in Mobile Devices, IEEE Transactions on Mobile Computing, 2018.";

#[derive(Debug, Args)]
pub(super) struct AdviseArguments {
    /// Only for what this trace reads: a trace of this directory, or of one above it
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Read up to 128 MiB of the files past the page cache to measure what pieces and bytes cost here
    #[arg(long, conflicts_with_all = ["piece_ms", "megabyte_ms"])]
    measure_cost: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    model: ModelArguments,
    /// What to look at
    #[arg(value_name = "DIR")]
    path: PathBuf,
}

pub(super) fn run(arguments: &AdviseArguments) -> Result<(), Failure> {
    let trace = arguments.trace.as_ref();
    let facts = trace.map(|path| facts_of(path).map(|facts| (facts, path.clone())));
    let options = Options {
        model: arguments.model.given(),
        measures_cost: arguments.measure_cost,
        trace: facts.transpose()?,
    };
    let progress = Progress::new();
    let report = advise(&arguments.path, &options, &|files| progress.show(files));
    progress.clear();
    let report = report.map_err(failure)?;
    if arguments.json {
        let text = serde_json::to_string_pretty(&report);
        let text = text.map_err(|error| Failure::new(Code::Failed, error.to_string()))?;
        put(&(text + "\n"))
    } else {
        put(&table(&report))
    }
}

fn failure(error: AdviseError) -> Failure {
    match error {
        AdviseError::Measure(error) => measure::failure(error),
        AdviseError::Image(_) => Failure::new(Code::Usage, error.to_string()),
        _ => Failure::new(Code::Failed, error.to_string()),
    }
}
