//! A comparison, as text and as a section of a page.

use std::fmt::Write as _;

use mobifs_charts::{Bars, Legend, PlotError, Table, bar_chart};
use mobifs_numerics::geometric_mean;
use mobifs_workloads::workload::sqlite::{JournalMode, Statement};

use super::{BASELINE, Comparison, Cost, NO_JOURNAL};
use crate::report::Section;

/// S2: what the mechanisms of S3 gain over ext4 ordered, in percent.
const PUBLISHED: [(Statement, f64); 3] = [
    (Statement::Insert, 15.0),
    (Statement::Update, 28.5),
    (Statement::Delete, 22.0),
];

/// A figure of a cell, if it is known.
type Value = fn(&Cost) -> Option<f64>;

/// As text.
#[must_use]
pub fn text(found: &Comparison) -> String {
    let mut text = about(found);
    text.push('\n');
    text.push_str(&text_of(&tables(found)));
    for note in notes(found) {
        let _written = writeln!(text, "\n{note}");
    }
    text
}

/// Tables as text.
#[must_use]
pub fn text_of(tables: &[Table]) -> String {
    let mut text = String::new();
    for table in tables {
        // Writing to a string cannot fail.
        let _written = write_table(&mut text, table);
    }
    text
}

fn write_table(text: &mut String, table: &Table) -> std::fmt::Result {
    writeln!(text, "\n{}", table.caption)?;
    let rows = || std::iter::once(&table.head).chain(&table.rows);
    let width = |column: usize| {
        let cells = rows().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    for row in rows() {
        for (column, cell) in row.iter().enumerate() {
            let width = width(column);
            match column {
                0 => write!(text, "{cell:width$}")?,
                _ => write!(text, "  {cell:>width$}")?,
            }
        }
        text.push('\n');
    }
    Ok(())
}

fn about(found: &Comparison) -> String {
    let beside = found
        .background
        .as_ref()
        .map_or_else(String::new, |job| format!(", beside {job}"));
    let cold = if found.is_cold { ", not in memory" } else { "" };
    format!(
        "SQLite{cold}, one row a transaction, synchronous=FULL, {} transactions a cell, on ext4 ({}) of Linux \
         {}{beside}",
        found.operations, found.device, found.kernel
    )
}

/// Modes and statements that were measured, in order.
fn cases(found: &Comparison) -> Vec<(JournalMode, Statement)> {
    let mut cases: Vec<_> = found
        .cells
        .iter()
        .map(|cell| (cell.key.mode, cell.key.statement))
        .collect();
    cases.sort_unstable();
    cases.dedup();
    cases
}

fn measured_arms(found: &Comparison) -> Vec<usize> {
    let arms = found.arms.iter().enumerate();
    arms.filter(|(_, arm)| arm.unavailable.is_none())
        .map(|(index, _)| index)
        .collect()
}

/// The value of an arm in proportion to the baseline's.
fn ratio(
    found: &Comparison,
    arm: usize,
    (mode, statement): (JournalMode, Statement),
    value: Value,
) -> Option<f64> {
    let of = |arm| {
        found
            .cell(arm, mode, statement)
            .and_then(|cell| value(&cell.median))
    };
    let (here, there) = (of(arm)?, of(baseline(found)?)?);
    (there > 0.0).then(|| here / there)
}

/// Ext4 ordered; where it was not measured, the first way that was.
fn baseline(found: &Comparison) -> Option<usize> {
    let measured = measured_arms(found);
    let ordered = found.arm_index(BASELINE);
    ordered
        .filter(|arm| measured.contains(arm))
        .or_else(|| measured.first().copied())
}

/// A rate says something of a device that takes its time, and of none that only counts.
fn rate(cost: &Cost) -> Option<f64> {
    Some(cost.per_second)
}

fn tables(found: &Comparison) -> Vec<Table> {
    let values: [(&str, Value, bool); 11] = [
        ("Transactions a second", rate, true),
        (
            "99 of 100 transactions took at most, ms",
            |cost| Some(cost.p99_ms),
            true,
        ),
        (
            "Time of the device's writes and flushes by themselves, ms a transaction",
            |cost| cost.model_ms,
            true,
        ),
        (
            "The same on a device with durable writes (FUA), ms a transaction",
            |cost| cost.model_durable_writes_ms,
            true,
        ),
        ("Commits a transaction", |cost| cost.commits, false),
        (
            "Journal blocks (4 KiB) a transaction",
            |cost| cost.journal_blocks,
            true,
        ),
        (
            "Whole pages in MobiFS's journal, percent of changed pages",
            |cost| cost.whole_pages_percent,
            false,
        ),
        (
            "Control information in MobiFS's journal, percent of its bytes",
            |cost| cost.control_percent,
            false,
        ),
        ("Flushes a transaction", |cost| Some(cost.flushes), true),
        (
            "KiB programmed a transaction",
            |cost| Some(cost.programmed_bytes? / 1024.0),
            true,
        ),
        (
            "mJ a transaction, without idling",
            |cost| cost.energy_mj,
            true,
        ),
    ];
    // The first two are of the time that a transaction took.
    let left_out = if found.is_only_counted { 2 } else { 0 };
    let mut tables: Vec<Table> = values
        .into_iter()
        .skip(left_out)
        .filter_map(|(caption, value, has_ratio)| table(found, caption, value, has_ratio))
        .collect();
    tables.extend(beside_published(found));
    tables
}

fn table(found: &Comparison, caption: &str, value: Value, has_ratio: bool) -> Option<Table> {
    let arms = measured_arms(found);
    let baseline = baseline(found).map(|arm| &found.arms[arm].name);
    let caption = match baseline.filter(|_| has_ratio) {
        Some(name) => format!("{caption} (times that of {name})"),
        None => caption.to_owned(),
    };
    let mut table = Table::new(caption, &[""]);
    table
        .head
        .extend(arms.iter().map(|&arm| found.arms[arm].name.clone()));
    let mut is_empty = true;
    for case in cases(found) {
        let mut row = vec![format!("{} {}", case.0.name(), case.1.name())];
        for &arm in &arms {
            let cell = found
                .cell(arm, case.0, case.1)
                .and_then(|cell| value(&cell.median));
            is_empty &= cell.is_none();
            let ratio = ratio(found, arm, case, value).filter(|_| has_ratio);
            row.push(match (cell, ratio) {
                (Some(value), Some(ratio)) => format!("{} ({ratio:.2})", number(value)),
                (Some(value), None) => number(value),
                (None, _) => "–".to_owned(),
            });
        }
        table.rows.push(row);
    }
    if has_ratio {
        let mut row = vec!["geometric mean".to_owned()];
        for &arm in &arms {
            let cases = cases(found);
            let ratios = cases
                .iter()
                .filter_map(|&case| ratio(found, arm, case, value));
            let mean = geometric_mean(ratios.filter(|ratio| *ratio > 0.0));
            row.push(mean.map_or_else(|| "–".to_owned(), |mean| format!("({mean:.2})")));
        }
        table.rows.push(row);
    }
    (!is_empty).then_some(table)
}

fn number(value: f64) -> String {
    match value {
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value => format!("{value:.2}"),
    }
}

/// The gain of each arm by statement beside S2's.
fn beside_published(found: &Comparison) -> Option<Table> {
    if found.is_only_counted || found.arm_index(BASELINE) != baseline(found) {
        return None;
    }
    let arms = measured_arms(found);
    let mut table = Table::new(
        "Gain over ext4 ordered by statement, all journal modes: geometric means, beside S2",
        &["", "S2's system"],
    );
    table
        .head
        .extend(arms.iter().map(|&arm| found.arms[arm].name.clone()));
    for (statement, published) in PUBLISHED {
        let cases: Vec<_> = cases(found)
            .into_iter()
            .filter(|case| case.1 == statement)
            .collect();
        if cases.is_empty() {
            continue;
        }
        let mut row = vec![statement.name().to_owned(), format!("{published:+.1} %")];
        for &arm in &arms {
            let ratios = cases
                .iter()
                .filter_map(|&case| ratio(found, arm, case, rate));
            let gain = geometric_mean(ratios).map(|mean| (mean - 1.0) * 100.0);
            row.push(gain.map_or_else(|| "–".to_owned(), |gain| format!("{gain:+.1} %")));
        }
        table.rows.push(row);
    }
    (!table.rows.is_empty()).then_some(table)
}

fn notes(found: &Comparison) -> Vec<String> {
    let mut notes = Vec::new();
    if found.is_only_counted {
        notes.push(
            "The device took no time (scale 0): rates, and the comparison with S2's, would be of this machine, and are \
             left out."
                .to_owned(),
        );
    } else if let Some(no_journal) = found.arm_index(NO_JOURNAL) {
        for arm in measured_arms(found)
            .into_iter()
            .filter(|&arm| found.arms[arm].mobifs.is_some())
        {
            let ratios = cases(found).into_iter().filter_map(|case| {
                Some(ratio(found, no_journal, case, rate)? / ratio(found, arm, case, rate)?)
            });
            if let Some(mean) = geometric_mean(ratios) {
                let gain = (mean - 1.0) * 100.0;
                let word = if gain < 0.0 { "slower" } else { "faster" };
                notes.push(format!(
                    "Without any journal ext4 is {:.1} % {word} than {} here; S2: 9.3 % faster than theirs.",
                    gain.abs(),
                    found.arms[arm].name
                ));
            }
        }
    }
    let missing = found.arms.iter().filter_map(|arm| {
        let why = arm.unavailable.as_ref()?;
        Some(format!("{}: not available; {why}.", arm.name))
    });
    notes.extend(missing);
    notes
}

/// As a section of a page.
///
/// # Errors
/// The drawing library refuses.
pub fn section(title: &str, found: &Comparison) -> Result<Section, PlotError> {
    let mut figures = Vec::new();
    if !found.is_only_counted {
        figures.push((rates(found)?, "Medians of the rounds.".to_owned()));
    }
    let mut text = vec![about(found)];
    text.extend(notes(found));
    Ok(Section {
        title: title.to_owned(),
        text,
        figures,
        tables: tables(found),
    })
}

fn rates(found: &Comparison) -> Result<String, PlotError> {
    let cases = cases(found);
    let series = measured_arms(found).into_iter().map(|arm| {
        let values = cases.iter().map(|&(mode, statement)| {
            found
                .cell(arm, mode, statement)
                .map(|cell| cell.median.per_second)
        });
        (found.arms[arm].name.clone(), values.collect())
    });
    let bars = Bars {
        categories: cases
            .iter()
            .map(|(mode, statement)| format!("{} {}", mode.name(), statement.name()))
            .collect(),
        series: series.collect(),
    };
    bar_chart(
        760,
        "Durable transactions a second".to_owned(),
        "transactions a second",
        Legend::UpperLeft,
        &bars,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::{Arm, Cell, Key};

    fn comparison(rates: &[(usize, f64)]) -> Comparison {
        let cells = rates.iter().map(|&(arm, per_second)| Cell {
            key: Key {
                arm,
                mode: JournalMode::Wal,
                statement: Statement::Update,
            },
            median: Cost {
                per_second,
                ..Cost::default()
            },
            rounds: Vec::new(),
        });
        Comparison {
            schema: 1,
            device: "d".to_owned(),
            kernel: "6".to_owned(),
            background: None,
            is_cold: false,
            is_only_counted: false,
            operations: 1,
            arms: Arm::all(),
            cells: cells.collect(),
        }
    }

    #[test]
    fn gains_are_over_the_baseline_and_missing_arms_say_why() {
        let found = comparison(&[(0, 220.0), (1, 100.0), (4, 200.0)]);
        let text = text(&found);
        for part in [
            "200 (2.00)",
            "+28.5 %",
            "+100.0 %",
            "is 10.0 % faster than MobiFS bytes, direct",
            "MobiFS packed: not available",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert!(section("t", &found).unwrap().figures[0].0.contains("<svg"));
    }

    #[test]
    fn a_device_that_only_counts_has_no_rates() {
        let found = Comparison {
            is_only_counted: true,
            ..comparison(&[(0, 220.0), (1, 100.0), (4, 200.0)])
        };
        let text = text(&found);
        for part in [
            "Transactions a second",
            "99 of 100",
            "S2's system",
            "faster than",
        ] {
            assert!(!text.contains(part), "{part} in {text}");
        }
        assert!(text.contains("The device took no time"), "{text}");
        assert!(text.contains("Flushes a transaction"), "{text}");
        assert!(section("t", &found).unwrap().figures.is_empty());
    }

    #[test]
    fn the_baseline_is_named_whichever_it_is() {
        let shown = |found: &Comparison| text(found);
        let found = shown(&comparison(&[(0, 220.0), (1, 100.0)]));
        assert!(
            found.contains("Transactions a second (times that of ext4 ordered)"),
            "{found}"
        );
        let mut found = comparison(&[(0, 220.0), (1, 100.0)]);
        found.arms.retain(|arm| arm.name.contains("MobiFS bytes"));
        let found = shown(&found);
        assert!(
            found.contains("Transactions a second (times that of MobiFS bytes, direct)"),
            "{found}"
        );
        assert!(!found.contains("S2's system"), "{found}");
    }
}
