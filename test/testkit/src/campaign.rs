//! Many searches on several threads.

use std::ops::AddAssign;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// How one history, which a seed decides, is searched for what must not happen.
pub trait Search: Sync {
    /// What was done.
    type Statistics: AddAssign + Default + Send;
    /// What must not happen.
    type Violation: Send;

    /// Searches the history of a seed; with `shrink`, a violation is made as small as it
    /// gets.
    ///
    /// # Errors
    /// The violation that was found.
    fn search(&self, seed: u64, shrink: bool) -> Result<Self::Statistics, Box<Self::Violation>>;
}

/// Searches through the histories of successive seeds.
#[derive(Clone, Copy, Debug)]
pub struct Campaign<S> {
    /// The first seed.
    pub first_seed: u64,
    /// Number of threads.
    pub threads: usize,
    /// How each history is searched.
    pub options: S,
    /// Whether a violation is shrunk.
    pub shrink: bool,
}

/// What a [`Campaign`] found.
#[derive(Debug)]
pub struct CampaignResult<S: Search> {
    /// What was done, all seeds together.
    pub statistics: S::Statistics,
    /// The first seed that was not used.
    pub next_seed: u64,
    /// The first violation.
    pub violation: Option<Box<S::Violation>>,
}

impl<S: Search> Campaign<S> {
    /// Goes on until `go_on`, which is called before each history, returns false or a violation is
    /// found.
    pub fn run(&self, go_on: impl Fn(&S::Statistics) -> bool + Sync) -> CampaignResult<S> {
        let next_seed = AtomicU64::new(self.first_seed);
        let found = Mutex::new((S::Statistics::default(), None));
        let work = || {
            while {
                let (statistics, violation) = &*found.lock();
                violation.is_none() && go_on(statistics)
            } {
                let seed = next_seed.fetch_add(1, Ordering::Relaxed);
                match self.options.search(seed, self.shrink) {
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

/// A number from the environment, to run a test with other seeds or for longer.
///
/// # Panics
/// If the variable is there and is no number.
pub fn number_from(variable: &str, default: u64) -> u64 {
    let Ok(text) = std::env::var(variable) else {
        return default;
    };
    text.parse()
        .unwrap_or_else(|_| panic!("{variable}={text} is no number"))
}
