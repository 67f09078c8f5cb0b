//! `mobifs persist report`

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Args;
use mobifs_device_model::Preset;
use mobifs_device_server::Scale;
use mobifs_persistence::commands::GroupCosts;
use mobifs_persistence::compare::{self as comparison, Comparison};
use mobifs_persistence::live::{self, LiveOptions, Through};
use mobifs_persistence::{
    Characterisation, DiskOptions, PersistError, Section, Under, overview, page, section,
};
use mobifs_workloads::workload::sqlite::JournalMode;
use serde::Serialize;

use super::commands;
use super::compare::{PresetArgument, options_of, title};
use super::output::{check_output, failure, scratch, write};
use crate::failure::{Code, Failure, put};

pub(super) const HELP: &str = "\
SQLite's journal modes and the TRACEs, on ext4 and on a durable mount of MobiFS on a modelled eMMC at its own
time, then `mobifs persist compare` (presets sqlite and cold) and `mobifs persist commands`. Writes report.html and report.json into DIR; minutes, and
longer by twice the length of each trace. With --full also the programs in the background, the sizes of the
journal, and more transactions. It takes root.";

#[derive(Debug, Args)]
pub(super) struct ReportArguments {
    /// Where the report goes
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// All of it; else less of what takes time
    #[arg(long)]
    full: bool,
    /// Traces to replay
    #[arg(value_name = "TRACE")]
    traces: Vec<PathBuf>,
}

#[derive(Debug, Serialize)]
struct Document {
    schema: u32,
    characterisations: Vec<Characterisation>,
    comparisons: Vec<Comparison>,
    commands: GroupCosts,
}

pub(super) fn run(arguments: &ReportArguments, stop: &Arc<AtomicBool>) -> Result<(), Failure> {
    let out = &arguments.out;
    fs::create_dir_all(out)
        .map_err(|error| Failure::new(Code::Failed, format!("{}: {error}", out.display())))?;
    let (html, json) = (out.join("report.html"), out.join("report.json"));
    check_output(&html)?;
    check_output(&json)?;
    let plot = |error: mobifs_charts::PlotError| Failure::new(Code::Failed, error.to_string());
    let characterisations = characterisations(arguments, stop)?;
    let mut sections: Vec<Section> =
        vec![overview("What commits consist of", &characterisations).map_err(plot)?];
    let mut comparisons = Vec::new();
    let presets: &[PresetArgument] = match arguments.full {
        true => &[
            PresetArgument::Sqlite,
            PresetArgument::Cold,
            PresetArgument::Fdtree,
            PresetArgument::Blocks,
            PresetArgument::Region,
        ],
        false => &[PresetArgument::Sqlite, PresetArgument::Cold],
    };
    for &preset in presets {
        let mut options = options_of(preset, Arc::clone(stop));
        (options.rounds, options.operations) = if arguments.full { (5, 500) } else { (3, 100) };
        let found = comparison::compare(&options, &mut |step| eprintln!("mobifs-lab: {step}"));
        let found = found.map_err(|error| failure(&error))?;
        sections.push(comparison::section(title(preset), &found).map_err(plot)?);
        comparisons.push(found);
    }
    let of_commands = commands::measure(Preset::Emmc51)?;
    sections.push(commands::section(&of_commands));
    for one in &characterisations {
        sections.push(section(one).map_err(plot)?);
    }
    let about = "S3 (characterisation) and S2 (evaluation) beside what was measured here";
    write(&html, &page(about, &sections))?;
    let document = Document {
        schema: mobifs_persistence::SCHEMA,
        characterisations,
        comparisons,
        commands: of_commands,
    };
    let text = serde_json::to_string_pretty(&document);
    let text = text.map_err(|error| Failure::new(Code::Failed, error.to_string()))? + "\n";
    write(&json, &text)?;
    put(&format!("{}\n", html.display()))
}

/// A program with the name that tables show.
fn programs(arguments: &ReportArguments) -> Result<Vec<(String, Vec<OsString>)>, Failure> {
    let failed = |path: &Path, error: std::io::Error| {
        Failure::new(Code::Failed, format!("{}: {error}", path.display()))
    };
    let own = std::env::current_exe().map_err(|error| failed(Path::new("mobifs-lab"), error))?;
    let operations = if arguments.full { "2000" } else { "300" };
    let mut programs = Vec::new();
    for mode in JournalMode::ALL {
        let words = [
            "workload",
            "--dir",
            ".",
            "sqlite",
            "--journal",
            mode.name(),
            "--statement",
            "insert",
        ];
        let mut command = vec![own.clone().into_os_string()];
        command.extend(
            words
                .into_iter()
                .chain(["--operations", operations])
                .map(OsString::from),
        );
        programs.push((format!("SQLite {} inserts", mode.name()), command));
    }
    for trace in &arguments.traces {
        let path = trace.canonicalize().map_err(|error| failed(trace, error))?;
        let name = trace
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let mut command = vec![own.clone().into_os_string()];
        command.extend(["trace", "replay", "--json"].map(OsString::from));
        command.extend([path.into_os_string(), OsString::from(".")]);
        programs.push((format!("trace {name}"), command));
    }
    Ok(programs)
}

fn characterisations(
    arguments: &ReportArguments,
    stop: &AtomicBool,
) -> Result<Vec<Characterisation>, Failure> {
    let mut found = Vec::new();
    for (name, command) in programs(arguments)? {
        for (through, on) in [(Through::Ext4, "ext4"), (Through::Mobifs, "MobiFS")] {
            eprintln!("mobifs-lab: {name} on {on}");
            let options = LiveOptions {
                disk: DiskOptions {
                    under: Under::Model {
                        preset: Preset::Emmc51,
                        scale: Scale::REAL,
                    },
                    image: None,
                    size_bytes: 2 << 30,
                    mkfs: Vec::new(),
                    mount: String::new(),
                    scratch: scratch(),
                },
                through,
                mobifs: None,
                command: command.clone(),
            };
            let one = live::characterise(&options);
            if stop.load(Ordering::Relaxed) {
                return Err(failure(&PersistError::Interrupted));
            }
            let one = one.map_err(|error| failure(&error))?;
            found.push(Characterisation {
                source: format!("{name} on {on}"),
                ..one
            });
        }
    }
    Ok(found)
}
