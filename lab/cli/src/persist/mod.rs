//! `mobifs persist`

mod characterise;
mod commands;
mod compare;
mod output;
mod report;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::{Args, Subcommand};

use crate::device_guard::DeviceGuard;
use crate::failure::{Code, Failure};
use characterise::CharacteriseArguments;
use commands::CommandsArguments;
use compare::CompareArguments;
use report::ReportArguments;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

#[derive(Debug, Args)]
pub(crate) struct PersistArguments {
    #[command(subcommand)]
    command: PersistCommand,
}

#[derive(Debug, Subcommand)]
enum PersistCommand {
    /// Show what commits consist of: of the journal in an image, or of a program on a served device
    #[command(after_help = characterise::HELP)]
    Characterise(CharacteriseArguments),
    /// Compare ways to make SQLite's transactions durable, side by side in one run; takes root
    #[command(after_help = compare::HELP)]
    Compare(CompareArguments),
    /// Compare the commands by which commits of several programs become durable, in the model's time
    #[command(after_help = commands::HELP)]
    Commands(CommandsArguments),
    /// All of it, as one page; takes root
    #[command(after_help = report::HELP)]
    Report(ReportArguments),
}

pub(crate) fn run(arguments: &PersistArguments) -> Result<(), Failure> {
    // A signal ends the program that runs, and this one unmounts then.
    let stop = stop()?;
    let _guard = match &arguments.command {
        PersistCommand::Characterise(arguments) if arguments.only_reads() => None,
        PersistCommand::Commands(_) => None,
        _ => Some(DeviceGuard::start()?),
    };
    match &arguments.command {
        PersistCommand::Characterise(arguments) => characterise::run(arguments, &stop),
        PersistCommand::Compare(arguments) => compare::run(arguments, &stop),
        PersistCommand::Commands(arguments) => commands::run(arguments),
        PersistCommand::Report(arguments) => report::run(arguments, &stop),
    }
}

/// Set by a signal, so that what is mounted is unmounted.
fn stop() -> Result<Arc<AtomicBool>, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        let watched = signal_hook::flag::register(signal, Arc::clone(&stop));
        watched.map_err(|error| {
            Failure::new(Code::Failed, format!("cannot watch for signals: {error}"))
        })?;
    }
    Ok(stop)
}
