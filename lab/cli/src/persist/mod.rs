//! `mobifs persist`

mod characterise;
mod compare;
mod report;

use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr as _;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::{Args, Subcommand};
use mobifs_device_model::Preset;
use mobifs_device_server::Scale;
use mobifs_persistence::{PersistError, Section, page};
use serde::Serialize;

use crate::failure::{Code, Failure, put};
use characterise::CharacteriseArguments;
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
    /// Both, as one page; takes root
    #[command(after_help = report::HELP)]
    Report(ReportArguments),
}

pub(crate) fn run(arguments: &PersistArguments) -> Result<(), Failure> {
    // A signal ends the program that runs, and this one unmounts then.
    let stop = stop()?;
    match &arguments.command {
        PersistCommand::Characterise(arguments) => characterise::run(arguments, &stop),
        PersistCommand::Compare(arguments) => compare::run(arguments, &stop),
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

/// The device that a filesystem is put on.
#[derive(Debug, Args)]
struct ModelArguments {
    /// The modelled device: microsd, emmc51 or ufs31
    #[arg(long, value_name = "NAME", default_value = "emmc51", value_parser = preset)]
    model: Preset,
    /// Real seconds for each second of the device: 1 as the device, 0 counts only and never waits
    #[arg(long, value_name = "FACTOR", default_value = "1")]
    scale: Scale,
}

fn preset(name: &str) -> Result<Preset, String> {
    Preset::from_str(name).map_err(|error| error.to_string())
}

/// How a result is shown.
#[derive(Debug, Args)]
struct OutputArguments {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Write a page with tables and figures, beside the published values
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

impl OutputArguments {
    fn show(&self, document: &impl Serialize, text: &str, section: Section) -> Result<(), Failure> {
        if let Some(path) = &self.html {
            let about = "S3 (characterisation) and S2 (evaluation) beside what was measured here";
            write(path, &page(about, &[section]))?;
        }
        if self.json {
            let text = serde_json::to_string_pretty(document);
            return put(
                &(text.map_err(|error| Failure::new(Code::Failed, error.to_string()))? + "\n"),
            );
        }
        put(text)
    }
}

fn write(path: &Path, content: &str) -> Result<(), Failure> {
    fs::write(path, content).map_err(|error| {
        let message = format!("cannot write {}: {error}", path.display());
        Failure::new(Code::Failed, message)
    })
}

/// Where images are meanwhile.
fn scratch() -> PathBuf {
    std::env::var_os("MOBIFS_SCRATCH").map_or_else(|| PathBuf::from("/var/tmp"), PathBuf::from)
}

fn failure(error: &PersistError) -> Failure {
    let code = match error {
        PersistError::Damaged(_) | PersistError::NewerFormat(_) | PersistError::Store(_) => {
            Code::Damaged
        }
        _ => Code::Failed,
    };
    Failure::new(code, error.to_string())
}
