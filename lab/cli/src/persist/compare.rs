//! `mobifs persist compare`

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::{Args, ValueEnum};
use mobifs_device_model::Preset;
use mobifs_device_server::Scale;
use mobifs_persistence::Under;
use mobifs_persistence::compare::{Arm, CompareOptions, compare, section, text};
use mobifs_workloads::workload::background::Job;
use mobifs_workloads::workload::sqlite::{JournalMode, Statement};

use super::output::{ModelArguments, OutputArguments, failure, scratch};
use crate::failure::{Code, Failure};

pub(super) const HELP: &str = "\
Each way has an ext4 of its own on a served flash device, or with --real in a file in DIR on a real disk, where
energy and bytes programmed are not known. Ways: ext4 without a journal, ordered (the baseline), with fast
commits, with data=journal; MobiFS durable with direct writes and with flushes. PRESET:
  sqlite   insert, update and delete in all journal modes of SQLite
  quick    insert in DELETE and WAL
  cold     update and delete in all journal modes, each database not in memory when it begins
  fdtree   as sqlite, beside a program that makes and removes files (S2 Fig. 16)
  blocks   as sqlite, beside a program that writes 4 KiB blocks into a file of 4 GiB (S2 Fig. 16)
  region   insert, update and delete in DELETE by size of the journal, 16 MiB to 1 GiB (S2 Fig. 17)

With --real, DIR needs as much room as a way's ext4 may take: 2 GiB, with blocks and region 8 GiB.

It takes root, and the programs mkfs.ext4 and mobifs. Figures are medians of the rounds, each by itself;
timings mean something only on a machine that does nothing else.

S2: an excerpt of a work on persistence with hardware features of eMMC, whose title is not known.";

#[derive(Debug, Args)]
pub(super) struct CompareArguments {
    /// What is compared
    #[arg(long, value_enum, default_value = "sqlite")]
    preset: PresetArgument,
    /// Use files in this directory of a real disk
    #[arg(long, value_name = "DIR")]
    real: Option<PathBuf>,
    #[command(flatten)]
    model: ModelArguments,
    /// Rounds
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Transactions of each cell and round, or as many as take a minute
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..=20_000))]
    operations: u64,
    /// Only ways whose name has this word
    #[arg(long, value_name = "WORD")]
    only: Option<String>,
    #[command(flatten)]
    output: OutputArguments,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum PresetArgument {
    /// Everything of SQLite
    Sqlite,
    /// Little of it
    Quick,
    /// Databases that are not in memory
    Cold,
    /// Beside metadata
    Fdtree,
    /// Beside data
    Blocks,
    /// By size of the journal
    Region,
}

/// The sizes of S2 Fig. 17. Its default comes first: ratios are to it.
const REGION_MIB: [u32; 7] = [256, 16, 32, 64, 128, 512, 1024];
const BLOCKS_FILE_BYTES: u64 = 4 << 30;

pub(super) fn run(arguments: &CompareArguments, stop: &Arc<AtomicBool>) -> Result<(), Failure> {
    let options = options(arguments, stop)?;
    arguments.output.check()?;
    let found = compare(&options, &mut |step| eprintln!("mobifs-lab: {step}"));
    let found = found.map_err(|error| failure(&error))?;
    let section = section(title(arguments.preset), &found);
    let section = section.map_err(|error| Failure::new(Code::Failed, error.to_string()))?;
    arguments.output.show(&found, &text(&found), section)
}

pub(super) const fn title(preset: PresetArgument) -> &'static str {
    match preset {
        PresetArgument::Sqlite | PresetArgument::Quick => "SQLite",
        PresetArgument::Cold => "SQLite, databases not in memory",
        PresetArgument::Fdtree => "SQLite beside a program that makes and removes files",
        PresetArgument::Blocks => "SQLite beside a program that writes blocks",
        PresetArgument::Region => "SQLite by size of the journal",
    }
}

fn options(
    arguments: &CompareArguments,
    stop: &Arc<AtomicBool>,
) -> Result<CompareOptions, Failure> {
    let mut options = options_of(arguments.preset, Arc::clone(stop));
    if let Some(word) = &arguments.only {
        options.arms.retain(|arm| arm.name.contains(word.as_str()));
    }
    if options.arms.iter().all(|arm| arm.unavailable.is_some()) {
        return Err(Failure::new(
            Code::Usage,
            "--only leaves nothing that can be measured",
        ));
    }
    options.under = match &arguments.real {
        Some(directory) => Under::Real(directory.clone()),
        None => Under::Model {
            preset: arguments.model.model,
            scale: arguments.model.scale,
        },
    };
    options.operations = arguments.operations;
    options.rounds = arguments.rounds;
    Ok(options)
}

/// What a preset compares, on an eMMC at its own time.
pub(super) fn options_of(preset: PresetArgument, stop: Arc<AtomicBool>) -> CompareOptions {
    let (modes, statements) = match preset {
        PresetArgument::Quick => (
            vec![JournalMode::Delete, JournalMode::Wal],
            vec![Statement::Insert],
        ),
        PresetArgument::Cold => (
            JournalMode::ALL.to_vec(),
            vec![Statement::Update, Statement::Delete],
        ),
        PresetArgument::Region => (vec![JournalMode::Delete], Statement::ALL.to_vec()),
        _ => (JournalMode::ALL.to_vec(), Statement::ALL.to_vec()),
    };
    CompareOptions {
        under: Under::Model {
            preset: Preset::Emmc51,
            scale: Scale::REAL,
        },
        size_bytes: match preset {
            PresetArgument::Blocks | PresetArgument::Region => 8 << 30,
            _ => 2 << 30,
        },
        arms: match preset {
            PresetArgument::Region => region(),
            _ => Arm::all(),
        },
        modes,
        statements,
        is_cold: preset == PresetArgument::Cold,
        operations: 200,
        rounds: 3,
        background: match preset {
            PresetArgument::Fdtree => Some(Job::Trees),
            PresetArgument::Blocks => Some(Job::Blocks {
                file_bytes: BLOCKS_FILE_BYTES,
            }),
            _ => None,
        },
        mobifs: None,
        scratch: scratch(),
        stop,
    }
}

/// ext4 and MobiFS with each size.
fn region() -> Vec<Arm> {
    let sized =
        |arm: &dyn Fn() -> Arm| REGION_MIB.map(|mebibytes| arm().with_journal_mib(mebibytes));
    let mut arms = Vec::from(sized(&Arm::baseline));
    arms.extend(sized(&Arm::mobifs_default));
    arms
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_are_described_and_regions_are_those_of_the_paper() {
        for preset in PresetArgument::value_variants() {
            let value = preset.to_possible_value().unwrap();
            assert!(
                HELP.contains(&format!("\n  {} ", value.get_name())),
                "{preset:?}"
            );
        }
        let arms = region();
        assert_eq!(arms.len(), 14);
        assert_eq!(arms[0].mkfs, ["-J", "size=256"]);
        assert!(
            arms[13]
                .mobifs
                .as_ref()
                .unwrap()
                .contains("journal_bytes = \"1024MiB\"")
        );
    }
}
