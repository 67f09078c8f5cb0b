//! How well pauses are predicted: S0 Figures 8 and 9.

use mobifs_charts::{Bars, PlotError};
use mobifs_engine::policy::prediction::{PredictionRules, PredictorName};

use super::bars::BarFigure;
use super::figure::Figure;
use crate::sim::{NamedStream, PROFILES, PredictionReport, USERS, user_operations, watch};

const GROUP_WIDTH: u32 = 56;
/// User operations that a trace must have to say anything.
pub(super) const OPERATIONS_MIN: usize = 20;
/// Published conflicts for each prediction, and lengths in seconds (S0 §7.4), by the
/// predictors of [`PredictorName::ALL`].
const PUBLISHED: [(PredictorName, f64, f64); 3] = [
    (PredictorName::StateMachine, 0.542, 2.389),
    (PredictorName::LastMin, 0.261, 0.874),
    (PredictorName::LastAverage, 1.181, 3.149),
];

/// How each predictor of [`PUBLISHED`] fared with one user, or with several.
type Reports = [PredictionReport; 3];

/// Users of one origin. Those that were recorded and those that are generated are never in one
/// mean.
struct Group {
    origin: &'static str,
    users: Vec<(String, Reports)>,
}

impl Group {
    fn pooled(&self) -> Reports {
        std::array::from_fn(|index| {
            let of_one = self.users.iter().map(|(_, reports)| reports[index].clone());
            PredictionReport::pooled(PUBLISHED[index].0.as_str(), &of_one.collect::<Vec<_>>())
        })
    }

    /// How the state machine compares with the others.
    fn sentence(&self) -> String {
        let [machine, minimum, average] = self.pooled();
        let conflicts = [&machine, &minimum, &average].map(|of| of.conflicts_per_prediction);
        let lengths = [&machine, &minimum, &average].map(|of| of.length_mean_seconds);
        let longer = self.users.iter().filter(|(_, [machine, _, average])| {
            machine.length_mean_seconds > average.length_mean_seconds
        });
        format!(
            "{} ({} of them): conflicts for each prediction {:.3} (state machine), {:.3} (minimum), \
             {:.3} (average), {:+.1} % against the average; lengths {:.2}, {:.2} and {:.2} s, longer \
             than the average's for {}.",
            self.origin,
            self.users.len(),
            conflicts[0],
            conflicts[1],
            conflicts[2],
            (conflicts[0] / conflicts[2].max(f64::MIN_POSITIVE) - 1.0) * 100.0,
            lengths[0],
            lengths[1],
            lengths[2],
            longer.count()
        )
    }
}

fn reports(operations: &[u64]) -> Reports {
    PUBLISHED.map(|(name, ..)| watch(&PredictionRules::of(name), operations))
}

fn recorded(traces: &[NamedStream]) -> Group {
    let gap_ns = PredictionRules::default().touch_gap_ns;
    let users = traces.iter().map(|trace| {
        let name = trace.name.trim_end_matches(".parquet").to_owned();
        (name, user_operations(&trace.stream, gap_ns))
    });
    let enough = users.filter(|(_, operations)| operations.len() >= OPERATIONS_MIN);
    Group {
        origin: "Recorded scripts",
        users: enough
            .map(|(name, operations)| (name, reports(&operations)))
            .collect(),
    }
}

/// Each kind of use over all its users.
fn generated() -> Group {
    let kinds = PROFILES.iter().map(|profile| {
        let users = (0..USERS).map(|user| (String::new(), reports(&profile.operations(user))));
        let users = Group {
            origin: "",
            users: users.collect(),
        };
        (format!("generated: {}", profile.name), users.pooled())
    });
    Group {
        origin: "Generated kinds of use",
        users: kinds.collect(),
    }
}

/// Both figures; none if no trace has enough of them.
pub(super) fn figures(traces: &[NamedStream]) -> Result<Vec<Figure>, PlotError> {
    let recorded = recorded(traces);
    if recorded.users.is_empty() {
        return Ok(Vec::new());
    }
    let groups = [recorded, generated()];
    Ok(vec![
        draw(
            &groups,
            (
                "fig08-conflicts",
                "S0 Figure 8: user operations in predicted pauses",
            ),
            "operations per prediction",
            |report| report.conflicts_per_prediction,
            |&(_, conflicts, _)| conflicts,
        )?,
        draw(
            &groups,
            ("fig09-lengths", "S0 Figure 9: lengths of predicted pauses"),
            "s",
            |report| report.length_mean_seconds,
            |&(_, _, length)| length,
        )?,
    ])
}

fn draw(
    groups: &[Group],
    (name, title): (&str, &str),
    y_label: &'static str,
    ours: fn(&PredictionReport) -> f64,
    published: fn(&(PredictorName, f64, f64)) -> f64,
) -> Result<Figure, PlotError> {
    let users = || groups.iter().flat_map(|group| &group.users);
    let means: Vec<(&str, Reports)> = groups
        .iter()
        .map(|group| (group.origin, group.pooled()))
        .collect();
    let names = users().map(|(name, _)| name.clone());
    let mean_names = means.iter().map(|(origin, _)| format!("all: {origin}"));
    let categories: Vec<String> = names
        .chain(mean_names)
        .chain(["published".to_owned()])
        .collect();
    let series = PUBLISHED.iter().enumerate().map(|(index, theirs)| {
        let values = users().map(|(_, reports)| Some(ours(&reports[index])));
        let of_all = means.iter().map(|(_, reports)| Some(ours(&reports[index])));
        let values = values.chain(of_all).chain([Some(published(theirs))]);
        (theirs.0.as_str().to_owned(), values.collect())
    });
    let series = series.collect();
    let width = GROUP_WIDTH * categories.len() as u32;
    let sentences: Vec<String> = groups.iter().map(Group::sentence).collect();
    let figure = BarFigure {
        name,
        title,
        caption: title,
        category: "user",
        y_label,
        decimals: 3,
        width: width.clamp(640, 1_200),
        bars: Bars { categories, series },
        remark: format!(
            "Counted as in the paper: a prediction is used up by a checkpoint of its length, no \
             other is made meanwhile, the simple predictors predict at an operation and the state \
             machine at τ and δ. (A mount predicts again when a prediction is over.) {} Published \
             for nine apps: 0.542, 0.261 and 1.181, -54.8 % against the average; 2.389, 0.874 and \
             3.149 s, longer than the average's for 3. The recorded users are scripts, the \
             generated ones draw their intervals from two log-normal distributions; neither are \
             people, so the order of the three predictors is what can be compared.",
            sentences.join(" ")
        ),
    };
    figure.draw()
}
