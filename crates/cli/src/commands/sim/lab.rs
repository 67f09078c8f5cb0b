//! `mobifs lab`

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use mobifs_core::AppRules as _;
use mobifs_lab::figures::{Figures, figures};
use mobifs_runtime::Config;

use super::inputs::{self, InputArguments, Progress};
use crate::failure::{Code, Failure};

#[derive(Debug, Args)]
pub(crate) struct LabArguments {
    #[command(subcommand)]
    command: LabCommand,
}

#[derive(Debug, Subcommand)]
enum LabCommand {
    /// Draw the figures of the MobiFS paper from traces, with the published values beside
    /// them, and the frontier of all policies
    Figures(FiguresArguments),
}

#[derive(Debug, Args)]
struct FiguresArguments {
    /// Directory for the page (index.html), and for each figure as SVG and CSV
    #[arg(long, short = 'o', value_name = "DIR")]
    output: PathBuf,
    #[command(flatten)]
    input: InputArguments,
}

pub(crate) fn run(arguments: &LabArguments) -> Result<(), Failure> {
    let LabCommand::Figures(arguments) = &arguments.command;
    let device = inputs::device(&arguments.input)?;
    let traces = inputs::streams(&arguments.input)?;
    let config =
        Config::defaults().map_err(|error| Failure::new(Code::Failed, error.to_string()))?;
    let default = config.rules.policy(b"app");
    let progress = Progress::new();
    let figures = figures(&traces, default, &device, &|done, of| {
        progress.show(done, of)
    });
    progress.clear();
    let figures = figures.map_err(|error| Failure::new(Code::Failed, error.to_string()))?;
    write_all(&arguments.output, &figures).map_err(|(path, error)| {
        Failure::new(
            Code::Failed,
            format!("cannot write {}: {error}", path.display()),
        )
    })?;
    println!("{}", arguments.output.join("index.html").display());
    Ok(())
}

type Unwritten = (PathBuf, std::io::Error);

fn write_all(directory: &Path, figures: &Figures) -> Result<(), Unwritten> {
    std::fs::create_dir_all(directory).map_err(|error| (directory.to_owned(), error))?;
    let write = |name: String, content: String| {
        let path = directory.join(name);
        std::fs::write(&path, content).map_err(|error| (path, error))
    };
    write("index.html".to_owned(), figures.html())?;
    for figure in &figures.figures {
        write(format!("{}.svg", figure.name), figure.svg.clone())?;
        write(format!("{}.csv", figure.name), figure.csv())?;
    }
    let frontier = serde_json::to_string_pretty(&figures.frontier);
    let frontier = frontier.map_err(|error| (directory.to_owned(), error.into()))?;
    write("frontier.json".to_owned(), frontier + "\n")
}
