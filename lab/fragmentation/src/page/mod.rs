//! The report as a page: a picture of where files lie, charts and tables, in one file that needs
//! nothing else.

mod map;

use std::fmt::Write as _;

use mobifs_charts::{Page, PlotError, escaped};

use crate::benefit::{SAVED_LEAST_MS, SLOWDOWN_LEAST};
use crate::charts;
use crate::csv::HEAD;
use crate::measure::Outcome;
use crate::names::{counted, number, size};
use crate::report::Report;
use crate::table::percent;

/// What a browser shows of it in the title.
const TITLE: &str = "Fragmentation";
const SCRIPT: &str = include_str!("script.js");

/// How much of a file [`is_output`] has to see.
pub const OUTPUT_BEGINNINGS_MAX: u64 = 4096;

/// Whether a file that begins so has the lines or the page of a measurement.
#[must_use]
pub fn is_output(beginning: &[u8]) -> bool {
    let title = format!("<title>{TITLE}</title>");
    beginning.starts_with(HEAD.as_bytes())
        || beginning
            .windows(title.len())
            .any(|part| part == title.as_bytes())
}

/// The page.
///
/// # Errors
/// The drawing library refuses.
pub fn page(outcome: &Outcome) -> Result<String, PlotError> {
    let report = &outcome.report;
    let mut body = cards(report);
    for (number, place) in outcome.places.iter().enumerate() {
        body.push_str(&map::section(place, number));
    }
    body.push_str("<section><h2>How fragmented</h2><div class=\"charts\">");
    let drawn = [charts::distribution(report)?, charts::levels(report)?];
    for chart in drawn.into_iter().flatten() {
        // Writing to a string cannot fail.
        let _written = write!(body, "<figure>{chart}</figure>");
    }
    body.push_str("</div>");
    body.push_str(&kinds(report));
    body.push_str("</section>");
    body.push_str(&worth(report));
    body.push_str(&free(report)?);
    body.push_str(&notes(report));
    let page = Page {
        title: TITLE,
        about: &what(report),
        body: &body,
        script: Some(SCRIPT),
        ..Page::default()
    };
    Ok(page.html())
}

/// Only the pictures of where files lie, as parts of another [`Page`].
#[must_use]
pub fn layouts(outcome: &Outcome) -> String {
    let places = outcome.places.iter().enumerate();
    places
        .map(|(number, place)| map::section(place, number))
        .collect()
}

fn what(report: &Report) -> String {
    let filesystems: Vec<_> = report
        .filesystems
        .iter()
        .map(|one| format!("{} on {} ({})", one.name, one.source, size(one.size_bytes)))
        .collect();
    filesystems.join(", ")
}

fn cards(report: &Report) -> String {
    let dof = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), |v| format!("{v:.2}"));
    let free_extent = report.filesystems.iter().find_map(|one| one.free.as_ref());
    let free_extent = free_extent.and_then(|free| free.mean_bytes);
    let cards = [
        (
            number(report.files),
            if report.files == 1 {
                "file measured"
            } else {
                "files measured"
            },
        ),
        (percent(report.fragmented_share), "of them fragmented"),
        (dof(report.mean_dof), "mean DoF"),
        (dof(report.dof_max), "highest DoF"),
        (
            percent(report.sqlite_share_of_fragmented),
            "SQLite among the fragmented",
        ),
        (
            free_extent.map_or_else(|| "–".to_owned(), |bytes| size(bytes as u64)),
            "mean free extent",
        ),
    ];
    let mut text = "<div class=\"cards\">".to_owned();
    for (value, name) in cards {
        let _written = write!(
            text,
            "<div><b>{}</b><span>{name}</span></div>",
            escaped(&value)
        );
    }
    text + "</div>"
}

fn kinds(report: &Report) -> String {
    let mut text = "<table><thead><tr><th>kind<th>files<th>fragmented<th>mean DoF\
                    <th>DoF of the fragmented<th>their mean size<th>extents</tr></thead><tbody>"
        .to_owned();
    let shown = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), |v| format!("{v:.2}"));
    let rows = report.kinds.iter().map(|(kind, counts)| (*kind, counts));
    for (kind, counts) in rows.chain([("all", &report.all)]) {
        let bytes = counts.mean_bytes_of_fragmented;
        let _written = write!(
            text,
            "<tr><th>{kind}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}</tr>",
            number(counts.files),
            number(counts.fragmented_files),
            shown(counts.mean_dof),
            shown(counts.mean_dof_of_fragmented),
            bytes.map_or_else(|| "–".to_owned(), |bytes| size(bytes as u64)),
            number(counts.extents)
        );
    }
    text + "</tbody></table>"
}

fn worth(report: &Report) -> String {
    let worth = &report.worth;
    let mut text = format!(
        "<section><h2>Worth defragmenting</h2><p>{} with {}: reading all of them would take \
         {:.0} ms less, by t = {} ms a piece + {} ms a MB. A file counts if that is at least \
         {SAVED_LEAST_MS} ms and {} of its time.</p>",
        counted(worth.files, "file", "files"),
        size(worth.bytes),
        worth.saved_ms,
        worth.model_piece_ms,
        worth.model_megabyte_ms,
        percent(Some(SLOWDOWN_LEAST))
    );
    if !worth.first.is_empty() {
        text.push_str(
            "<table><thead><tr><th>file<th>saves<th>DoF<th>pieces of<th>size</tr></thead><tbody>",
        );
        for file in &worth.first {
            let _written = write!(
                text,
                "<tr><th class=\"path\">{}<td>{:.1} ms<td>{:.1}<td>{}<td>{}</tr>",
                escaped(&file.path),
                file.saved_ms,
                file.dof,
                size(file.mean_fragment_bytes),
                size(file.bytes)
            );
        }
        text.push_str("</tbody></table>");
    }
    text + "</section>"
}

fn free(report: &Report) -> Result<String, PlotError> {
    let mut text = String::new();
    for filesystem in &report.filesystems {
        let Some(free) = filesystem.free.as_ref().filter(|free| free.extents > 0) else {
            continue;
        };
        let _written = write!(
            text,
            "<section><h2>Free room of {}</h2><p>{} in {}, {} on average; the largest has \
             {}.</p><div class=\"charts\"><figure>{}</figure></div></section>",
            escaped(&filesystem.source),
            size(free.bytes),
            counted(free.extents, "extent", "extents"),
            size(free.mean_bytes.unwrap_or(0.0) as u64),
            size(free.largest_bytes),
            charts::free(free)?
        );
    }
    Ok(text)
}

fn notes(report: &Report) -> String {
    if report.notes.is_empty() {
        return String::new();
    }
    let mut text = "<section><h2>Notes</h2><ul>".to_owned();
    for note in &report.notes {
        let _written = write!(text, "<li>{}", escaped(note));
    }
    text + "</ul></section>"
}
