//! The fault search: random histories of a volume over the crash double in which calls to the lower
//! filesystem fail, compared with the promises of `docs/SEMANTICS.md`.
//!
//! A *fault point* is one run of a history in which one planned [`Fault`] fired: at any
//! call number (also of the mount and the unmount), for one call, for several or until
//! the end, with any error. For each one the search demands that
//!
//! * an operation that succeeded is in what the mount shows, and stays there; one that
//!   failed changed nothing, and fails only because a call failed under it, or because
//!   its app is read-only, which the status explains;
//! * `fsync` in a durable app, `mobifs sync` and the like succeed only if everything
//!   they promise survives a power cut; they fail only while calls fail;
//! * a power cut at any later moment leaves every app at one point of its history, and
//!   operations across apps in all of them or in none; a recovery in which calls fail
//!   says so, and the next one without finds the same;
//! * a daemon that is killed between two operations has a successor that shows the same;
//! * once nothing fails any more, `sync` succeeds, every app can be written again, all
//!   room is given back, and the unmounted store is that of the model, with nothing left
//!   in `stage` and `limbo`.

mod clock;
mod history;
mod image;
mod run;
mod shrink;

use std::fmt;

pub use clock::ClockKind;
pub use history::{History, Setting};
pub use run::run;

use crate::campaign::Search;
use crate::crash::{Calls, Fault, Harm};
use crate::random::Random;
use crate::statistics::statistics;

/// How thoroughly a history is searched.
#[derive(Clone, Copy, Debug)]
pub struct FaultSearchOptions {
    /// At how many of a thousand calls of a history a fault begins.
    pub calls_permille: u64,
    /// Which crash images are taken in each run.
    pub cuts: Cuts,
}

/// Which crash images a run takes once its fault has fired.
#[derive(Clone, Copy, Debug)]
pub struct Cuts {
    /// After how many of a thousand changes.
    pub permille: u64,
    /// How many at most, the one at the end included.
    pub images_max: u64,
}

impl Cuts {
    /// No power cuts.
    pub const NONE: Self = Self {
        permille: 0,
        images_max: 0,
    };
}

impl FaultSearchOptions {
    /// Histories under their limits, and nothing else.
    pub const WITHOUT_FAULTS: Self = Self {
        calls_permille: 0,
        cuts: Cuts::NONE,
    };
}

impl Default for FaultSearchOptions {
    fn default() -> Self {
        Self {
            calls_permille: 1000,
            cuts: Cuts {
                permille: 30,
                images_max: 2,
            },
        }
    }
}

statistics! {
    /// What a fault search did.
    pub struct FaultStatistics {
        /// Histories.
        pub histories: u64,
        /// Runs of them in which a planned fault fired.
        pub fault_points: u64,
        /// Those with a fault that lasted for more than one call.
        pub lasting: u64,
        /// Calls that failed.
        pub failed_calls: u64,
        /// Operations and requests that failed for that.
        pub failed_requests: u64,
        /// Runs in which an app became read-only.
        pub read_only: u64,
        /// Times that transactions which found no room were merged with what frees some.
        pub merges: u64,
        /// Daemons that were killed after such a merge.
        pub killed_after_merge: u64,
        /// Mounts that failed, and successors of killed daemons that did.
        pub failed_mounts: u64,
        /// Daemons that were killed.
        pub kills: u64,
        /// Crash images recovered and compared.
        pub crash_points: u64,
        /// Recoveries in which a call failed.
        pub recovery_faults: u64,
    }
}

impl fmt::Display for FaultStatistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} fault points ({} with more than one failing call) in {} histories: {} calls, {} \
             requests and {} mounts failed, in {} runs an app became read-only, {} times \
             transactions without room were merged; {} daemons killed, {} of them after that; \
             {} crash points; {} recoveries with a fault",
            self.fault_points,
            self.lasting,
            self.histories,
            self.failed_calls,
            self.failed_requests,
            self.failed_mounts,
            self.read_only,
            self.merges,
            self.kills,
            self.killed_after_merge,
            self.crash_points,
            self.recovery_faults,
        )
    }
}

/// A fault after which something was not as promised.
#[derive(Clone, Debug)]
pub struct FaultViolation {
    /// Seed of the history.
    pub seed: u64,
    /// The fault.
    pub fault: Option<Fault>,
    /// What is wrong.
    pub what: String,
    /// The shortest history found that shows a violation, with its fault.
    pub shrunk: Option<String>,
}

