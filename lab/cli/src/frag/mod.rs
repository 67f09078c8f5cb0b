//! `mobifs frag`

mod age;
mod defrag;
mod experiment;
mod measure;

use clap::{Args, Subcommand};
use mobifs_fragmentation::Model;

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

/// What fragments cost, as S4 fits it.
#[derive(Debug, Args)]
struct ModelArguments {
    /// What a piece more costs when a file is read
    #[arg(long, value_name = "MS", default_value_t = Model::default().piece_ms, value_parser = positive)]
    piece_ms: f64,
    /// What a megabyte costs when a file is read
    #[arg(long, value_name = "MS", default_value_t = Model::default().megabyte_ms, value_parser = positive)]
    megabyte_ms: f64,
}

impl ModelArguments {
    const fn model(&self) -> Model {
        Model {
            piece_ms: self.piece_ms,
            megabyte_ms: self.megabyte_ms,
        }
    }
}

fn positive(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if number.is_finite() && number > 0.0 {
        Ok(number)
    } else {
        Err("must be above 0".to_owned())
    }
}
