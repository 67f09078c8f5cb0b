//! `mobifs frag`

mod advise;
mod age;
mod defrag;
mod experiment;
mod measure;
mod progress;
mod waits;

use std::path::Path;

use clap::{Args, Subcommand};
use mobifs_advisor::TraceFacts;
use mobifs_fragmentation::Model;
use mobifs_trace::{LoadOptions, load};

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

pub(crate) fn run(arguments: &FragArguments) -> Result<(), Failure> {
    match &arguments.command {
        FragCommand::Measure(arguments) => measure::run(arguments),
        FragCommand::Advise(arguments) => advise::run(arguments),
        FragCommand::Age(arguments) => age::run(arguments),
        FragCommand::Experiment(arguments) => experiment::run(arguments),
        FragCommand::Waits(arguments) => waits::run(arguments),
        FragCommand::Defrag(arguments) => defrag::run(arguments),
    }
}

/// What a trace says of files.
fn facts_of(path: &Path) -> Result<TraceFacts, Failure> {
    let loaded = load(path, &LoadOptions::default())?;
    crate::trace::report(&loaded.report);
    Ok(TraceFacts::of(&loaded.trace))
}

/// What fragments cost, as S4 fits it.
#[derive(Debug, Args)]
struct ModelArguments {
    /// What a piece more costs when a file is read [default: 0.17, of S4's phone]
    #[arg(long, value_name = "MS", value_parser = positive)]
    piece_ms: Option<f64>,
    /// What a megabyte costs when a file is read [default: 9.9, of S4's phone]
    #[arg(long, value_name = "MS", value_parser = positive)]
    megabyte_ms: Option<f64>,
}

impl ModelArguments {
    fn model(&self) -> Model {
        let usual = Model::default();
        Model {
            piece_ms: self.piece_ms.unwrap_or(usual.piece_ms),
            megabyte_ms: self.megabyte_ms.unwrap_or(usual.megabyte_ms),
        }
    }

    /// None if nothing was given.
    fn given(&self) -> Option<Model> {
        let is_given = self.piece_ms.is_some() || self.megabyte_ms.is_some();
        is_given.then(|| self.model())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_has_the_usual_line() {
        use clap::CommandFactory as _;
        #[derive(clap::Parser)]
        struct Parser {
            #[command(flatten)]
            model: ModelArguments,
        }
        let help = Parser::command().render_help().to_string();
        let usual = Model::default();
        for number in [usual.piece_ms, usual.megabyte_ms] {
            assert!(
                help.contains(&format!("default: {number}, of S4")),
                "{help}"
            );
        }
    }
}
