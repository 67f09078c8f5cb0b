//! Repeating a trace's operations in a directory.
//!
//! Every traced thread gets a thread. An event begins when all events have ended that had ended
//! when it began in the trace: what came one after another stays so across threads, and what was
//! under way at the same time may be so again. Data is made from a seed.

mod error;
mod execute;
mod files;
mod options;
mod order;
mod plan;
mod report;

use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Instant;

pub use error::ReplayError;
pub use options::{ReplayOptions, ReplaySpeed};
pub use report::{Difference, Latency, ReplayReport};

use crate::model::{Event, EventKind, Trace};
use execute::{Handles, Worker};
use files::Directory;
use order::Order;
use plan::Plan;
use report::Recorder;

/// Replays a trace. `begin` is called when all is made that was there before, and the trace begins
/// when it returns; `progress` with the number of events that have ended, now and then.
///
/// # Errors
/// It cannot begin. Errors of single events are part of the report.
pub fn replay(
    trace: &Trace,
    options: &ReplayOptions,
    begin: &dyn Fn(),
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
    begin();
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