impl fmt::Display for FaultViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "history with seed {}, {:?}: {}",
            self.seed, self.fault, self.what
        )?;
        match &self.shrunk {
            Some(shrunk) => write!(f, "\nshrunk: {shrunk}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for FaultViolation {}

/// Errors that a lower filesystem may answer. Errors with a specific meaning (`ENOENT`, `EEXIST`,
/// `EOPNOTSUPP`, …) are not among them: a filesystem must return those correctly.
const ERRNOS: [i32; 7] = [
    5,   // EIO
    28,  // ENOSPC
    122, // EDQUOT
    30,  // EROFS
    24,  // EMFILE
    12,  // ENOMEM
    4,   // EINTR: where the store does not retry, it is an error like any other
];

/// How a fault that begins at this call may go on.
fn random_fault(first: u64, random: &mut Random) -> Fault {
    let calls = *random.pick(&[
        Calls::All,
        Calls::All,
        Calls::Changes,
        Calls::Changes,
        Calls::Journal,
        Calls::Syncs,
        Calls::Growing,
    ]);
    let count = match random.below(6) {
        0..3 => 1,
        3 => 2,
        4 => 3 + random.below(40),
        _ => u64::MAX,
    };
    let harm = *random.pick(&[
        Harm::Nothing,
        Harm::Nothing,
        Harm::Half,
        Harm::Everything,
        Harm::Lost,
    ]);
    match calls {
        // Room comes back now and then, not after a call.
        Calls::Growing => Fault {
            first,
            count: count.saturating_mul(20),
            calls,
            errno: 28,
            harm: Harm::Nothing,
        },
        calls => Fault {
            first,
            count,
            calls,
            errno: *random.pick(&ERRNOS),
            harm,
        },
    }
}

/// Runs the history of `seed` once without a fault, and then with one at every call, or
/// as many as the options say.
///
/// # Errors
/// The first [`FaultViolation`].
pub fn search(
    seed: u64,
    options: &FaultSearchOptions,
) -> Result<FaultStatistics, Box<FaultViolation>> {
    search_history(&History::random(seed), seed, options)
}

/// As [`search`], and shrinks what it finds.
///
/// # Errors
/// The first [`FaultViolation`], shrunk.
pub fn search_and_shrink(
    seed: u64,
    options: &FaultSearchOptions,
) -> Result<FaultStatistics, Box<FaultViolation>> {
    search(seed, options).map_err(|mut violation| {
        violation.shrunk = shrink::shrink(&History::random(seed), &violation);
        violation
    })
}

impl Search for FaultSearchOptions {
    type Statistics = FaultStatistics;
    type Violation = FaultViolation;

    fn search(&self, seed: u64, shrink: bool) -> Result<FaultStatistics, Box<FaultViolation>> {
        if shrink {
            search_and_shrink(seed, self)
        } else {
            search(seed, self)
        }
    }
}

/// As [`search`], with this history; `seed` determines the faults.
///
/// # Errors
/// The first [`FaultViolation`].
pub fn search_history(
    history: &History,
    seed: u64,
    options: &FaultSearchOptions,
) -> Result<FaultStatistics, Box<FaultViolation>> {
    let violation = |fault, what| {
        Box::new(FaultViolation {
            seed,
            fault,
            what,
            shrunk: None,
        })
    };
    let mut random = Random::new(seed ^ 0xfa17_5ea2_c400_0000);
    let whole = run(history, None, 0, Cuts::NONE).map_err(|what| violation(None, what))?;
    let mut total = FaultStatistics {
        histories: 1,
        ..FaultStatistics::default()
    };
    for first in 1..=whole.calls {
        if random.below(1000) >= options.calls_permille {
            continue;
        }
        let fault = random_fault(first, &mut random);
        let seed = random.below(u64::MAX);
        let outcome = run(history, Some(fault), seed, options.cuts)
            .map_err(|what| violation(Some(fault), what))?;
        total += outcome.statistics;
    }
    Ok(total)
}

/// Runs a history with a fault of the same kind at every call in turn; `fault.first` does
/// not matter.
///
/// # Errors
/// The first [`FaultViolation`].
pub fn search_every_call(
    history: &History,
    fault: Fault,
    cuts: Cuts,
) -> Result<FaultStatistics, Box<FaultViolation>> {
    let mut total = FaultStatistics::default();
    let mut first = 1;
    loop {
        let fault = Fault { first, ..fault };
        let outcome = run(history, Some(fault), first, cuts).map_err(|what| {
            Box::new(FaultViolation {
                seed: first,
                fault: Some(fault),
                what,
                shrunk: None,
            })
        })?;
        total += outcome.statistics;
        if outcome.statistics.fault_points == 0 {
            return Ok(total);
        }
        first += 1;
    }
}
