//! Finds a small history that still shows a violation.

use super::SearchOptions;
use super::operation::{After, History};
use super::run::run;
use crate::shrink::shrink as leave_out;

/// Leaving a step out moves all later crash points, so each candidate is cut in
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

    /// Whether a history that is not `best` fails as well.
    fn still_fails(&mut self, best: &History, change: impl FnOnce(&mut History)) -> bool {
        let mut candidate = best.clone();
        change(&mut candidate);
        candidate != *best && self.fails(&candidate)
    }

    fn drop_steps(&mut self, best: &mut History) {
        let mut steps = best.steps.clone();
        leave_out(&mut steps, |steps| {
            self.still_fails(best, |candidate| candidate.steps = steps.to_vec())
        });
        best.steps = steps;
        for at in (0..best.steps.len()).rev() {
            if self.still_fails(best, |candidate| candidate.steps[at].after = After::Nothing) {
                best.steps[at].after = After::Nothing;
            }
        }
    }

    fn drop_operations(&mut self, best: &mut History) {
        let mut before = best.before.clone();
        leave_out(&mut before, |before| {
            self.still_fails(best, |candidate| candidate.before = before.to_vec())
        });
        best.before = before;
        for step in (0..best.steps.len()).rev() {
            let mut operations = best.steps[step].operations.clone();
            leave_out(&mut operations, |operations| {
                self.still_fails(best, |candidate| {
                    candidate.steps[step].operations = operations.to_vec();
                })
            });
            best.steps[step].operations = operations;
        }
    }
}
