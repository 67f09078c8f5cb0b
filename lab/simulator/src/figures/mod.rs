//! The figures of S0 from our traces, with the published values beside ours, and the
//! frontier of all policies.

mod bars;
mod curves;
mod figure;
mod frontier;
mod html;
mod per_app;
mod prediction;
mod published;
mod unit;

use mobifs_charts::PlotError;
use mobifs_engine::AppPolicy;
use mobifs_engine::policy::transactioning::TransactioningName;
use serde::Serialize;

pub use figure::Figure;
use unit::{Unit, UserRun};

use crate::sim::{
    ComparisonError, Contender, DeviceChoice, Frontier, Member, NamedStream, Outcome, PAGES_MIN,
    Storage, app_groups, candidates, counted, frontier as sweep, run_all,
};

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
             the values that the MobiFS paper published for ten Android apps. Apps: {apps}. {}",
            self.left_out.join(" ")
        );
        html::page(&self.figures, introduction.trim_end())
    }
}

/// The contenders of the figures, in the order of a [`UserRun`]'s fields.
fn contenders(default: AppPolicy) -> Vec<Contender> {
    let named = |name| {
        let mut policy = AppPolicy::default();
        policy.transactioning.name = name;
        policy
    };
    let published = Contender::published_policy();
    vec![
        Contender::ext4(),
        Contender::engine(Contender::PUBLISHED.to_owned(), published),
        Contender::engine("tpl".to_owned(), named(TransactioningName::Tpl)),
        Contender::engine("default".to_owned(), default),
        Contender::engine("ideal".to_owned(), named(TransactioningName::Ideal)),
    ]
}
const CONTENDERS: usize = 5;

/// Makes all figures. Those of transactions leave the user's operations out, as S0 does: what is
/// closed is committed at once. `default` is the policy that a mount has by default. `progress` is
/// called with the number of simulations done, and of all.
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
    let (units, uncounted) = units(&alone, &runs);
    let mut figures = curves::figures(&units)?;
    figures.extend(per_app::figures(&units)?);
    let predictions = prediction::figures(traces)?;
    let mut left_out = Vec::new();
    if !uncounted.is_empty() {
        left_out.push(format!(
            "Left out of all figures and means, because ext4 flushed less than {PAGES_MIN} pages \
             of them: {}.",
            uncounted.join(", ")
        ));
    }
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

/// The apps that count, and the names of those that do not.
fn units<'r>(
    traces: &[NamedStream],
    runs: &'r [(Outcome, Storage)],
) -> (Vec<Unit<'r>>, Vec<String>) {
    let ext4: Vec<&Outcome> = runs.iter().step_by(CONTENDERS).map(|run| &run.0).collect();
    let (groups, uncounted) = counted(app_groups(traces), &ext4);
    let user = |member: Member| {
        let of = |contender: usize| &runs[member.trace * CONTENDERS + contender].0.apps[member.app];
        UserRun {
            trace: traces[member.trace].name.clone(),
            duration_seconds: traces[member.trace].stream.duration_ns as f64 / 1e9,
            ext4: of(0),
            published: of(1),
            tpl: of(2),
            default: of(3),
            ideal: of(4),
        }
    };
    let units = groups.into_iter().map(|group| Unit {
        users: group.members.iter().map(|&member| user(member)).collect(),
        name: group.name,
        program: group.program,
    });
    (units.collect(), uncounted)
}

#[cfg(test)]
mod tests;
