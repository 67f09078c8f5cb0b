//! Flushed data against what is at risk, for every policy.

use mobifs_charts::{Curve, Frame, Legend, PlotError, draw, picture};

use super::figure::Figure;
use crate::sim::{Frontier, FrontierPoint, Standing};

const WIDTH: u32 = 860;
const HEIGHT: u32 = 460;

pub(super) fn figures(frontier: &Frontier) -> Result<Vec<Figure>, PlotError> {
    let mut figures = vec![over_all(frontier)?];
    for (index, app) in frontier.apps.iter().enumerate() {
        let title = format!("The frontier for {app}");
        let name = format!("frontier-{index:02}");
        figures.push(draw_one(frontier, (name, title), &|point| {
            point.apps[index]
        })?);
    }
    Ok(figures)
}

fn over_all(frontier: &Frontier) -> Result<Figure, PlotError> {
    let name = (
        "frontier".to_owned(),
        "The frontier over all apps".to_owned(),
    );
    let mut figure = draw_one(frontier, name, &|point| point.mean)?;
    let efficient = frontier.efficient().into_iter();
    let efficient: Vec<String> = efficient
        .map(|point| {
            format!(
                "{} {} ({:.3} of ext4 at {:.1} s)",
                point.family,
                point.settings,
                point.mean.flushed_vs_ext4,
                point.mean.age_mean_seconds
            )
        })
        .collect();
    figure.remark = format!(
        "A point further to the left and further down is better. Not beaten in both: {}.",
        efficient.join("; ")
    );
    Ok(figure)
}

fn draw_one(
    frontier: &Frontier,
    (name, title): (String, String),
    of: &dyn Fn(&FrontierPoint) -> Standing,
) -> Result<Figure, PlotError> {
    let mut families: Vec<&str> = Vec::new();
    for point in &frontier.points {
        if !families.contains(&point.family.as_str()) {
            families.push(&point.family);
        }
    }
    let curves: Vec<Curve> = families
        .iter()
        .map(|&family| {
            let points = frontier
                .points
                .iter()
                .filter(|point| point.family == family);
            let points = points.map(|point| {
                let standing = of(point);
                (standing.age_mean_seconds, standing.flushed_vs_ext4)
            });
            let curve = Curve::new(family, points);
            if family == "interval" {
                curve.thin()
            } else {
                curve.dots()
            }
        })
        .collect();
    let frame = Frame {
        caption: title.clone(),
        x_label: "mean age of the oldest change at risk, s",
        y_label: "flushed, parts of what ext4 flushed",
        x_is_logarithmic: false,
        legend: Legend::UpperRight,
    };
    let rows = frontier.points.iter().map(|point| {
        let standing = of(point);
        vec![
            point.family.clone(),
            point.settings.clone(),
            format!("{:.4}", standing.flushed_vs_ext4),
            format!("{:.3}", standing.age_mean_seconds),
            format!("{:.0}", standing.bytes_mean),
        ]
    });
    Ok(Figure {
        name,
        title,
        svg: picture(WIDTH, HEIGHT, |canvas| draw(canvas, &frame, &curves))?,
        columns: [
            "policy",
            "settings",
            "flushed vs ext4",
            "mean age s",
            "mean bytes at risk",
        ]
        .map(str::to_owned)
        .to_vec(),
        rows: rows.collect(),
        remark: "The line is the fixed interval: a policy that lies above it is beaten by a \
                 clock."
            .to_owned(),
    })
}
