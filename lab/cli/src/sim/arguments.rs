//! The command line of `mobifs sim`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::inputs::InputArguments;

pub(crate) const HELP: &str = "\
Each trace is run under the policy and under what it is compared with, in virtual time. A
TRACE is one that `mobifs trace` has recorded, or the output of another tool that
`mobifs trace import` can read.

A policy is its name and, if wanted, keys of the configuration file's [defaults], and
predictor, predictor_..., touch_gap_us, scheduler, standby_age_max_ms and user_events: with
\"bursts\", bursts of requests are taken for a user, too.
  --policy tpl
  --policy tpl:predictor=last-min,scheduler=fifo
  --policy interval:interval_ms=10000,age_max_ms=60000
`tpl-published` is tpl without a limit of age, as the MobiFS paper evaluates it.
`ideal` never writes before the end: the bound that no policy can beat.
Filesystems to compare with: ext4 (everything every 5 s, and the file at fsync),
ext4-nobarrier, btrfs-flushoncommit. Native mode (`mobifs steer`) under a policy, the default one
if none is given:
  --policy native-ext4:policy=interval,interval_ms=5000
`native-btrfs` is the same on a btrfs, where nothing is promised and every fsync waits.

Examples:
  mobifs sim phone.parquet
  mobifs sim --policy tpl --policy ideal --device ufs31 --json traces/*.parquet";

#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct SimArguments {
    /// The policy, and further ones to compare it with; may be repeated
    #[arg(long, value_name = "NAME[:KEY=VALUE,...]")]
    pub(crate) policy: Vec<String>,
    /// What to compare with: filesystems or policies, each its own option
    #[arg(long, value_name = "NAME")]
    pub(crate) against: Vec<String>,
    /// How to write the report
    #[arg(long, value_enum, default_value_t = OutputFormat::Table)]
    pub(crate) format: OutputFormat,
    /// The same as --format json
    #[arg(long, conflicts_with = "format")]
    pub(crate) json: bool,
    /// Write the report to a file instead of standard output
    #[arg(long, short = 'o', value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) input: InputArguments,
}

/// A form of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputFormat {
    /// For people.
    Table,
    /// For programs.
    Json,
    /// For data tools: one row for each app of each trace under each contender.
    Parquet,
}
