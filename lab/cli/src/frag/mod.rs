//! `mobifs frag`

mod advise;
mod age;
mod defrag;
mod experiment;
mod measure;
mod model;
mod progress;
mod waits;

use std::process::ExitCode;

use clap::{Args, Subcommand};

use crate::failure::Failure;
use advise::AdviseArguments;
use age::AgeArguments;
use defrag::DefragArguments;
use experiment::ExperimentArguments;
use measure::MeasureArguments;
use waits::WaitsArguments;

#[derive(Debug, Args)]
pub(crate) struct FragArguments {
    #[command(subcommand)]
    command: FragCommand,
}

#[derive(Debug, Subcommand)]
enum FragCommand {
    /// Measure the files of directories and of ext4 images: degree of fragmentation, sizes of
    /// fragments, free room, and where files lie
    #[command(after_help = measure::HELP)]
    Measure(MeasureArguments),
    /// Say what is worth doing about fragmented files: journal modes, preallocation, defragmenting, with what
    /// each brings and costs; nothing is changed
    #[command(after_help = advise::HELP)]
    Advise(AdviseArguments),
    /// Age a filesystem as phones do, the same way from the same seed
    #[command(after_help = age::HELP)]
    Age(AgeArguments),
    /// Repeat published experiments with fragmented files on real filesystems; takes root
    #[command(after_help = experiment::HELP)]
    Experiment(ExperimentArguments),
    /// What a user waits for on aged images: launch, table scan, installation, in the time of a flash device
    #[command(after_help = waits::HELP)]
    Waits(WaitsArguments),
    /// Defragment mounted filesystems: by copying, or by remapping on a served flash device
    #[command(after_help = defrag::HELP)]
    Defrag(DefragArguments),
}

pub(crate) fn run(arguments: &FragArguments) -> Result<ExitCode, Failure> {
    match &arguments.command {
        FragCommand::Measure(arguments) => measure::run(arguments),
        FragCommand::Advise(arguments) => advise::run(arguments),
        FragCommand::Age(arguments) => age::run(arguments),
        FragCommand::Experiment(arguments) => experiment::run(arguments),
        FragCommand::Waits(arguments) => waits::run(arguments),
        FragCommand::Defrag(arguments) => return defrag::run(arguments),
    }?;
    Ok(ExitCode::SUCCESS)
}
