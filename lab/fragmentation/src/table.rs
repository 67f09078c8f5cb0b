//! The report as a table for people.

use std::fmt::{self, Write as _};

use crate::benefit::{SAVED_LEAST_MS, SLOWDOWN_LEAST};
use crate::error::path_text;
use crate::names::{counted, number, size};
use crate::report::{Counts, Filesystem, Report};

/// What each level holds (S4, Table 2).
pub(crate) const LEVELS: [&str; 7] = [
    "<= 16 KiB",
    "<= 32 KiB",
    "<= 64 KiB",
    "<= 128 KiB",
    "<= 256 KiB",
    "<= 512 KiB",
    "larger",
];
/// Degrees at which the distribution is shown.
pub(crate) const DEGREES: [f64; 9] = [1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 100.0, 1000.0];

/// The report as text.
#[must_use]
pub fn table(report: &Report) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _written = write(&mut text, report);
    text
}

fn write(text: &mut String, report: &Report) -> fmt::Result {
    for filesystem in &report.filesystems {
        about(text, filesystem)?;
    }
    let shown = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |v| format!("{v:.2}"));
    writeln!(
        text,
        "\n{:12} {:>10} {:>11} {:>7} {:>9} {:>12} {:>11} {:>11}",
        "kind", "files", "fragmented", "share", "mean DoF", "of those", "their size", "extents"
    )?;
    for (kind, counts) in &report.kinds {
        row(text, kind, counts)?;
    }
    row(text, "all", &report.all)?;
    writeln!(
        text,
        "\nDoF: median {}, 90 % {}, 99 % {}, highest {}",
        shown(report.dof_median),
        shown(report.dof_90),
        shown(report.dof_99),
        shown(report.dof_max)
    )?;
    let reached: Vec<_> = DEGREES
        .iter()
        .map(|&dof| format!("<= {dof}: {}", percent(Some(share_up_to(report, dof)))))
        .collect();
    if report.files > 0 {
        writeln!(text, "files by DoF: {}", reached.join(", "))?;
    }
    if report.fragmented_files > 0 {
        let sqlite = percent(report.sqlite_share_of_fragmented);
        writeln!(text, "SQLite files among the fragmented ones: {sqlite}")?;
        levels(text, report)?;
    }
    worth(text, report)?;
    for filesystem in &report.filesystems {
        free(text, filesystem)?;
    }
    if !report.notes.is_empty() {
        writeln!(text)?;
    }
    for note in &report.notes {
        writeln!(text, "note: {note}")?;
    }
    Ok(())
}

fn about(text: &mut String, filesystem: &Filesystem) -> fmt::Result {
    let what = if filesystem.is_image { "image" } else { "on" };
    writeln!(
        text,
        "{} {what} {} ({}): {} measured",
        filesystem.name,
        path_text(filesystem.source.as_ref()),
        size(filesystem.size_bytes),
        counted(filesystem.files, "file", "files")
    )
}

fn row(text: &mut String, name: &str, counts: &Counts) -> fmt::Result {
    let shown = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |v| format!("{v:.2}"));
    let bytes = counts.mean_bytes_of_fragmented;
    writeln!(
        text,
        "{:12} {:>10} {:>11} {:>7} {:>9} {:>12} {:>11} {:>11}",
        name,
        number(counts.files),
        number(counts.fragmented_files),
        percent((counts.files > 0).then(|| counts.fragmented_files as f64 / counts.files as f64)),
        shown(counts.mean_dof),
        shown(counts.mean_dof_of_fragmented),
        bytes.map_or_else(|| "-".to_owned(), |bytes| size(bytes as u64)),
        number(counts.extents),
    )
}

fn levels(text: &mut String, report: &Report) -> fmt::Result {
    let all: u64 = report.fs_levels.iter().sum();
    writeln!(text, "\nfragments of the fragmented files, by size")?;
    for (level, (count, name)) in report.fs_levels.iter().zip(LEVELS).enumerate() {
        let share = *count as f64 / all.max(1) as f64;
        writeln!(
            text,
            "  level {} {name:>10} {:>12} {:>7} {}",
            level + 1,
            number(*count),
            percent(Some(share)),
            bar(share)
        )?;
    }
    Ok(())
}

fn worth(text: &mut String, report: &Report) -> fmt::Result {
    let worth = &report.worth;
    writeln!(
        text,
        "\nworth defragmenting: {} with {}; reading all of {} would take {:.0} ms less, by\n\
         t = {} ms a piece + {} ms a MB (at least {SAVED_LEAST_MS} ms and {} of a file's time)",
        counted(worth.files, "file", "files"),
        size(worth.bytes),
        if worth.files == 1 { "it" } else { "them" },
        worth.saved_ms,
        worth.model_piece_ms,
        worth.model_megabyte_ms,
        percent(Some(SLOWDOWN_LEAST)),
    )?;
    if worth.first.is_empty() {
        return Ok(());
    }
    writeln!(
        text,
        "  {:>9} {:>8} {:>10} {:>10} {:>10}  path",
        "saves ms", "DoF", "pieces of", "size", "last read"
    )?;
    for file in &worth.first {
        let read = file.days_since_read;
        writeln!(
            text,
            "  {:>9.1} {:>8.1} {:>10} {:>10} {:>10}  {}",
            file.saved_ms,
            file.dof,
            size(file.mean_fragment_bytes),
            size(file.bytes),
            read.map_or_else(|| "-".to_owned(), |days| format!("{days} d")),
            file.path
        )?;
    }
    Ok(())
}

fn free(text: &mut String, filesystem: &Filesystem) -> fmt::Result {
    let Some(free) = &filesystem.free else {
        return Ok(());
    };
    writeln!(
        text,
        "\nfree on {}: {} in {}, {} on average, the largest {}",
        path_text(filesystem.source.as_ref()),
        size(free.bytes),
        counted(free.extents, "extent", "extents"),
        size(free.mean_bytes.unwrap_or(0.0) as u64),
        size(free.largest_bytes)
    )?;
    for sizes in free.sizes.iter().filter(|sizes| sizes.extents > 0) {
        let share = sizes.bytes as f64 / free.bytes.max(1) as f64;
        writeln!(
            text,
            "  {:>11} {:>12} {:>10} {:>7} {}",
            bound(sizes.bytes_max),
            number(sizes.extents),
            size(sizes.bytes),
            percent(Some(share)),
            bar(share)
        )?;
    }
    Ok(())
}

/// The largest size of an entry.
pub(crate) fn bound(bytes_max: Option<u64>) -> String {
    bytes_max.map_or_else(|| "larger".to_owned(), |most| format!("<= {}", size(most)))
}

/// The share of files with this degree or a lower one.
pub(crate) fn share_up_to(report: &Report, dof: f64) -> f64 {
    let below = report.dof_cdf.iter().take_while(|point| point.dof <= dof);
    below.last().map_or(0.0, |point| point.share)
}

pub(crate) fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "-".to_owned(), |share| format!("{:.1} %", share * 100.0))
}

fn bar(share: f64) -> String {
    const LONGEST: f64 = 30.0;
    "#".repeat((share * LONGEST).round() as usize)
}
