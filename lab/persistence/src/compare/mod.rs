//! SQLite on filesystems that make its transactions durable in different ways, side by side in one run.

mod arm;
mod report;
mod run;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use mobifs_device_server::Scale;
use mobifs_numerics::median;
use mobifs_workloads::workload::background::Job;
use mobifs_workloads::workload::sqlite::{JournalMode, Statement};
use rustix::fs::statvfs;
use serde::Serialize;

use crate::disk::Under;
use crate::error::PersistError;

pub use arm::{Arm, BASELINE, NO_JOURNAL};
pub use report::{section, text, text_of};

/// What is compared, and how often.
#[derive(Clone, Debug)]
pub struct CompareOptions {
    /// What the filesystems lie on.
    pub under: Under,
    /// Size of each.
    pub size_bytes: u64,
    /// What is compared.
    pub arms: Vec<Arm>,
    /// SQLite's journal modes.
    pub modes: Vec<JournalMode>,
    /// The statements, one a transaction.
    pub statements: Vec<Statement>,
    /// Each database is made, and everything mounted again before it is measured.
    pub is_cold: bool,
    /// Transactions of each cell and round: equal work.
    pub operations: u64,
    /// Rounds; medians of them are shown.
    pub rounds: u32,
    /// What runs beside SQLite.
    pub background: Option<Job>,
    /// The program `mobifs`; none: beside this program, or on the PATH.
    pub mobifs: Option<PathBuf>,
    /// Where images are meanwhile.
    pub scratch: PathBuf,
    /// Ends the run.
    pub stop: Arc<AtomicBool>,
}

/// Which cell of the table.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Key {
    /// Index of the arm.
    pub arm: usize,
    /// SQLite's journal mode.
    pub mode: JournalMode,
    /// The statement.
    pub statement: Statement,
}

/// What one transaction costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Cost {
    /// Transactions in a second.
    pub per_second: f64,
    /// 99 of 100 took no longer, in ms.
    pub p99_ms: f64,
    /// Time that the model takes for the commands by themselves, in ms.
    pub model_ms: Option<f64>,
    /// The same if it had durable writes (FUA), which a loop device has not, in ms.
    pub model_durable_writes_ms: Option<f64>,
    /// Commits of the journal, fast commits included.
    pub commits: Option<f64>,
    /// Blocks of 4 KiB written to the journal.
    pub journal_blocks: Option<f64>,
    /// Pages that MobiFS's journal has as a whole, in percent of the changed ones.
    pub whole_pages_percent: Option<f64>,
    /// Bytes of MobiFS's journal that are neither content nor padding, in percent of all.
    pub control_percent: Option<f64>,
    /// Flushes that the device got.
    pub flushes: f64,
    /// Bytes that the device got.
    pub written_bytes: f64,
    /// Bytes that it programmed; of the model only.
    pub programmed_bytes: Option<f64>,
    /// Energy in mJ, without that of an idle device; of the model only.
    pub energy_mj: Option<f64>,
}

/// A cell: the medians of its rounds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cell {
    /// Which.
    #[serde(flatten)]
    pub key: Key,
    /// Medians, each by itself.
    pub median: Cost,
    /// Each round.
    pub rounds: Vec<Cost>,
}

/// A comparison.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// The version of the document's format.
    pub schema: u32,
    /// On what.
    pub device: String,
    /// The version of Linux.
    pub kernel: String,
    /// What ran beside SQLite.
    pub background: Option<String>,
    /// Nothing of a database was in memory when it was measured.
    pub is_cold: bool,
    /// The device took no time for its commands: rates and the times of transactions are those of this machine.
    pub is_only_counted: bool,
    /// Transactions of each cell and round.
    pub operations: u64,
    /// What was compared; also what could not be.
    pub arms: Vec<Arm>,
    /// The cells.
    pub cells: Vec<Cell>,
}

