//! Finds a small history that still shows a violation.

use super::SearchOptions;
use super::operation::{After, History};
use super::run::run;

/// Leaving something out moves all later crash points, so each candidate is cut in
/// several ways before it counts as harmless.
const ATTEMPTS: u64 = 12;
/// Candidates tried at most.
const CANDIDATES_MAX: u32 = 2000;

struct Shrinker {
    options: SearchOptions,
    seed: u64,
    budget: u32,
    what: String,
}

/// Shrinks a history that fails; describes the smallest one found.
pub(super) fn shrink(history: &History, seed: u64, options: &SearchOptions) -> Option<String> {
    let options = SearchOptions {
        images_permille: 1000,
        ..*options
    };
    let mut shrinker = Shrinker {
        options,
        seed,
        budget: CANDIDATES_MAX,
        what: String::new(),
    };
    if !shrinker.fails(history) {
        return None;
    }
    let mut best = history.clone();
    loop {
        let before = best.operation_count() + best.steps.len();
        shrinker.drop_steps(&mut best);
        shrinker.drop_operations(&mut best);
        if best.operation_count() + best.steps.len() == before || shrinker.budget == 0 {
            return Some(format!("{}\n{best:#x?}", shrinker.what));
        }
    }
}

impl Shrinker {
    fn fails(&mut self, history: &History) -> bool {
        if self.budget == 0 {
            return false;
        }
        self.budget -= 1;
        (0..ATTEMPTS).any(
            |attempt| match run(history, self.seed + attempt, &self.options) {
                Ok(_) => false,
                Err(what) => {
                    self.what = what;
                    true
                }
            },
        )
    }

    /// Tries `smaller` and keeps it if it still fails.
    fn keep_if_failing(&mut self, best: &mut History, smaller: History) -> bool {
        let fails = smaller != *best && self.fails(&smaller);
        if fails {
            *best = smaller;
        }
        fails
    }

    fn drop_steps(&mut self, best: &mut History) {
        let mut smaller = best.clone();
        smaller.before.clear();
        self.keep_if_failing(best, smaller);
        for at in (0..best.steps.len()).rev() {
            let mut smaller = best.clone();
            smaller.steps.remove(at);
            if !self.keep_if_failing(best, smaller) {
                let mut smaller = best.clone();
                smaller.steps[at].after = After::Nothing;
                self.keep_if_failing(best, smaller);
            }
        }
    }

    fn drop_operations(&mut self, best: &mut History) {
        for at in (0..best.before.len()).rev() {
            let mut smaller = best.clone();
            smaller.before.remove(at);
            self.keep_if_failing(best, smaller);
        }
        for step in (0..best.steps.len()).rev() {
            for at in (0..best.steps[step].operations.len()).rev() {
                let mut smaller = best.clone();
                smaller.steps[step].operations.remove(at);
                self.keep_if_failing(best, smaller);
            }
        }
    }
}
