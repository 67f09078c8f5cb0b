//! `mobifs-lab figures`

use std::path::{Path, PathBuf};
use std::process::Command;

use clap::{Args, Subcommand};
use mobifs_engine::AppRules as _;
use mobifs_simulator::figures::{Figures, figures};
use mobifs_volume::Config;

use super::inputs::{self, InputArguments, Progress};
use crate::failure::{Code, Failure};

/// Draws SVG with the system's fonts; a library that does costs sixty crates.
const RENDERER: &str = "rsvg-convert";
/// Pixels for each of the picture's units: sharp on paper and on screens of twice the density.
const PNG_ZOOM: &str = "2";

#[derive(Debug, Subcommand)]
pub(crate) enum LabCommand {
    /// Draw the figures of the MobiFS paper from traces, with the published values beside
    /// them, and the frontier of all policies
    Figures(FiguresArguments),
}

#[derive(Debug, Args)]
pub(crate) struct FiguresArguments {
    /// Directory for the page (index.html), and for each figure as SVG and CSV
    #[arg(long, short = 'o', value_name = "DIR")]
    output: PathBuf,
    /// Also make a PNG of each figure, with rsvg-convert (Debian's package librsvg2-bin)
    #[arg(long)]
    png: bool,
    #[command(flatten)]
    input: InputArguments,
}

pub(crate) fn run(command: &LabCommand) -> Result<(), Failure> {
    let LabCommand::Figures(arguments) = command;
    if arguments.png {
        find_renderer()?;
    }
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
    if arguments.png {
        for figure in &figures.figures {
            render_png(&arguments.output, &figure.name)?;
        }
    }
    for sentence in &figures.left_out {
        eprintln!("mobifs: {sentence}");
    }
    println!("{}", arguments.output.join("index.html").display());
    Ok(())
}

/// Checked before all the work, not after it.
fn find_renderer() -> Result<(), Failure> {
    let output = Command::new(RENDERER).arg("--version").output();
    output.map(drop).map_err(|error| {
        Failure::new(
            Code::Failed,
            format!(
                "--png needs the program {RENDERER}, which cannot be run ({error}); install it \
                 (Debian and Ubuntu: librsvg2-bin) or take the SVG pictures, which are made anyway"
            ),
        )
    })
}

fn render_png(directory: &Path, name: &str) -> Result<(), Failure> {
    let target = directory.join(format!("{name}.png"));
    let failed = |why: String| {
        Failure::new(
            Code::Failed,
            format!("cannot make {}: {why}", target.display()),
        )
    };
    let output = Command::new(RENDERER)
        .args([
            "--zoom",
            PNG_ZOOM,
            "--background-color",
            "white",
            "--output",
        ])
        .arg(&target)
        .arg(directory.join(format!("{name}.svg")))
        .output()
        .map_err(|error| failed(error.to_string()))?;
    if output.status.success() {
        Ok(())
    } else {
        let said = String::from_utf8_lossy(&output.stderr);
        Err(failed(format!("{RENDERER}: {}", said.trim())))
    }
}

type Unwritten = (PathBuf, std::io::Error);

/// Removes the figures of a run before, if the directory has the page that lists them: this run may
/// have others, and one of before beside them would look like one of it.
fn remove_figures(directory: &Path) -> Result<(), Unwritten> {
    let page = directory.join("index.html");
    let Ok(listed) = std::fs::read_to_string(&page) else {
        return Ok(());
    };
    let entries = directory.read_dir();
    let entries = entries.map_err(|error| (directory.to_owned(), error))?;
    for path in entries.flatten().map(|entry| entry.path()) {
        let name = path
            .file_stem()
            .map(|stem| stem.to_string_lossy().into_owned());
        let is_figure = path
            .extension()
            .is_some_and(|kind| kind == "svg" || kind == "csv" || kind == "png");
        // Files of the user's own are not in the page.
        let is_listed = name.is_some_and(|name| listed.contains(&format!("{name}.svg")));
        if is_figure && is_listed {
            std::fs::remove_file(&path).map_err(|error| (path, error))?;
        }
    }
    Ok(())
}

fn write_all(directory: &Path, figures: &Figures) -> Result<(), Unwritten> {
    std::fs::create_dir_all(directory).map_err(|error| (directory.to_owned(), error))?;
    remove_figures(directory)?;
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