/// Compares. Rounds go through all arms, so that what changes in the machine affects all.
///
/// # Errors
/// Something cannot be made or mounted, or the run is interrupted.
pub fn compare(
    options: &CompareOptions,
    progress: &mut dyn FnMut(&str),
) -> Result<Comparison, PersistError> {
    check(options)?;
    let mut rounds: BTreeMap<Key, Vec<Cost>> = BTreeMap::new();
    for round in 1..=options.rounds {
        for (index, arm) in options.arms.iter().enumerate() {
            if arm.unavailable.is_some() {
                continue;
            }
            progress(&format!(
                "round {round} of {}: {}",
                options.rounds, arm.name
            ));
            for (mode, statement, cost) in run::arm(options, arm)? {
                let key = Key {
                    arm: index,
                    mode,
                    statement,
                };
                rounds.entry(key).or_default().push(cost);
            }
        }
    }
    let cells = rounds.into_iter().map(|(key, rounds)| Cell {
        key,
        median: median_of(&rounds),
        rounds,
    });
    Ok(Comparison {
        schema: crate::SCHEMA,
        device: match &options.under {
            Under::Model { preset, scale } => {
                format!("modelled {}, {} × its time", preset.name(), scale.factor())
            }
            Under::Real(directory) => format!("disk of {}", directory.display()),
        },
        kernel: rustix::system::uname()
            .release()
            .to_string_lossy()
            .into_owned(),
        background: options.background.map(run::name_of_job),
        is_cold: options.is_cold,
        is_only_counted: matches!(&options.under, Under::Model { scale, .. } if *scale == Scale::COUNT_ONLY),
        operations: options.operations,
        arms: options.arms.clone(),
        cells: cells.collect(),
    })
}

/// What else the last of the ways would find out, after the others were measured.
fn check(options: &CompareOptions) -> Result<(), PersistError> {
    let mut arms = options.arms.iter();
    if options.mobifs.is_none() && arms.any(|arm| arm.unavailable.is_none() && arm.mobifs.is_some())
    {
        crate::tool::mobifs()?;
    }
    if let Under::Real(directory) = &options.under {
        let found = statvfs(directory);
        let found = found.map_err(|errno| PersistError::io(directory)(errno.into()))?;
        let free_bytes = found.f_bavail.saturating_mul(found.f_frsize);
        // A file has only the blocks that were written; how many that are, only the end shows.
        if free_bytes < options.size_bytes {
            return Err(PersistError::NoRoom {
                path: directory.clone(),
                free_bytes,
                wanted_bytes: options.size_bytes,
            });
        }
    }
    Ok(())
}

fn median_of(rounds: &[Cost]) -> Cost {
    let of = |value: &dyn Fn(&Cost) -> Option<f64>| {
        let values: Vec<Ordered> = rounds.iter().filter_map(value).map(Ordered).collect();
        median(values).map(|value| value.0)
    };
    Cost {
        per_second: of(&|cost| Some(cost.per_second)).unwrap_or(0.0),
        p99_ms: of(&|cost| Some(cost.p99_ms)).unwrap_or(0.0),
        model_ms: of(&|cost| cost.model_ms),
        model_durable_writes_ms: of(&|cost| cost.model_durable_writes_ms),
        commits: of(&|cost| cost.commits),
        journal_blocks: of(&|cost| cost.journal_blocks),
        whole_pages_percent: of(&|cost| cost.whole_pages_percent),
        control_percent: of(&|cost| cost.control_percent),
        flushes: of(&|cost| Some(cost.flushes)).unwrap_or(0.0),
        written_bytes: of(&|cost| Some(cost.written_bytes)).unwrap_or(0.0),
        programmed_bytes: of(&|cost| cost.programmed_bytes),
        energy_mj: of(&|cost| cost.energy_mj),
    }
}

/// A number with the order of all numbers.
#[derive(Clone, Copy, Debug)]
struct Ordered(f64);

impl PartialEq for Ordered {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Ordered {}

impl PartialOrd for Ordered {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Ordered {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl Comparison {
    /// The cell of an arm.
    pub(crate) fn cell(
        &self,
        arm: usize,
        mode: JournalMode,
        statement: Statement,
    ) -> Option<&Cell> {
        let key = Key {
            arm,
            mode,
            statement,
        };
        self.cells.iter().find(|cell| cell.key == key)
    }

    pub(crate) fn arm_index(&self, name: &str) -> Option<usize> {
        self.arms.iter().position(|arm| arm.name == name)
    }
}
