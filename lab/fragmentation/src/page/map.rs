//! The picture of where files lie, by block address: one colour a file.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use mobifs_charts::escaped;

use crate::collector::Place;
use crate::layout::Drawn;
use crate::names::{counted, number, size};

/// Width of the picture, in its own units.
const WIDTH: f64 = 1000.0;
const LABEL: f64 = 84.0;
const ROW: f64 = 14.0;
const GAP: f64 = 4.0;
/// A stretch of addresses that no file of the picture has.
const FOLD: f64 = 16.0;
const ROWS_MAX: usize = 48;
const ROW_BYTES_LEAST: u64 = 256 << 10;
/// What is narrower cannot be seen.
const NARROWEST: f64 = 0.8;
const STRIP_PARTS: usize = 500;
const STRIP: f64 = 26.0;
/// Colours that follow each other differ most, if each is so far around the circle from the last.
const GOLDEN_ANGLE: f64 = 137.508;

/// Pieces of a file in one row: from and to, of the row's width.
type Pieces = Vec<(f64, f64)>;

/// The section of a filesystem.
pub(super) fn section(place: &Place, number_of_place: usize) -> String {
    let files = place.layout.drawn();
    let mut text = format!(
        "<section class=\"map\"><h2>Where files lie on {}</h2>",
        escaped(&place.about.source)
    );
    text.push_str(&strip(place));
    if files.is_empty() {
        return text + "<p>No file has blocks.</p></section>";
    }
    let parts: Vec<_> = files
        .iter()
        .map(|file| file.places.clone().sorted())
        .collect();
    let row_bytes = row_bytes(&parts);
    let mut rows: BTreeMap<u64, BTreeMap<usize, Pieces>> = BTreeMap::new();
    for (file, parts) in parts.iter().enumerate() {
        for &(start, end) in parts {
            add(&mut rows, row_bytes, file, start, end);
        }
    }
    text.push_str(&picture(&rows, &files, row_bytes, number_of_place));
    let coarse = files.iter().filter(|file| file.places.is_coarse()).count();
    let _written = write!(
        text,
        "<p>A row is {} of addresses. {} a colour{}{}.</p>{}</section>",
        size(row_bytes),
        counted(files.len() as u64, "file has", "files have"),
        if place.layout.without_colour > 0 {
            format!(
                ", those with most extents beyond the least; {} others are in the strip only",
                number(place.layout.without_colour)
            )
        } else {
            String::new()
        },
        if coarse > 0 {
            format!("; of {coarse} with very many pieces, pieces near each other are drawn as one")
        } else {
            String::new()
        },
        legend(&files, number_of_place)
    );
    text
}

/// The whole filesystem at a glance: how full each part of it is.
fn strip(place: &Place) -> String {
    let end = place.layout.end.max(place.about.size_bytes).max(1);
    let taken = place.layout.taken.shares(STRIP_PARTS, end);
    let free = place.layout.free.shares(STRIP_PARTS, end);
    let width = WIDTH / STRIP_PARTS as f64;
    let mut text = format!(
        "<svg class=\"strip\" viewBox=\"0 0 {WIDTH} {STRIP}\" preserveAspectRatio=\"none\">\
         <rect width=\"{WIDTH}\" height=\"{STRIP}\" class=\"other\"/>"
    );
    let knows_free = place.about.free.is_some();
    for (class, shares) in [("free", &free), ("taken", &taken)] {
        let mut path = String::new();
        for (part, share) in shares.iter().enumerate().filter(|(_, share)| **share > 0.0) {
            let (x, height) = (part as f64 * width, (share * STRIP).max(1.0));
            let y = if class == "free" { 0.0 } else { STRIP - height };
            let _written = write!(path, "M{x:.1} {y:.1}h{width}v{height:.1}h-{width}z");
        }
        if !path.is_empty() {
            let _written = write!(text, "<path class=\"{class}\" d=\"{path}\"/>");
        }
    }
    let _written = write!(
        text,
        "</svg><p class=\"key\">The whole filesystem, {}: <i class=\"taken\"></i> measured files{}\
         <i class=\"other\"></i> {}</p>",
        size(end),
        if knows_free {
            " <i class=\"free\"></i> free "
        } else {
            " "
        },
        if knows_free {
            "other files and metadata"
        } else {
            "free, other files, metadata"
        },
    );
    text
}

/// The least size of rows of which there are not too many.
fn row_bytes(parts: &[Vec<(u64, u64)>]) -> u64 {
    let mut bytes = ROW_BYTES_LEAST;
    loop {
        let mut rows = BTreeSet::new();
        let is_enough = parts.iter().flatten().all(|&(start, end)| {
            let last = end.saturating_sub(1).max(start) / bytes;
            // What covers too many rows alone needs no list of them.
            let covers = last - start / bytes;
            if covers < ROWS_MAX as u64 {
                rows.extend(start / bytes..=last);
            }
            covers < ROWS_MAX as u64 && rows.len() <= ROWS_MAX
        });
        if is_enough || bytes > u64::MAX / 4 {
            return bytes;
        }
        bytes *= 2;
    }
}

