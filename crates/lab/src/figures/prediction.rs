//! How well pauses are predicted: S0 Figures 8 and 9.

use mobifs_core::policy::prediction::PredictorName;

use super::Figure;
use super::bars::BarFigure;
use crate::plot::{Bars, PlotError};
use crate::sim::{NamedStream, PredictionReport, user_operations, watch};

const GROUP_WIDTH: u32 = 90;
/// User operations that a trace must have to say anything.
pub(super) const OPERATIONS_MIN: usize = 20;
/// Published conflicts for each prediction, and lengths in seconds (S0 §7.4), by the
/// predictors of [`PredictorName::ALL`].
const PUBLISHED: [(PredictorName, f64, f64); 3] = [
    (PredictorName::StateMachine, 0.542, 2.389),
    (PredictorName::LastMin, 0.261, 0.874),
    (PredictorName::LastAverage, 1.181, 3.149),
];

/// Both figures; none if no trace has enough of them.
pub(super) fn figures(traces: &[NamedStream]) -> Result<Vec<Figure>, PlotError> {
    let operations = traces
        .iter()
        .map(|trace| (trace, user_operations(&trace.stream)));
    let watched: Vec<(String, Vec<PredictionReport>)> = operations
        .filter(|(_, operations)| operations.len() >= OPERATIONS_MIN)
        .map(|(trace, operations)| {
            let reports = PUBLISHED.map(|(name, ..)| watch(name, &operations));
            (trace.name.clone(), reports.to_vec())
        })
        .collect();
    if watched.is_empty() {
        return Ok(Vec::new());
    }
    Ok(vec![
        draw(
            &watched,
            (
                "fig08-conflicts",
                "S0 Figure 8: user operations in predicted pauses",
            ),
            "operations per prediction",
            |report| report.conflicts_per_prediction,
            |&(_, conflicts, _)| conflicts,
        )?,
        draw(
            &watched,
            ("fig09-lengths", "S0 Figure 9: lengths of predicted pauses"),
            "s",
            |report| report.length_mean_seconds,
            |&(_, _, length)| length,
        )?,
    ])
}

fn draw(
    watched: &[(String, Vec<PredictionReport>)],
    (name, title): (&str, &str),
    y_label: &'static str,
    ours: fn(&PredictionReport) -> f64,
    published: fn(&(PredictorName, f64, f64)) -> f64,
) -> Result<Figure, PlotError> {
    let names = watched.iter().map(|(name, _)| name.clone());
    let categories: Vec<String> = names.chain(["published".to_owned()]).collect();
    let series = PUBLISHED.iter().enumerate().map(|(index, theirs)| {
        let values = watched
            .iter()
            .map(|(_, reports)| Some(ours(&reports[index])));
        let values = values.chain([Some(published(theirs))]);
        (theirs.0.as_str().to_owned(), values.collect())
    });
    let bars = Bars {
        categories,
        series: series.collect(),
    };
    let figure = BarFigure {
        name,
        title,
        caption: title,
        category: "trace",
        y_label,
        decimals: 3,
        width: GROUP_WIDTH * bars.categories.len().max(6) as u32,
        bars,
        remark: "Operations in traces of ours are those of a script, so they are more even \
                 than a person's, which flatters every predictor; the order of the three is \
                 what can be compared."
            .to_owned(),
    };
    figure.draw()
}
