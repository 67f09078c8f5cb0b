//! Fault searches of many histories on several threads.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::{FaultSearchOptions, FaultStatistics, FaultViolation, search, search_and_shrink};

/// Searches the histories of successive seeds.
#[derive(Clone, Copy, Debug)]
pub struct Campaign {
    /// The first seed.
    pub first_seed: u64,
    /// Number of threads.
    pub threads: usize,
    /// How thoroughly each history is searched.
    pub options: FaultSearchOptions,
    /// Whether a violation is shrunk.
    pub shrink: bool,
}

/// What a [`Campaign`] found.
#[derive(Debug)]
pub struct CampaignResult {
    /// What was done, all seeds together.
    pub statistics: FaultStatistics,
    /// The first seed that was not used.
    pub next_seed: u64,
    /// The first violation.
    pub violation: Option<Box<FaultViolation>>,
}

impl Campaign {
    /// Goes on until `go_on`, which is asked before each history, says no or a violation
    /// is found.
    pub fn run(&self, go_on: impl Fn(&FaultStatistics) -> bool + Sync) -> CampaignResult {
        let next_seed = AtomicU64::new(self.first_seed);
        let found = Mutex::new((FaultStatistics::default(), None::<Box<FaultViolation>>));
        let work = || {
            while {
                let (statistics, violation) = &*found.lock();
                violation.is_none() && go_on(statistics)
            } {
                let seed = next_seed.fetch_add(1, Ordering::Relaxed);
                let run = if self.shrink {
                    search_and_shrink
                } else {
                    search
                };
                match run(seed, &self.options) {
                    Ok(statistics) => found.lock().0 += statistics,
                    Err(violation) => {
                        found.lock().1.get_or_insert(violation);
                    }
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..self.threads {
                scope.spawn(work);
            }
        });
        let (statistics, violation) = found.into_inner();
        CampaignResult {
            statistics,
            next_seed: next_seed.into_inner(),
            violation,
        }
    }
}
