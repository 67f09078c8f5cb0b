//! The life search: random histories of a volume over the crash double, whose daemon is killed and
//! whose power is cut, now and then under tight limits. A killed daemon's successor shows all that
//! was answered; what a cut leaves is one point of each app's history.

use std::fmt;

use crate::campaign::Search;
use crate::layout;
use crate::life::{LifeStatistics, Plan, live_and_count};
use crate::media::CrashMedium;
use crate::operations::{Profile, Script, generate};
use crate::random::Random;
use crate::shrink::shrink;

/// Every history is searched the same way.
#[derive(Clone, Copy, Debug)]
pub struct LifeSearch;

/// A history in which something was not as promised.
#[derive(Clone, Debug)]
pub struct LifeViolation {
    /// Under which limits.
    pub plan: Plan,
    /// The events, and the seed of them all.
    pub script: Script,
    /// What is wrong.
    pub what: String,
}

impl fmt::Display for LifeViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { plan, script, what } = self;
        write!(f, "{what}\n{plan:?}\n{script:?}")
    }
}

impl std::error::Error for LifeViolation {}

/// What a seed stands for.
fn random_history(seed: u64) -> (Plan, Script) {
    let mut random = Random::new(seed);
    let plan = Plan {
        layout: *random.pick(&layout::ALL),
        memory_budget_bytes: *random.pick(&[64 << 10, 256 << 10, 64 << 20]),
        objects_max: *random.pick(&[0, 1, 5, 20, 1000]),
        remembers_names: random.chance(50),
        tree_every: *random.pick(&[1, 10, usize::MAX]),
        outlives: true,
        ..Plan::default()
    };
    let profile = Profile {
        length: 20 + random.below(150) as usize,
        cross_percent: *random.pick(&[5, 20, 50]),
        checkpoints: true,
        cuts: random.below(3) as usize,
        kills: random.below(20) as usize,
        large: false,
        ..Profile::default()
    };
    let events = generate(&profile, random.below(u64::MAX));
    (plan, Script { seed, events })
}

fn run(script: &Script, plan: &Plan) -> Result<LifeStatistics, String> {
    live_and_count(script, &mut CrashMedium::new(script.seed), plan)
}

impl Search for LifeSearch {
    type Statistics = LifeStatistics;
    type Violation = LifeViolation;

    fn search(&self, seed: u64, shrink: bool) -> Result<LifeStatistics, Box<LifeViolation>> {
        let (plan, script) = random_history(seed);
        run(&script, &plan).map_err(|what| {
            let found = LifeViolation { plan, script, what };
            Box::new(if shrink { shrunk(found) } else { found })
        })
    }
}

/// The shortest history found that still shows a violation.
fn shrunk(found: LifeViolation) -> LifeViolation {
    let LifeViolation {
        plan,
        mut script,
        mut what,
    } = found;
    let seed = script.seed;
    shrink(&mut script.events, |events| {
        let script = Script {
            seed,
            events: events.to_vec(),
        };
        let outcome = run(&script, &plan);
        outcome.map_err(|found| what = found).is_err()
    });
    LifeViolation { plan, script, what }
}
