//! Doing on a directory what a trace says.
//!
//! Every traced thread gets a thread. An event begins when all events have ended that had ended
//! when it began in the trace: what came one after another stays so across threads, and what was
//! under way at the same time may be so again. Data is made from a seed.

mod execute;
mod files;
mod order;
mod plan;
mod report;

use std::io;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Instant;

use thiserror::Error;

pub use report::{Difference, Latency, ReplayReport};

use crate::model::{Event, EventKind, Trace};
use execute::{Handles, Worker};
use files::Directory;
use order::Order;
use plan::Plan;
use report::Recorder;

/// When events begin.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ReplaySpeed {
    /// At their time in the trace divided by this; 1 is as recorded. Late if the storage is
    /// slower than the one that was recorded.
    Scaled(f64),
    /// As soon as what had ended before has ended.
    Full,
}

/// How a trace is replayed.
#[derive(Clone, Debug)]
pub struct ReplayOptions {
    /// Where: an empty directory. Absolute paths of the trace are taken relative to it, and `..`
    /// does not lead out of it.
    pub directory: PathBuf,
    /// When events begin.
    pub speed: ReplaySpeed,
    /// What the data is made from.
    pub seed: u64,
}

/// Why a trace cannot be replayed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// The trace is of block devices.
    #[error("the trace has commands to block devices; `mobifs flash replay` replays those")]
    Block,
    /// The directory holds something already, which the replay could hurt.
    #[error("{}: the directory is not empty", .0.display())]
    NotEmpty(PathBuf),
    /// The directory cannot be used.
    #[error("{}: {source}", path.display())]
    Directory {
        /// Which one.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file that was there before the trace began cannot be made.
    #[error("{} cannot be prepared: {source}", path.display())]
    Prepare {
        /// Which one, in the directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A thread cannot be started.
    #[error("no thread could be started for one of the trace: {0}")]
    Thread(io::Error),
}

/// Replays a trace. `progress` is called with the number of events that have ended, now and then.
///
/// # Errors
/// It cannot begin. Errors of single events are part of the report.
pub fn replay(
    trace: &Trace,
    options: &ReplayOptions,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<ReplayReport, ReplayError> {
    if trace
        .events
        .iter()
        .any(|event| matches!(event.kind, EventKind::Block { .. }))
    {
        return Err(ReplayError::Block);
    }
    let directory = Directory::open(&options.directory, options.seed)?;
    let plan = Plan::of(trace);
    let prepared = plan.prepare(trace, &directory)?;
    let handles = Handles::default();
    let order = Order::of(&trace.events);
    let threads = threads(&trace.events);
    let recorder = Mutex::new(Recorder::new());
    let has_failed = AtomicBool::new(false);
    let start = Instant::now();
    thread::scope(|scope| {
        for events in &threads {
            let worker = Worker::new(trace, &directory, &handles, &order, options.speed, start);
            let (recorder, has_failed) = (&recorder, &has_failed);
            let spawned = thread::Builder::new()
                .stack_size(THREAD_STACK_BYTES)
                .spawn_scoped(scope, move || {
                    worker.run(events, recorder, has_failed, progress)
                });
            if let Err(error) = spawned {
                // The others wait for events of this one.
                has_failed.store(true, std::sync::atomic::Ordering::Release);
                order.give_up();
                return Err(ReplayError::Thread(error));
            }
        }
        Ok(())
    })?;
    let elapsed_ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let recorder = recorder
        .into_inner()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    Ok(recorder.report(trace, prepared, elapsed_ns))
}

/// A thread of a trace needs little, and there may be thousands.
const THREAD_STACK_BYTES: usize = 256 * 1024;

/// The events of each thread, by index.
fn threads(events: &[Event]) -> Vec<Vec<usize>> {
    let mut position = std::collections::HashMap::new();
    let mut threads: Vec<Vec<usize>> = Vec::new();
    for (index, event) in events.iter().enumerate() {
        let thread = *position
            .entry((event.process, event.thread))
            .or_insert_with(|| {
                threads.push(Vec::new());
                threads.len() - 1
            });
        threads[thread].push(index);
    }
    threads
}

#[cfg(test)]
mod tests;
