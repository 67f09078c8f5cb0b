//! A validation as a table for people.

use std::fmt::Write as _;

use crate::criterion::{Criterion, figure};
use crate::experiment::dispersion::Dispersion;
use crate::experiment::fragmentation::Fragmentation;
use crate::experiment::persistence::Persistence;
use crate::validation::Validation;

/// The measurements and the criteria of one device.
pub fn table(validation: &Validation) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _written = write_all(&mut text, validation);
    text
}

fn write_all(text: &mut String, validation: &Validation) -> std::fmt::Result {
    writeln!(text, "== {} (seed {})", validation.device, validation.seed)?;
    write_fragmentation(text, &validation.fragmentation)?;
    write_dispersion(text, &validation.dispersion)?;
    write_persistence(text, &validation.persistence)?;
    write_criteria(text, &validation.criteria)?;
    let count = validation.criteria.len();
    match validation.failed {
        0 => writeln!(text, "no criterion of {count} failed"),
        failed => writeln!(text, "{failed} of {count} criteria FAILED"),
    }
}

fn write_fragmentation(text: &mut String, result: &Fragmentation) -> std::fmt::Result {
    writeln!(
        text,
        "\nReading a file of {} in pieces (S4 Fig. 9), one command at a time and {} queued",
        size(result.parameters.file_pages * mobifs_device_model::PAGE_BYTES as u64),
        result.queue_depth
    )?;
    writeln!(
        text,
        "{:>10} {:>8} {:>9} {:>11} {:>11}",
        "piece", "DoF", "commands", "time ms", "queued ms"
    )?;
    for point in &result.points {
        writeln!(
            text,
            "{:>10} {:>8.0} {:>9} {:>11.1} {:>11.1}",
            size(point.piece_bytes),
            point.dof,
            point.commands,
            point.time_ms,
            point.queued_time_ms
        )?;
    }
    let line = &result.line;
    writeln!(
        text,
        "t = {:.4} ms · DoF + {:.0} ms, R² = {:.4}; S4: t = 0.17 ms · DoF + 990 ms",
        line.slope, line.intercept, line.r_squared
    )
}

fn write_dispersion(text: &mut String, result: &Dispersion) -> std::fmt::Result {
    writeln!(
        text,
        "\n{} accesses of 4 KiB at random in a region (S4 Fig. 13): ms, slowdown, mapping hits",
        result.parameters.operations
    )?;
    write!(text, "{:>10}", "region")?;
    for series in &result.series {
        write!(text, " {:>20}", series.name)?;
    }
    writeln!(text)?;
    for (row, &region_bytes) in result.parameters.regions_bytes.iter().enumerate() {
        write!(text, "{:>10}", size(region_bytes))?;
        for series in &result.series {
            let Some(point) = series.points.get(row) else {
                continue;
            };
            let hits = point.mapping_hit_rate.unwrap_or(0.0) * 100.0;
            let cell = format!("{:.0} {:.2}× {hits:.0}%", point.time_ms, point.slowdown);
            write!(text, " {cell:>20}")?;
        }
        writeln!(text)?;
    }
    Ok(())
}

fn write_persistence(text: &mut String, result: &Persistence) -> std::fmt::Result {
    writeln!(
        text,
        "\nPersisting a commit (S3 Fig. 8), in µs, means of {}",
        result.parameters.commits
    )?;
    writeln!(
        text,
        "{:>10} {:>30} {:>21} {:>8} {:>12}",
        "", "flush at end", "direct", "", "flush's"
    )?;
    writeln!(
        text,
        "{:>10} {:>10} {:>9} {:>9} {:>10} {:>10} {:>8} {:>12}",
        "volume", "write", "flush", "commit", "write", "commit", "ratio", "share"
    )?;
    for point in &result.points {
        let (flush, direct) = (&point.flush_at_end, &point.direct);
        writeln!(
            text,
            "{:>10} {:>10.0} {:>9.0} {:>9.0} {:>10.0} {:>10.0} {:>8.2} {:>12.2}",
            size(point.bytes),
            flush.write_us,
            flush.flush_us,
            flush.commit_us,
            direct.write_us,
            direct.commit_us,
            point.ratio,
            point.flush_share
        )?;
    }
    writeln!(text, "crossover: {}", result.crossover.text())
}

/// A table of criteria, and below it the reasons of those that differ.
pub fn criteria_table(criteria: &[Criterion]) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _written = write_criteria(&mut text, criteria);
    for criterion in criteria {
        if let Some(because) = &criterion.because {
            let _written = writeln!(text, "{} differs: {because}", criterion.name);
        }
    }
    text
}

fn write_criteria(text: &mut String, criteria: &[Criterion]) -> std::fmt::Result {
    let rows: Vec<[String; 6]> = criteria.iter().map(row).collect();
    let head = [
        "",
        "criterion",
        "measured",
        "accepted",
        "published",
        "where",
    ]
    .map(str::to_owned);
    let width = |column: usize| {
        let cells = rows.iter().chain([&head]).map(|row| &row[column]);
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: [usize; 6] = std::array::from_fn(width);
    writeln!(text)?;
    for cells in [&head].into_iter().chain(&rows) {
        let mut line = String::new();
        for (cell, width) in cells.iter().zip(widths) {
            write!(line, "{cell:width$}  ")?;
        }
        writeln!(text, "{}", line.trim_end())?;
    }
    Ok(())
}

fn row(criterion: &Criterion) -> [String; 6] {
    let measured = criterion.measured.map_or_else(
        || "-".to_owned(),
        |value| format!("{} {}", figure(value), criterion.unit),
    );
    [
        criterion.verdict.word().to_owned(),
        criterion.name.clone(),
        measured.trim_end().to_owned(),
        criterion.accepted(),
        criterion.published.clone(),
        criterion.source.to_owned(),
    ]
}

/// `4 KiB`, `97.7 MiB`
pub fn size(bytes: u64) -> String {
    let mut value = bytes as f64;
    let mut unit = "B";
    for larger in ["KiB", "MiB", "GiB"] {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = larger;
    }
    let decimals = usize::from(value.fract() != 0.0);
    format!("{value:.decimals$} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_readable() {
        assert_eq!(size(512), "512 B");
        assert_eq!(size(4096), "4 KiB");
        assert_eq!(size(102_400_000), "97.7 MiB");
        assert_eq!(size(2 << 30), "2 GiB");
    }

    #[test]
    fn the_columns_of_criteria_are_aligned() {
        let criteria = [
            Criterion::new("short", "S4", "3.5", 3.5).at_least(2.0),
            Criterion::new("a longer name", "S3", "1.3", 9.0)
                .at_most(2.0)
                .in_unit("ms"),
        ];
        let mut text = String::new();
        write_criteria(&mut text, &criteria).unwrap();
        let expected = "
      criterion      measured  accepted  published  where
pass  short          3.50      ≥ 2.00    3.5        S4
FAIL  a longer name  9.00 ms   ≤ 2.00    1.3        S3
";
        assert_eq!(text, expected);
    }
}
