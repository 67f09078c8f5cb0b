//! What would have been flushed, when, and at what risk: traces under different policies.
//!
//! The engine of the mount runs in virtual time over a store in memory ([`EngineRun`]), the
//! filesystems to compare with as a model of their page cache ([`PageCache`]), native mode as one of
//! the filesystem that the decisions of its daemon steer ([`NativeRun`]); what any of them flushes
//! goes to the same flash device model ([`Storage`]). docs/SIMULATION.md says what is
//! modelled and what is not.

mod compare;
mod contender;
mod device;
mod dirty;
mod engine;
mod error;
mod frontier;
mod generated_users;
mod groups;
mod journal;
mod machine;
mod native;
mod outcome;
mod page_cache;
mod parquet;
mod report;
mod stream;
mod table;
mod user;
mod written;

#[cfg(test)]
mod tests;

pub(crate) use compare::run_all;
pub use compare::{ComparisonError, NamedStream, compare};
pub use contender::{Contender, ContenderRules};
pub use device::{CommitPages, Cost, Flush, FlushShape, Storage};
pub use engine::EngineRun;
pub use error::SimulationError;
pub use frontier::{Candidate, Frontier, FrontierPoint, Standing, candidates, frontier};
pub use generated_users::{PROFILES, Profile, SESSION_NS, USERS};
pub(crate) use groups::counted;
pub use groups::{AppGroup, Member, PAGES_MIN, app_groups};
pub use native::{NativeFilesystem, NativeRules, NativeRun};
pub use outcome::{AppOutcome, AtRisk, CurvePoint, Intervals, Outcome};
pub use page_cache::{FlushRules, PageCache};
pub use report::{AppReport, ContenderReport, Report, TraceReport};
pub use stream::{
    Action, AppNumber, InitialObject, NameNumber, ObjectFacts, ObjectNumber, PageChange, Step,
    Stream,
};
pub use user::{PredictionReport, user_operations, watch};

use mobifs_device_model::Config;

/// The device that is written to.
#[derive(Clone, Debug)]
pub struct DeviceChoice {
    /// What it is called in reports.
    pub name: String,
    /// What it is like.
    pub config: Config,
    /// Its size.
    pub capacity_bytes: u64,
}

/// Runs a stream under one contender.
///
/// # Errors
/// The trace does what no filesystem can have done, or the device cannot be like that.
pub fn simulate(
    stream: &Stream,
    contender: &Contender,
    device: &DeviceChoice,
) -> Result<(Outcome, Storage), SimulationError> {
    let storage = Storage::new(&device.config, device.capacity_bytes)?;
    match contender.rules {
        ContenderRules::PageCache(rules) => PageCache::run(stream, rules, storage),
        ContenderRules::Engine(policy, pacing) if contender.sees_bursts => {
            EngineRun::run(&stream.with_bursts(), policy, pacing, storage)
        }
        ContenderRules::Engine(policy, pacing) => EngineRun::run(stream, policy, pacing, storage),
        ContenderRules::Native(rules) => NativeRun::run(stream, rules, storage),
    }
}
