//! The figures of S0 from our traces, with the published values beside ours, and the
//! frontier of all policies.

mod bars;
mod curves;
mod frontier;
mod html;
mod per_app;
mod prediction;
mod published;

use mobifs_core::AppPolicy;
use mobifs_core::policy::transactioning::TransactioningName;
use serde::Serialize;

use crate::plot::PlotError;
use crate::sim::{
    AppOutcome, ComparisonError, Contender, DeviceChoice, Frontier, NamedStream, Outcome, Storage,
    candidates, frontier as sweep, run_all,
};

/// A picture, the numbers in it, and what they say.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    /// File name without its ending.
    pub name: String,
    /// Heading.
    pub title: String,
    /// The picture.
    #[serde(skip)]
    pub svg: String,
    /// Heads of the columns.
    pub columns: Vec<String>,
    /// The numbers.
    pub rows: Vec<Vec<String>>,
    /// How ours stands to what was published, and why.
    pub remark: String,
}

impl Figure {
    /// The numbers as comma-separated values.
    pub fn csv(&self) -> String {
        let line = |cells: &[String]| {
            let cells = cells.iter().map(|cell| {
                if cell.contains([',', '"', '\n']) {
                    format!("\"{}\"", cell.replace('"', "\"\""))
                } else {
                    cell.clone()
                }
            });
            cells.collect::<Vec<_>>().join(",") + "\n"
        };
        let rows = self.rows.iter().map(|row| line(row));
        line(&self.columns) + &rows.collect::<String>()
    }
}

/// Why figures could not be made.
#[derive(Debug, thiserror::Error)]
pub enum FigureError {
    /// A simulation could not be done.
    #[error(transparent)]
    Comparison(#[from] ComparisonError),
    /// A picture could not be drawn.
    #[error(transparent)]
    Plot(#[from] PlotError),
}

/// All figures.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    /// In the order of S0.
    pub figures: Vec<Figure>,
    /// Those that these traces do not give, and why, in a sentence each.
    pub left_out: Vec<String>,
    /// Every policy with every choice of parameters.
    pub frontier: Frontier,
}

impl Figures {
    /// One page with everything, that needs nothing else.
    pub fn html(&self) -> String {
        let apps = self.frontier.apps.join(", ");
        let introduction = format!(
            "Traces of real programs under the engine of the mount, in virtual time, beside \
             the values that the MobiFS paper published for ten Android apps. Apps: {apps}."
        );
        html::page(&self.figures, &introduction)
    }
}

/// The contenders of the figures, in the order of a [`Unit`]'s fields.
fn contenders(default: AppPolicy) -> Vec<Contender> {
    let named = |name| {
        let mut policy = AppPolicy::default();
        policy.transactioning.name = name;
        policy
    };
    vec![
        Contender::ext4(),
        Contender::engine("tpl".to_owned(), named(TransactioningName::Tpl)),
        Contender::engine("default".to_owned(), default),
        Contender::engine("ideal".to_owned(), named(TransactioningName::Ideal)),
    ]
}

/// One app of one trace under the contenders of the figures.
struct Unit<'r> {
    name: String,
    duration_seconds: f64,
    ext4: &'r AppOutcome,
    tpl: &'r AppOutcome,
    default: &'r AppOutcome,
    ideal: &'r AppOutcome,
}

/// Makes all figures. Those of transactions leave the user's operations out, as S0 does:
/// what is closed is committed at once.
/// `default` is the policy that a mount has if nothing else is said.
/// `progress` hears how many simulations are done, and of how many.
///
/// # Errors
/// A trace cannot be simulated, or a picture cannot be drawn.
pub fn figures(
    traces: &[NamedStream],
    default: AppPolicy,
    device: &DeviceChoice,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Figures, FigureError> {
    let alone: Vec<NamedStream> = traces
        .iter()
        .map(|trace| NamedStream {
            // Every trace is one; the ending only takes room in the pictures.
            name: trace.name.trim_end_matches(".parquet").to_owned(),
            stream: trace.stream.without_user(),
        })
        .collect();
    let candidates = candidates();
    let frontier = sweep(&alone, &candidates, device, progress)?;
    let contenders = contenders(default);
    let runs = run_all(&alone, &contenders, device, progress)?;
    let units = units(&alone, &runs);
    let mut figures = curves::figures(&units)?;
    figures.extend(per_app::figures(&units)?);
    let predictions = prediction::figures(traces)?;
    let mut left_out = Vec::new();
    if predictions.is_empty() {
        left_out.push(format!(
            "Figures 8 and 9 are left out: no trace has {} operations of a user.",
            prediction::OPERATIONS_MIN
        ));
    }
    figures.extend(predictions);
    figures.extend(frontier::figures(&frontier)?);
    Ok(Figures {
        figures,
        left_out,
        frontier,
    })
}

/// The apps that wrote anything.
fn units<'r>(traces: &[NamedStream], runs: &'r [(Outcome, Storage)]) -> Vec<Unit<'r>> {
    let mut units = Vec::new();
    for (trace, runs) in traces.iter().zip(runs.chunks_exact(4)) {
        let [ext4, tpl, default, ideal] = runs else {
            continue;
        };
        let apps = &trace.stream.apps;
        for (number, app) in apps.iter().enumerate() {
            if ext4.0.apps[number].flushed_pages == 0 {
                continue;
            }
            units.push(Unit {
                name: if apps.len() == 1 {
                    trace.name.clone()
                } else {
                    format!("{}: {app}", trace.name)
                },
                duration_seconds: trace.stream.duration_ns as f64 / 1e9,
                ext4: &ext4.0.apps[number],
                tpl: &tpl.0.apps[number],
                default: &default.0.apps[number],
                ideal: &ideal.0.apps[number],
            });
        }
    }
    units
}
