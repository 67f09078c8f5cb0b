//! Replay of block traces on a device model.
//!
//! A trace says what was asked for and when, not what became durable: a plain write is a
//! plain write here, and flushes happen only where the trace has them.

mod error;
mod fill;
mod source;

pub use error::ReplayError;
pub use fill::Fill;
pub use source::{LineCounts, ReadOptions};

use std::path::PathBuf;

use mobifs_device_model::{Command, CommandError, Host, Sector, Stats, WriteKind};
use serde::Serialize;

use mobifs_trace::block::Access;
use source::{Placed, Source};

/// Quiet time between preparing a device and what is measured: the recordings are days
/// apart, and the device has ended its background work.
const BETWEEN_PHASES_NS: u64 = 60_000_000_000;

/// When requests are issued.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Pace {
    /// At the recorded times, whether or not earlier requests have ended.
    Recorded {
        /// Times between requests are multiplied by this.
        scale: f64,
    },
    /// As soon as there is room among the requests under way.
    AsFastAsPossible {
        /// Requests under way at a time.
        depth: usize,
    },
}

/// How traces are replayed.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// When requests are issued.
    pub pace: Pace,
    /// How lines become requests.
    pub read: ReadOptions,
    /// What the device holds before anything else.
    pub fill: Fill,
}

/// What a part of the replay did.
#[derive(Clone, Debug, Serialize)]
pub struct Phase {
    /// What became of the lines of its traces.
    pub lines: LineCounts,
    /// Requests issued to the device.
    pub requests: u64,
    /// From the first to the last recorded time, all traces together.
    pub recorded_ns: u64,
    /// From the first request until the last one ended.
    pub elapsed_ns: u64,
    /// Pages that the device's cache still held in the end.
    pub dirty_pages: u64,
    /// What the device counted.
    pub device: Stats,
}

/// What a replay found.
#[derive(Clone, Debug, Serialize)]
pub struct Replay {
    /// Name of the device's configuration.
    pub device: String,
    /// Its capacity.
    pub capacity_bytes: u64,
    /// When requests were issued.
    pub pace: Pace,
    /// What the device held before anything else.
    pub fill: Fill,
    /// Pages written for that.
    pub filled_pages: u64,
    /// The traces that prepare the device; none without.
    pub precondition: Option<Phase>,
    /// The traces that are measured.
    pub execution: Phase,
}

/// Replays `precondition`, and after a quiet minute `execution`, whose requests are what
/// is measured. Traces of a part follow each other without a pause.
///
/// # Errors
/// A trace that cannot be read, a request that is not for this device.
pub fn replay(
    host: &mut Host,
    precondition: &[PathBuf],
    execution: &[PathBuf],
    options: &Options,
) -> Result<Replay, ReplayError> {
    let all = precondition.iter().chain(execution);
    let filled_pages = fill::fill(host, all, options.fill, options.read)?;
    host.rest(BETWEEN_PHASES_NS);
    let prepared = if precondition.is_empty() {
        None
    } else {
        let phase = run(host, precondition, options)?;
        host.rest(BETWEEN_PHASES_NS);
        Some(phase)
    };
    Ok(Replay {
        device: host.model().config().name.clone(),
        capacity_bytes: host.model().capacity_bytes(),
        pace: options.pace,
        fill: options.fill,
        filled_pages,
        precondition: prepared,
        execution: run(host, execution, options)?,
    })
}

fn run(host: &mut Host, traces: &[PathBuf], options: &Options) -> Result<Phase, ReplayError> {
    host.model_mut().reset_stats();
    let begun = host.now();
    let mut lines = LineCounts::default();
    let (mut requests, mut recorded_ns) = (0, 0);
    if let Pace::AsFastAsPossible { depth } = options.pace {
        host.set_depth(depth);
    }
    for path in traces {
        let mut source = Source::open(path, host.model().sectors(), options.read)?;
        let mut clock = Clock::starting(host);
        while let Some(placed) = source.next()? {
            let refused = |error| source.refused(error);
            requests += clock.issue(host, &placed, options.pace).map_err(refused)?;
        }
        host.wait_all();
        recorded_ns += clock.recorded_ns;
        lines.add(source.into_counts());
    }
    host.set_depth(1);
    Ok(Phase {
        lines,
        requests,
        recorded_ns,
        elapsed_ns: host.now().ns_since(begun),
        dirty_pages: host.model().dirty_pages(),
        device: host.model().stats(),
    })
}

/// Recorded time of one trace as time of the device.
struct Clock {
    origin: mobifs_device_model::VirtualNs,
    first_ns: Option<u64>,
    recorded_ns: u64,
}

impl Clock {
    const fn starting(host: &Host) -> Self {
        Self {
            origin: host.now(),
            first_ns: None,
            recorded_ns: 0,
        }
    }

    /// Issues a request when its time has come; how many commands it was.
    fn issue(&mut self, host: &mut Host, placed: &Placed, pace: Pace) -> Result<u64, CommandError> {
        let first_ns = *self.first_ns.get_or_insert(placed.at_ns);
        let since_ns = placed.at_ns.saturating_sub(first_ns);
        self.recorded_ns = self.recorded_ns.max(since_ns);
        if let Pace::Recorded { scale } = pace {
            let scaled_ns = (since_ns as f64 * scale) as u64;
            host.wait_until(self.origin.plus_ns(scaled_ns));
        }
        let mut issued = 0;
        let mut issue = |command| -> Result<(), CommandError> {
            match pace {
                Pace::Recorded { .. } => host.issue_now(&command)?,
                Pace::AsFastAsPossible { .. } => host.issue(&command)?,
            };
            issued += 1;
            Ok(())
        };
        if placed.flushes_before() {
            issue(Command::Flush)?;
        }
        for &(start, sectors) in &placed.ranges {
            if let Some(command) = command(placed.access, start, sectors) {
                issue(command)?;
            }
        }
        Ok(issued)
    }
}

/// The command for one range of a request; none for a flush, which has none.
const fn command(access: Access, start: Sector, sectors: u32) -> Option<Command<'static>> {
    Some(match access {
        Access::Read => Command::Read { start, sectors },
        Access::Write { durable, .. } => Command::Write {
            start,
            sectors,
            kind: if durable {
                WriteKind::Reliable
            } else {
                WriteKind::Plain
            },
        },
        Access::Discard => Command::Discard { start, sectors },
        Access::Flush => return None,
    })
}

#[cfg(test)]
mod tests;
