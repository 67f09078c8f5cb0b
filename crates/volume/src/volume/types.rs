//! What a [`crate::Volume`] is made with, and how its own requests fail.

use std::sync::Arc;
use std::time::Duration;

use mobifs_base::MonotonicNs;
use mobifs_engine::{FsError, KernelHeld, PacingRules};
use mobifs_store::StoreError;

use crate::status::HistoryStatus;
use crate::{Arena, ArenaError, Clock, Config, Rules, SystemClock};

/// What a [`crate::Volume`] is made with.
#[derive(Clone)]
pub struct VolumeOptions {
    /// Which directories are apps, and their limits.
    pub rules: Rules,
    /// Memory for what is not committed, in bytes.
    pub memory_budget_bytes: u64,
    /// Objects kept in memory although nothing uses them.
    pub objects_max: usize,
    /// The journal is applied after this time without commits.
    pub apply_idle: Duration,
    /// Whether many requests after a pause are taken for a user.
    pub user_from_bursts: bool,
    /// Whether an app may be (or become) durable.
    pub allow_durable: bool,
    /// What decides when to commit for the user's sake.
    pub pacing: PacingRules,
    /// Nothing may change.
    pub read_only: bool,
    /// Reading does not move access times.
    pub no_access_time: bool,
    /// Listing directories does not.
    pub no_directory_access_time: bool,
    /// Programs roll back what they have begun when there is no room, as databases do. So an
    /// operation that needs some is refused, and nothing is committed for it, if that commit would
    /// fail because other programs have taken the reserved room: after a failed commit nothing can
    /// be changed any more, and so not rolled back.
    pub rolls_back: bool,
    /// Whether a checkpointer thread runs; without one the caller decides when to
    /// commit.
    pub background: bool,
    /// The time source.
    pub clock: Arc<dyn Clock>,
    /// Seed of the hash tables; none: random.
    pub hash_seed: Option<u64>,
    /// Where the state is kept that a successor of this process needs; none: a kill loses what is
    /// not committed.
    pub arena: Option<Arena>,
    /// Called with the applied state, while nothing changes it.
    pub applied: Option<Arc<dyn AppliedState>>,
}

/// Does something with the applied state of a store, in which every app is at a point in time.
pub trait AppliedState: Send + Sync {
    /// Whether it has something to do now.
    fn is_due(&self, now: MonotonicNs) -> bool;

    /// Everything committed is applied, and nothing is committed until this returns.
    fn applied(&self, now: MonotonicNs);

    /// The snapshots that it keeps, for the status; none: no history is kept.
    fn history(&self) -> Option<HistoryStatus> {
        None
    }
}

impl VolumeOptions {
    /// What a configuration asks for, with the machine's clock.
    pub fn new(config: &Config) -> Self {
        Self {
            rules: config.rules.clone(),
            memory_budget_bytes: config.memory_budget_bytes,
            objects_max: config.objects_max,
            apply_idle: config.apply_idle,
            user_from_bursts: config.events.bursts,
            allow_durable: config.allow_durable,
            pacing: config.pacing,
            read_only: false,
            no_access_time: false,
            no_directory_access_time: false,
            rolls_back: false,
            background: true,
            clock: Arc::new(SystemClock),
            hash_seed: None,
            arena: None,
            applied: None,
        }
    }
}

/// Why a request about the volume as a whole (not one file operation) failed.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// The store could not do it.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// No app of that name exists in this mount.
    #[error("there is no app named \"{name}\" in this mount")]
    UnknownApp {
        /// The name asked for.
        name: String,
    },
    /// Changes of an app could not be committed; they stay in memory.
    #[error(
        "the changes of \"{app}\"{} could not be committed and stay in memory: {reason}",
        and_others(*others)
    )]
    NotCommitted {
        /// The first such app.
        app: String,
        /// How many other apps there are.
        others: usize,
        /// What the store said.
        reason: String,
        /// There was no room for them.
        is_full: bool,
    },
    /// The power was cut by a drill.
    #[error("the power was cut by a drill: nothing is written to the store any more")]
    PowerCut,
    /// A setting cannot be changed while mounted.
    #[error("{0}")]
    Setting(String),
    /// A file operation failed.
    #[error(transparent)]
    Fs(#[from] FsError),
    /// The state of a killed process cannot be resumed.
    #[error("cannot go on where the killed daemon was: {0}")]
    Arena(#[from] ArenaError),
    /// A thread of the volume could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] std::io::Error),
}

impl VolumeError {
    /// Whether it failed for want of room in the lower filesystem.
    pub fn is_full(&self) -> bool {
        match self {
            Self::Store(error) => error.is_full(),
            Self::Fs(error) => *error == FsError::NoSpace,
            Self::NotCommitted { is_full, .. } => *is_full,
            _ => false,
        }
    }
}

fn and_others(others: usize) -> String {
    match others {
        0 => String::new(),
        1 => " and of one more app".to_owned(),
        _ => format!(" and of {others} more apps"),
    }
}

/// A source of the battery's state. It is low if one of them says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BatterySource {
    /// The kernel.
    Kernel,
    /// UPower, over the system bus.
    Upower,
}

/// The threads that call a volume, which want to know when one of them waits for the device.
pub trait CallingThreads: Send + Sync {
    /// The calling thread waits for a commit, until the value is dropped.
    fn waiting(&self) -> Box<dyn Send>;
}

/// The kernel's caches of names and objects, as far as they can be asked to forget.
pub trait KernelCache: Send + Sync {
    /// Asks the kernel to forget objects that no program uses. What it forgets it gives back by
    /// FORGET requests, as it always does; it may forget any part of them, or nothing. Called without
    /// locks, and by no thread that answers requests: the kernel may wait for requests that are
    /// under way.
    fn forget(&self, objects: &[KernelHeld]);
}
