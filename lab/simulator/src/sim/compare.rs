//! Many traces under many contenders, on all CPUs.

use std::num::NonZero;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use mobifs_engine::policy::prediction::{PredictionRules, PredictorName};

use super::contender::{Contender, ContenderRules};
use super::device::Storage;
use super::native::NativeRules;
use super::outcome::Outcome;
use super::report::{ContenderReport, Report, TraceReport};
use super::stream::Stream;
use super::user::{user_operations, watch};
use super::{DeviceChoice, SimulationError, simulate};

/// A trace to simulate.
#[derive(Debug)]
pub struct NamedStream {
    /// What reports call it.
    pub name: String,
    /// What happens in it.
    pub stream: Stream,
}

/// A simulation that could not be done.
#[derive(Debug, thiserror::Error)]
#[error("{trace} under {contender}: {error}")]
pub struct ComparisonError {
    /// Which trace.
    pub trace: String,
    /// Under which contender.
    pub contender: String,
    /// Why.
    pub error: SimulationError,
}

/// Runs every trace under every contender, as many at a time as there are CPUs. The first contender
/// is the one that the report is about. `progress` is called with the number of runs done, and of
/// all.
///
/// # Errors
/// The first simulation that could not be done.
pub fn compare(
    traces: &[NamedStream],
    contenders: &[Contender],
    device: &DeviceChoice,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Report, ComparisonError> {
    let results = run_all(traces, contenders, device, progress)?;
    let count = contenders.len();
    let reports = traces.iter().enumerate().map(|(index, trace)| {
        let runs = &results[index * count..(index + 1) * count];
        report_of(trace, contenders, runs)
    });
    Ok(Report::new(
        &device.name,
        reports.collect(),
        Contender::EXT4,
    ))
}

type Run = (Outcome, Storage);

/// Every trace under every contender: all contenders of the first trace, then the next.
pub(crate) fn run_all(
    traces: &[NamedStream],
    contenders: &[Contender],
    device: &DeviceChoice,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Vec<Run>, ComparisonError> {
    let jobs: Vec<(&NamedStream, &Contender)> = traces
        .iter()
        .flat_map(|trace| contenders.iter().map(move |contender| (trace, contender)))
        .collect();
    let results: Vec<Mutex<Option<Result<Run, ComparisonError>>>> =
        jobs.iter().map(|_| Mutex::new(None)).collect();
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let failed = AtomicBool::new(false);
    let work = || {
        while !failed.load(Ordering::Relaxed) {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(&(trace, contender)) = jobs.get(index) else {
                break;
            };
            let result = simulate(&trace.stream, contender, device);
            let result = result.map_err(|error| ComparisonError {
                trace: trace.name.clone(),
                contender: contender.name.clone(),
                error,
            });
            failed.fetch_or(result.is_err(), Ordering::Relaxed);
            *lock(&results[index]) = Some(result);
            progress(done.fetch_add(1, Ordering::Relaxed) + 1, jobs.len());
        }
    };
    let workers = std::thread::available_parallelism().map_or(1, NonZero::get);
    std::thread::scope(|scope| {
        for _ in 1..workers.min(jobs.len()) {
            scope.spawn(work);
        }
        work();
    });
    // After a failure some have not run, and the failure is among those that have.
    let ended = results.into_iter().filter_map(|result| {
        let result = result.into_inner();
        result.unwrap_or_else(PoisonError::into_inner)
    });
    ended.collect()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The parameters of the predictors: those of the first contender that has a policy.
fn prediction_rules(contenders: &[Contender]) -> PredictionRules {
    let mut policies = contenders
        .iter()
        .filter_map(|contender| match contender.rules {
            ContenderRules::Engine(_, pacing)
            | ContenderRules::Native(NativeRules { pacing, .. }) => Some(pacing.prediction),
            ContenderRules::PageCache(_) => None,
        });
    policies.next().unwrap_or_default()
}

fn report_of(trace: &NamedStream, contenders: &[Contender], runs: &[Run]) -> TraceReport {
    let ext4 = contenders
        .iter()
        .position(|contender| contender.name == Contender::EXT4);
    let nothing = Outcome::new(trace.stream.apps.len());
    let ext4 = ext4.map_or(&nothing, |index| &runs[index].0);
    let reports: Vec<ContenderReport> = contenders
        .iter()
        .zip(runs)
        .map(|(contender, (outcome, storage))| {
            ContenderReport::new(&contender.name, &trace.stream, outcome, storage, ext4)
        })
        .collect();
    let rules = prediction_rules(contenders);
    let operations = user_operations(&trace.stream, rules.touch_gap_ns);
    let predictors = PredictorName::ALL.iter().filter(|_| !operations.is_empty());
    let predictions =
        predictors.map(|&predictor| watch(&PredictionRules { predictor, ..rules }, &operations));
    TraceReport {
        trace: trace.name.clone(),
        user_operations: operations.len() as u64,
        predictions: predictions.collect(),
        duration_seconds: trace.stream.duration_ns as f64 / 1e9,
        flush_reduction_vs_ext4: reports
            .first()
            .map_or(0.0, |report| report.flush_reduction_vs_ext4),
        contenders: reports,
    }
}
