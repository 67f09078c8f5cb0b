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
    /// What is wrong, roughly: a history that fails in another way does not count.
    kind: String,
    what: String,
}

/// The first words of what is wrong, without the crashes before and without numbers
/// and names.
fn kind_of(what: &str) -> String {
    let what = what.split_once(": ").map_or(what, |(_, what)| what);
    what.chars()
        .take_while(|c| !c.is_ascii_digit() && *c != '"')
        .collect()
}

/// Shrinks a history that fails with `what`; describes the smallest one found.
pub(super) fn shrink(
    history: &History,
    what: &str,
    seed: u64,
    options: &SearchOptions,
) -> Option<String> {
    // A violation that needs no second history and no second crash is easier to
    // understand, and what is random cannot be shrunk.
    let simplest = SearchOptions {
        images_permille: 1000,
        continued_permille: 0,
        depth_max: 0,
        ..*options
    };
    let nested = SearchOptions {
        depth_max: options.depth_max,
        ..simplest
    };
    let continued = SearchOptions {
        continued_permille: options.continued_permille,
        ..nested
    };
    let mut shrinker = [simplest, nested, continued]
        .into_iter()
        .find_map(|options| {
            let mut shrinker = Shrinker {
                options,
                seed,
                budget: CANDIDATES_MAX,
                kind: kind_of(what),
                what: String::new(),
            };
            shrinker.fails(history).then_some(shrinker)
        })?;
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
                    let same = kind_of(&what) == self.kind;
                    if same {
                        self.what = what;
                    }
                    same
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