fn add(
    rows: &mut BTreeMap<u64, BTreeMap<usize, Pieces>>,
    row_bytes: u64,
    file: usize,
    start: u64,
    end: u64,
) {
    let last = end.saturating_sub(1).max(start) / row_bytes;
    for row in start / row_bytes..=last {
        let begin = row * row_bytes;
        let from = start.max(begin) - begin;
        let to = end.min(begin.saturating_add(row_bytes)) - begin;
        let scale = (WIDTH - LABEL) / row_bytes as f64;
        let (from, to) = (from as f64 * scale, to as f64 * scale);
        let to = to.max(from + NARROWEST);
        let pieces = rows.entry(row).or_default().entry(file).or_default();
        // What touches for the eye is one.
        match pieces.last_mut() {
            Some(before) if from <= before.1 + 0.1 && from >= before.0 => {
                before.1 = before.1.max(to);
            }
            _ => pieces.push((from, to)),
        }
    }
}

fn picture(
    rows: &BTreeMap<u64, BTreeMap<usize, Pieces>>,
    files: &[&Drawn],
    row_bytes: u64,
    number_of_place: usize,
) -> String {
    let mut text = String::new();
    let (mut y, mut next) = (0.0, 0);
    for (&row, pieces) in rows {
        if row > next {
            let folded = size((row - next).saturating_mul(row_bytes));
            let _written = write!(
                text,
                "<text class=\"fold\" x=\"{}\" y=\"{:.1}\">⋯ {folded} without these files ⋯</text>",
                f64::midpoint(WIDTH, LABEL),
                y + FOLD - 5.0
            );
            y += FOLD;
        }
        next = row + 1;
        let _written = write!(
            text,
            "<text x=\"{}\" y=\"{:.1}\">{}</text><rect class=\"row\" x=\"{LABEL}\" y=\"{y}\" \
             width=\"{}\" height=\"{ROW}\"/>",
            LABEL - 8.0,
            y + ROW - 3.0,
            size(row.saturating_mul(row_bytes)),
            WIDTH - LABEL
        );
        for (&file, pieces) in pieces {
            let mut path = String::new();
            for (from, to) in pieces {
                let (x, width) = (LABEL + from, to - from);
                let _written = write!(path, "M{x:.1} {y}h{width:.1}v{ROW}h-{width:.1}z");
            }
            let title = files
                .get(file)
                .map(|file| escaped(&title(file)))
                .unwrap_or_default();
            let _written = write!(
                text,
                "<path data-f=\"{number_of_place}-{file}\" fill=\"{}\" d=\"{path}\"><title>{title}\
                 </title></path>",
                colour(file)
            );
        }
        y += ROW + GAP;
    }
    format!("<svg class=\"blocks\" viewBox=\"0 0 {WIDTH} {y:.1}\">{text}</svg>")
}

fn title(file: &Drawn) -> String {
    format!(
        "{}\n{}, {} in {}, DoF {:.2}",
        crate::names::shown(&file.path),
        file.kind.name(),
        size(file.size),
        counted(file.shape.extents, "extent", "extents"),
        file.shape.dof().unwrap_or(1.0)
    )
}

fn legend(files: &[&Drawn], number_of_place: usize) -> String {
    let mut text = format!(
        "<details{}><summary>The files and their colours</summary><ol class=\"legend\">",
        if files.len() <= 30 { " open" } else { "" }
    );
    for (file, drawn) in files.iter().enumerate() {
        let _written = write!(
            text,
            "<li data-f=\"{number_of_place}-{file}\"><i style=\"background:{}\"></i>\
             <span class=\"path\">{}</span> <small>{}, {}</small>",
            colour(file),
            escaped(&crate::names::shown(&drawn.path)),
            counted(drawn.shape.extents, "extent", "extents"),
            size(drawn.size)
        );
    }
    text + "</ol></details>"
}

/// Files beside each other in the list differ in hue, and those further apart in lightness.
fn colour(file: usize) -> String {
    let hue = (file as f64 * GOLDEN_ANGLE) % 360.0;
    let lightness = [46, 62, 34][file / 12 % 3];
    format!("hsl({hue:.0} 70% {lightness}%)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_as_fine_as_they_can_be() {
        assert_eq!(row_bytes(&[vec![(0, 4096)]]), ROW_BYTES_LEAST);
        // Far apart, yet in few rows.
        assert_eq!(
            row_bytes(&[vec![(0, 4096), (1 << 40, (1 << 40) + 4096)]]),
            ROW_BYTES_LEAST
        );
        assert_eq!(
            row_bytes(&[vec![(0, 48 * ROW_BYTES_LEAST)]]),
            ROW_BYTES_LEAST
        );
        assert_eq!(
            row_bytes(&[vec![(0, 49 * ROW_BYTES_LEAST)]]),
            2 * ROW_BYTES_LEAST
        );
        assert!(row_bytes(&[vec![(0, u64::MAX)]]) >= 1 << 58);
    }

    #[test]
    fn pieces_are_cut_at_rows_and_joined_for_the_eye() {
        let mut rows = BTreeMap::new();
        let bytes = ROW_BYTES_LEAST;
        add(&mut rows, bytes, 0, bytes / 2, bytes + bytes / 2);
        let half = (WIDTH - LABEL) / 2.0;
        assert_eq!(rows[&0][&0], [(half, 2.0 * half)]);
        assert_eq!(rows[&1][&0], [(0.0, half)]);
        add(&mut rows, bytes, 1, 0, 1);
        add(&mut rows, bytes, 1, 2, 3);
        assert_eq!(rows[&0][&1].len(), 1);
        assert!(rows[&0][&1][0].1 >= NARROWEST);
    }

    #[test]
    fn colours_of_many_files_differ() {
        let colours: BTreeSet<_> = (0..200).map(colour).collect();
        assert!(colours.len() > 190, "{}", colours.len());
    }
}
