//! All experiments that were asked for, one after the other.

use std::fmt::Write as _;
use std::time::Instant;

use mobifs_charts::Table;
use mobifs_experiments::criteria_table;
use serde::Serialize;

use crate::error::FragError;
use crate::experiment::{
    defragmentation, dispersed, preallocation, reservation, scan, sqlite, utilisation, waits,
};
use crate::outcome::Outcome;
use crate::settings::{Extent, Settings};

/// Version of the JSON document.
pub const SCHEMA: u32 = 1;

/// An experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Name {
    /// Figs. 6 and 15.
    Sqlite,
    /// Fig. 7.
    Utilisation,
    /// Fig. 8.
    Capacity,
    /// Fig. 9.
    Scan,
    /// §5.3.1.
    IoCounts,
    /// Figs. 10 to 12.
    Waits,
    /// Fig. 13.
    Dispersed,
    /// Fig. 14.
    Preallocation,
    /// Fig. 16.
    Reservation,
    /// Fig. 17.
    Defragmentation,
}

impl Name {
    /// All, in the order of the report.
    pub const ALL: [Self; 10] = [
        Self::Sqlite,
        Self::Utilisation,
        Self::Capacity,
        Self::Scan,
        Self::IoCounts,
        Self::Waits,
        Self::Dispersed,
        Self::Preallocation,
        Self::Reservation,
        Self::Defragmentation,
    ];

    /// As the command line has it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Sqlite => "sqlite",
            Self::Utilisation => "utilisation",
            Self::Capacity => "capacity",
            Self::Scan => "scan",
            Self::IoCounts => "io-counts",
            Self::Waits => "waits",
            Self::Dispersed => "dispersed",
            Self::Preallocation => "preallocation",
            Self::Reservation => "reservation",
            Self::Defragmentation => "defragmentation",
        }
    }

    fn run(self, settings: &Settings) -> Result<Outcome, FragError> {
        match self {
            Self::Sqlite => sqlite::run(settings),
            Self::Utilisation => utilisation::run(settings),
            Self::Capacity => utilisation::run_capacity(settings),
            Self::Scan => scan::run(settings),
            Self::IoCounts => scan::run_counts(settings),
            Self::Waits => waits::run(settings),
            Self::Dispersed => dispersed::run(settings),
            Self::Preallocation => preallocation::run(settings),
            Self::Reservation => reservation::run(settings),
            Self::Defragmentation => defragmentation::run(settings),
        }
    }
}

/// The whole.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// [`SCHEMA`]
    pub schema: u32,
    /// Release of the kernel.
    pub kernel: String,
    /// How large the experiments were.
    pub extent: Extent,
    /// Seed of everything that is random.
    pub seed: u64,
    /// Criteria that failed.
    pub failed: usize,
    /// All criteria.
    pub criteria: usize,
    /// What was found.
    pub experiments: Vec<Outcome>,
}

/// Makes experiments; `done` gets each when it is complete.
///
/// # Errors
/// [`FragError`]; nothing stays mounted.
pub fn run(
    names: &[Name],
    settings: &Settings,
    done: &mut dyn FnMut(&Outcome),
) -> Result<Report, FragError> {
    if !rustix::process::geteuid().is_root() {
        return Err(FragError::NotRoot);
    }
    let mut experiments = Vec::new();
    for name in names {
        let begun = Instant::now();
        let mut outcome = name.run(settings)?;
        outcome.seconds = begun.elapsed().as_secs_f64();
        done(&outcome);
        experiments.push(outcome);
    }
    let kernel = rustix::system::uname();
    Ok(Report {
        schema: SCHEMA,
        kernel: kernel.release().to_string_lossy().into_owned(),
        extent: settings.extent,
        seed: settings.seed,
        failed: experiments.iter().map(Outcome::failed).sum(),
        criteria: experiments.iter().map(|one| one.criteria.len()).sum(),
        experiments,
    })
}

/// An experiment as text for people.
#[must_use]
pub fn text(outcome: &Outcome) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _written = write_all(&mut text, outcome);
    text
}

fn write_all(text: &mut String, outcome: &Outcome) -> std::fmt::Result {
    writeln!(text, "== {} ({:.0} s)", outcome.title, outcome.seconds)?;
    for table in &outcome.tables {
        text.push('\n');
        text.push_str(&table_text(table));
    }
    text.push_str(&criteria_table(&outcome.criteria));
    for note in &outcome.notes {
        writeln!(text, "{note}")?;
    }
    Ok(())
}

/// A table as text for people, its columns below each other.
#[must_use]
pub fn table_text(table: &Table) -> String {
    let mut text = format!("{}\n", table.caption);
    let rows = || std::iter::once(&table.head).chain(&table.rows);
    let width = |column: usize| {
        let cells = rows().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<_> = (0..table.head.len()).map(width).collect();
    for row in rows() {
        let cells = row.iter().zip(&widths);
        let line: Vec<_> = cells
            .map(|(cell, &width)| format!("{cell:>width$}"))
            .collect();
        text.push_str(line.join("  ").trim_end());
        text.push('\n');
    }
    text
}
