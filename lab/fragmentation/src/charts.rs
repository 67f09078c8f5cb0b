//! The charts of the page.

use mobifs_charts::{Bars, Curve, Frame, Legend, PlotError, draw, draw_bars, picture};

use crate::free::FreeSpace;
use crate::report::Report;
use crate::table::{LEVELS, bound};

const WIDTH: u32 = 560;
const HEIGHT: u32 = 320;
/// Beyond this degree the curve is flat for all that can be seen.
const STEPS_MAX: usize = 4000;

/// The cumulative distribution of degrees; none without files.
pub(crate) fn distribution(report: &Report) -> Result<Option<String>, PlotError> {
    if report.dof_cdf.is_empty() {
        return Ok(None);
    }
    let frame = Frame {
        caption: "Files by degree of fragmentation".to_owned(),
        x_label: "degree of fragmentation (DoF), logarithmic",
        y_label: "% of files with this DoF or less",
        x_is_logarithmic: true,
        legend: Legend::LowerRight,
    };
    // Steps: a share holds up to the next degree.
    let mut points = vec![(1.0, 0.0)];
    let mut before = 0.0;
    for point in report.dof_cdf.iter().take(STEPS_MAX) {
        points.push((point.dof, before));
        before = point.share * 100.0;
        points.push((point.dof, before));
    }
    let last = points.last().map_or(1.0, |point| point.0);
    points.push(((last * 1.5).max(4.0), before));
    let curves = [Curve::new("files", points.into_iter()).line()];
    picture(WIDTH, HEIGHT, |canvas| draw(canvas, &frame, &curves)).map(Some)
}

/// Fragments by level; none without fragmented files.
pub(crate) fn levels(report: &Report) -> Result<Option<String>, PlotError> {
    if report.fragmented_files == 0 {
        return Ok(None);
    }
    let share = |counts: &[u64; 7]| {
        let all: u64 = counts.iter().sum();
        let share = |count: &u64| (all > 0).then(|| *count as f64 * 100.0 / all as f64);
        counts.iter().map(share).collect()
    };
    let mut series = vec![("all fragmented files".to_owned(), share(&report.fs_levels))];
    for (kind, counts) in &report.kinds {
        if counts.fragmented_files > 0 {
            series.push(((*kind).to_owned(), share(&counts.fs_levels)));
        }
    }
    bars(
        "Fragments of fragmented files by size",
        "% of fragments",
        LEVELS.iter().map(|name| (*name).to_owned()).collect(),
        series,
        // Small fragments are the usual ones, and free room is in large extents.
        Legend::UpperRight,
    )
    .map(Some)
}

/// Free room by size of free extents.
pub(crate) fn free(free: &FreeSpace) -> Result<String, PlotError> {
    let share = |part: u64, of: u64| (of > 0).then(|| part as f64 * 100.0 / of as f64);
    let sizes = || free.sizes.iter();
    bars(
        "Free extents by size",
        "%",
        sizes().map(|entry| bound(entry.bytes_max)).collect(),
        vec![
            (
                "of the free extents".to_owned(),
                sizes()
                    .map(|entry| share(entry.extents, free.extents))
                    .collect(),
            ),
            (
                "of the free room".to_owned(),
                sizes()
                    .map(|entry| share(entry.bytes, free.bytes))
                    .collect(),
            ),
        ],
        Legend::UpperLeft,
    )
}

fn bars(
    caption: &str,
    y_label: &'static str,
    categories: Vec<String>,
    series: Vec<(String, Vec<Option<f64>>)>,
    legend: Legend,
) -> Result<String, PlotError> {
    let frame = Frame {
        caption: caption.to_owned(),
        x_label: "",
        y_label,
        x_is_logarithmic: false,
        legend,
    };
    let bars = Bars { categories, series };
    picture(WIDTH, HEIGHT, |canvas| draw_bars(canvas, &frame, &bars))
}
