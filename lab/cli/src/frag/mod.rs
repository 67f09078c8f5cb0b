//! `mobifs frag`

mod age;
mod defrag;
mod experiment;
mod measure;

use clap::{Args, Subcommand};

use crate::failure::Failure;
use age::AgeArguments;
use defrag::DefragArguments;
use experiment::ExperimentArguments;
use measure::MeasureArguments;

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
    /// Age a filesystem as phones do, the same way from the same seed
    #[command(after_help = age::HELP)]
    Age(AgeArguments),
    /// Repeat published experiments with fragmented files on real filesystems; takes root
    #[command(after_help = experiment::HELP)]
    Experiment(ExperimentArguments),
    /// Defragment mounted filesystems: by copying, or by remapping on a served flash device
    #[command(after_help = defrag::HELP)]
    Defrag(DefragArguments),
}

pub(crate) fn run(arguments: &FragArguments) -> Result<(), Failure> {
    match &arguments.command {
        FragCommand::Measure(arguments) => measure::run(arguments),
        FragCommand::Age(arguments) => age::run(arguments),
        FragCommand::Experiment(arguments) => experiment::run(arguments),
        FragCommand::Defrag(arguments) => defrag::run(arguments),
    }
}
