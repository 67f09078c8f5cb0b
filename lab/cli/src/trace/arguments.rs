//! The command line of `mobifs trace`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use mobifs_trace::Format;

const TRACE_HELP: &str = "\
A TRACE is a file of this program (Parquet), of strace, of MobiGen, of blkparse, or block
requests of a phone (process,device,rw_flag,sector,size,timestamp); text may be gzipped. Which
it is, is seen from its content. docs/TRACES.md says what the events mean.

  mobifs trace record --root ~/mail --out mail.parquet -- notmuch new
  mobifs trace stat mail.parquet
  mobifs trace replay --full-speed mail.parquet /mnt/data/again";

const MERGE_HELP: &str = "\
A label is put before the trace's apps and paths, with a /, so that they stay apart from those
of the others; seconds shift its events to later:
  mobifs trace merge --out day.parquet mail.parquet=mail web.parquet=web@3600";

const REPLAY_HELP: &str = "\
What was there before the trace began is made first, with data from the seed. Each traced
thread has a thread; what came one after another in the trace stays so. Nothing outside the
directory is touched: absolute paths begin there, and symbolic links that lead out of it get
another target. Latencies are of the system calls alone. What did not end as in the trace is
counted. Block traces are for `mobifs flash replay`.

  mobifs trace replay --full-speed --json git.parquet /mnt/data/replay";

const RECORD_HELP: &str = "\
The command runs under strace (which must be installed), and its exit code is this command's.
It is slowed down: each call that is recorded stops it.

With --touch-fifo, the pipe is made if it is not there, the command finds its name in
MOBIFS_TOUCH_FIFO, and each line written to it is an event: `touch`, `key`, or something else:
  mobifs trace record --touch-fifo /tmp/touch --out t.parquet -- sh -c \\
      'echo touch > $MOBIFS_TOUCH_FIFO; notmuch new'";

#[derive(Debug, Args)]
#[command(after_help = TRACE_HELP)]
pub(crate) struct TraceArguments {
    #[command(subcommand)]
    pub(crate) command: TraceCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TraceCommand {
    /// Store the trace of another tool
    Import(ImportArguments),
    /// Make the trace of a recorded mount (`mobifs mount --record`) that has ended without one
    Finish(FinishArguments),
    /// Count what is in traces
    Stat(StatArguments),
    /// Print the events, one a line
    Cat(CatArguments),
    /// Store a part of a trace
    Cut(CutArguments),
    /// Lay traces over each other
    #[command(after_help = MERGE_HELP)]
    Merge(MergeArguments),
    /// Repeat the operations of a trace in an empty directory
    #[command(after_help = REPLAY_HELP)]
    Replay(ReplayArguments),
    /// Run a command and record what it does to files
    #[command(after_help = RECORD_HELP)]
    Record(RecordArguments),
}

/// How files become traces.
#[derive(Clone, Debug, Args)]
pub(crate) struct InputArguments {
    /// The format: parquet, mobigen, strace, pixel, blkparse or recording
    #[arg(long, value_name = "FORMAT")]
    pub(crate) from: Option<Format>,
    /// Refuse a file at the first line that cannot be understood
    #[arg(long)]
    pub(crate) strict: bool,
    /// strace: keep what lies below DIR, with paths relative to it
    #[arg(long, value_name = "DIR")]
    pub(crate) root: Option<PathBuf>,
    /// strace: where the program was started (needed for output made without -y)
    #[arg(long, value_name = "DIR")]
    pub(crate) directory: Option<PathBuf>,
    /// strace: how many directories below the root make an app
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) app_depth: usize,
    /// MobiGen: keep descriptors that do not look like files
    #[arg(long)]
    pub(crate) keep_pipes: bool,
    /// pixel: keep requests that were issued twice because the controller slept
    #[arg(long)]
    pub(crate) keep_repeats: bool,
    /// blkparse: the action that is the event: Q, G, I, D or C
    #[arg(long, value_name = "LETTER", default_value_t = 'D')]
    pub(crate) action: char,
}

#[derive(Debug, Args)]
pub(crate) struct ImportArguments {
    #[command(flatten)]
    pub(crate) input: InputArguments,
    /// The file to write
    #[arg(long, short, value_name = "FILE")]
    pub(crate) out: PathBuf,
    /// The trace
    pub(crate) trace: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct FinishArguments {
    /// The trace that the mount was asked for; FILE.part is there
    #[arg(value_name = "FILE")]
    pub(crate) trace: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct StatArguments {
    #[command(flatten)]
    pub(crate) input: InputArguments,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// The traces
    #[arg(value_name = "TRACE", required = true)]
    pub(crate) traces: Vec<PathBuf>,
}

/// Which events.
#[derive(Clone, Debug, Args)]
pub(crate) struct SelectionArguments {
    /// Only events from this time on
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0)]
    pub(crate) start: f64,
    /// Only events before this time
    #[arg(long, value_name = "SECONDS")]
    pub(crate) end: Option<f64>,
    /// Only apps that match; may be repeated
    #[arg(long, value_name = "GLOB")]
    pub(crate) app: Vec<String>,
    /// Only events with a path that matches, and those without paths; may be repeated
    #[arg(long, value_name = "GLOB")]
    pub(crate) path: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct CatArguments {
    #[command(flatten)]
    pub(crate) input: InputArguments,
    #[command(flatten)]
    pub(crate) selection: SelectionArguments,
    /// Print a line of JSON for each event
    #[arg(long)]
    pub(crate) json: bool,
    /// The trace
    pub(crate) trace: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct CutArguments {
    #[command(flatten)]
    pub(crate) input: InputArguments,
    #[command(flatten)]
    pub(crate) selection: SelectionArguments,
    /// Leave the times as they are, instead of beginning at 0
    #[arg(long)]
    pub(crate) keep_times: bool,
    /// The file to write
    #[arg(long, short, value_name = "FILE")]
    pub(crate) out: PathBuf,
    /// The trace
    pub(crate) trace: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct MergeArguments {
    #[command(flatten)]
    pub(crate) input: InputArguments,
    /// The file to write
    #[arg(long, short, value_name = "FILE")]
    pub(crate) out: PathBuf,
    /// The traces: FILE, FILE=LABEL, FILE@SECONDS or FILE=LABEL@SECONDS
    #[arg(value_name = "TRACE", required = true)]
    pub(crate) traces: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct ReplayArguments {
    #[command(flatten)]
    pub(crate) input: InputArguments,
    /// How many times as fast as recorded
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
    pub(crate) speed: f64,
    /// As fast as the storage allows; what came one after another stays so
    #[arg(long, conflicts_with = "speed")]
    pub(crate) full_speed: bool,
    /// What the data is made from
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// When all is made that was there before, wait for a line on standard input
    #[arg(long)]
    pub(crate) wait: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// The trace
    pub(crate) trace: PathBuf,
    /// Where: an empty directory
    pub(crate) place: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct RecordArguments {
    /// Keep what lies below DIR, with paths relative to it; else all files
    #[arg(long, value_name = "DIR")]
    pub(crate) root: Option<PathBuf>,
    /// How many directories below the root make an app
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) app_depth: usize,
    /// Take each line written to this pipe as something the user does
    #[arg(long, value_name = "PIPE")]
    pub(crate) touch_fifo: Option<PathBuf>,
    /// The file to write
    #[arg(long, short, value_name = "FILE")]
    pub(crate) out: PathBuf,
    /// The command and its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    pub(crate) command: Vec<OsString>,
}
