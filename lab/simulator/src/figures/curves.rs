//! e over staleness: S0 Figures 1, 3 and 7.

use mobifs_charts::{Curve, Frame, Legend, PlotError, draw, picture};

use super::figure::Figure;
use super::unit::{Unit, UserRun};
use crate::sim::{AppOutcome, Contender, CurvePoint};

const WIDTH: u32 = 860;
const HEIGHT: u32 = 420;
/// Rows of a curve in a figure's data.
const ROWS: usize = 40;

pub(super) fn figures(units: &[Unit<'_>]) -> Result<Vec<Figure>, PlotError> {
    let mut figures = vec![shapes(units)?];
    let shown = units.iter().filter_map(|unit| Some((unit, unit.shown()?)));
    // The app with most flushes under the policy shows best how curves begin anew.
    let flushes = |(_, user): &(&Unit<'_>, &UserRun<'_>)| user.published.flushes_ns().len();
    if let Some((unit, user)) = shown.clone().max_by_key(flushes) {
        figures.push(transactions(&unit.name, user)?);
    }
    for (unit, user) in shown {
        figures.push(overall(&unit.name, user)?);
    }
    Ok(figures)
}

fn percent(overwritten: u64, written: u64) -> f64 {
    if written == 0 {
        0.0
    } else {
        overwritten as f64 * 100.0 / written as f64
    }
}

fn overall_percent(point: &CurvePoint) -> f64 {
    percent(point.overwritten_pages, point.written_pages)
}

/// `count` of the points, evenly.
fn sampled<T: Copy>(points: &[T], count: usize) -> Vec<T> {
    let step = points.len().div_ceil(count).max(1);
    points.iter().step_by(step).copied().collect()
}

fn e_curves(caption: &str, x_label: &'static str, curves: &[Curve]) -> Result<String, PlotError> {
    let frame = Frame {
        caption: caption.to_owned(),
        x_label,
        y_label: "e, %",
        x_is_logarithmic: false,
        legend: Legend::LowerRight,
    };
    picture(WIDTH, HEIGHT, |canvas| draw(canvas, &frame, curves))
}

/// Figure 1: each app's curve if nothing is ever flushed, over the whole of its writes.
fn shapes(units: &[Unit<'_>]) -> Result<Figure, PlotError> {
    let mut rows = Vec::new();
    let mut curves = Vec::new();
    for (unit, user) in units.iter().filter_map(|unit| Some((unit, unit.shown()?))) {
        let points = user.ideal.curve();
        let last = points.last().map_or(1, |point| point.written_pages.max(1));
        let share = |point: &CurvePoint| point.written_pages as f64 * 100.0 / last as f64;
        let name = format!("{} ({last} pages)", unit.name);
        let line = points.iter().map(|p| (share(p), overall_percent(p)));
        curves.push(Curve::new(name, line).line());
        for point in sampled(points, ROWS) {
            rows.push(vec![
                unit.name.clone(),
                point.written_pages.to_string(),
                format!("{:.2}", overall_percent(&point)),
            ]);
        }
    }
    let svg = e_curves(
        "e curves without a flush (S0 Fig. 1)",
        "staleness, % of all pages written",
        &curves,
    )?;
    Ok(Figure {
        name: "fig01-shapes".to_owned(),
        title: "S0 Figure 1: the shapes of e curves".to_owned(),
        svg,
        columns: ["app", "pages written", "e %"].map(str::to_owned).to_vec(),
        rows,
        remark: "As in the paper, every app has a shape of its own: those that rewrite a few \
                 database pages rise steeply and stay high, those that mostly add data stay \
                 low. The published curves have no figures to compare with point by point."
            .to_owned(),
    })
}

/// Points of the curves that begin anew with each flush.
fn per_transaction(app: &AppOutcome) -> Vec<(f64, f64)> {
    let mut base = CurvePoint::default();
    let mut last = CurvePoint::default();
    let mut points = Vec::new();
    for point in app.curve() {
        if point.flushes != last.flushes {
            base = last;
            points.push((last.written_pages as f64, 0.0));
        }
        last = *point;
        let written = point.written_pages - base.written_pages;
        let overwritten = point
            .overwritten_pages
            .saturating_sub(base.overwritten_pages);
        points.push((point.written_pages as f64, percent(overwritten, written)));
    }
    points
}

/// Figure 3: curves that begin anew where transactions end.
fn transactions(app: &str, user: &UserRun<'_>) -> Result<Figure, PlotError> {
    let curves = [(Contender::PUBLISHED, user.published), ("ext4", user.ext4)];
    let lines = curves.map(|(name, app)| Curve::new(name, per_transaction(app).into_iter()).line());
    let svg = e_curves(
        &format!("{app}: e since the last flush (S0 Fig. 3)"),
        "pages written",
        &lines,
    )?;
    let rows = curves.iter().flat_map(|(name, app)| {
        let points = sampled(&per_transaction(app), 4 * ROWS);
        points.into_iter().map(move |(written, e)| {
            vec![
                (*name).to_owned(),
                format!("{written:.0}"),
                format!("{e:.2}"),
            ]
        })
    });
    Ok(Figure {
        name: "fig03-transactions".to_owned(),
        title: "S0 Figure 3: where transactions end".to_owned(),
        svg,
        columns: ["policy", "pages written", "e %"]
            .map(str::to_owned)
            .to_vec(),
        rows: rows.collect(),
        remark: format!(
            "{app}: {} closed {} transactions, ext4 flushed {} times. Each flush begins a \
             new curve at 0; the paper draws this as a sketch.",
            Contender::PUBLISHED,
            user.published.flushes(),
            user.ext4.flushes()
        ),
    })
}

/// Figure 7: e since the beginning, for one app.
fn overall(name: &str, user: &UserRun<'_>) -> Result<Figure, PlotError> {
    let curves = [
        ("ideal", user.ideal),
        ("default", user.default),
        (Contender::PUBLISHED, user.published),
        ("ext4", user.ext4),
    ];
    let lines = curves.map(|(name, app)| {
        let points = app.curve().iter();
        let points = points.map(|p| (p.written_pages as f64, overall_percent(p)));
        Curve::new(name, points).line()
    });
    let svg = e_curves(
        &format!("{name}: e over all that was written (S0 Fig. 7)"),
        "pages written",
        &lines,
    )?;
    let rows = curves.iter().flat_map(|(name, app)| {
        sampled(app.curve(), ROWS).into_iter().map(move |point| {
            vec![
                (*name).to_owned(),
                point.written_pages.to_string(),
                format!("{:.2}", overall_percent(&point)),
            ]
        })
    });
    let last = |app: &AppOutcome| app.curve().last().map_or(0.0, overall_percent);
    Ok(Figure {
        name: format!("fig07-{}", file_name(name)),
        title: format!("S0 Figure 7: e against all that {name} wrote"),
        svg,
        columns: ["policy", "pages written", "e %"]
            .map(str::to_owned)
            .to_vec(),
        rows: rows.collect(),
        remark: format!(
            "At the end: ideal {:.1} %, default {:.1} %, tpl-published {:.1} %, ext4 {:.1} %. In \
             the paper MobiFS follows the ideal curve closely; how closely depends on how long \
             pages stay hot compared with the transactions. All count pages of content, and \
             nothing else.",
            last(user.ideal),
            last(user.default),
            last(user.published),
            last(user.ext4)
        ),
    })
}

/// A name as part of a file's name.
fn file_name(name: &str) -> String {
    let keep = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    name.chars().map(keep).collect()
}
