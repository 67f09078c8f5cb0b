//! Finds a small history that still shows a violation.

use super::operation::{After, History};
use crate::shrink::shrink as leave_out;

/// Leaving a step out moves all later crash points, so each candidate is cut or killed in
/// several ways before it counts as harmless.
const ATTEMPTS: u64 = 12;
/// Candidates tried at most.
const CANDIDATES_MAX: u32 = 2000;

struct Shrinker<R> {
    /// Runs a history with a seed.
    run: R,
    seed: u64,
    budget: u32,
    /// What is wrong, roughly: a history that fails in another way does not count.
    kind: String,
    what: String,
}

/// The first words of what is wrong, without the kills and crashes before and without numbers
/// and names.
fn kind_of(mut what: &str) -> String {
    while let Some((_, after)) = what
        .strip_prefix("killed ")
        .and_then(|rest| rest.split_once("; "))
    {
        what = after;
    }
    let what = what.split_once(": ").map_or(what, |(_, what)| what);
    what.chars()
        .take_while(|c| !c.is_ascii_digit() && *c != '"')
        .collect()
}

/// Shrinks a history that fails with `what`; describes the smallest one found. `ways`: how it may
/// be run, the simplest first; the first one in which it fails is kept to.
pub(super) fn shrink<O: Copy>(
    history: &History,
    what: &str,
    seed: u64,
    ways: &[O],
    run: impl Fn(&History, u64, &O) -> Result<(), String>,
) -> Option<String> {
    let run = &run;
    let mut shrinker = ways.iter().find_map(|&options| {
        let mut shrinker = Shrinker {
            run: move |history: &History, seed| run(history, seed, &options),
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

impl<R: Fn(&History, u64) -> Result<(), String>> Shrinker<R> {
    fn fails(&mut self, history: &History) -> bool {
        if self.budget == 0 {
            return false;
        }
        self.budget -= 1;
        (0..ATTEMPTS).any(|attempt| match (self.run)(history, self.seed + attempt) {
            Ok(()) => false,
            Err(what) => {
                let same = kind_of(&what) == self.kind;
                if same {
                    self.what = what;
                }
                same
            }
        })
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

#[cfg(test)]
mod tests {
    use super::super::operation::{Step, Verb};
    use super::*;

    #[test]
    fn what_is_wrong_is_the_same_after_other_kills() {
        let wrong = [
            "killed after operation 7; resuming: object 5 is gone",
            "killed after a telling, operation 9; killed after operation 12; resuming: object 61 is gone",
            "object 7 is gone",
        ];
        for what in wrong {
            assert_eq!(kind_of(what), "object ");
        }
        let cut =
            "killed after operation 7; power cut at operation 8, all lands: the tree \"a\" differs";
        assert_eq!(kind_of(cut), "the tree ");
        assert_eq!(kind_of("killed"), "killed");
    }

    /// A history fails if it makes a directory and then something follows its transaction; in the second way
    /// only.
    #[test]
    fn a_history_is_shrunk_to_what_matters_in_the_first_way_that_fails() {
        let makes = |step: &Step| {
            let mut operations = step.operations.iter();
            operations.any(|one| one.verb == Verb::CreateDirectory)
        };
        let run = |history: &History, _, way: &u32| {
            let fails = |step: &Step| makes(step) && step.after != After::Nothing;
            if *way == 2 && history.steps.iter().any(fails) {
                return Err(format!(
                    "killed after operation {}; wrong",
                    history.steps.len()
                ));
            }
            Ok(())
        };
        let failing = (0..1000)
            .map(History::random)
            .find(|history| run(history, 0, &2).is_err());
        let history = failing.unwrap();
        let wrong = run(&history, 0, &2).unwrap_err();
        let shrunk = shrink(&history, &wrong, 0, &[1, 2], run).unwrap();
        let (what, described) = shrunk.split_once('\n').unwrap();
        assert_eq!(what, "killed after operation 1; wrong");
        assert_eq!(described.matches("Operation {").count(), 1, "{described}");
        assert!(described.contains("CreateDirectory"), "{described}");
        assert_eq!(shrink(&history, &wrong, 0, &[1], run), None);
    }
}
