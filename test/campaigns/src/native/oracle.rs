//! What a power cut may leave of a steered filesystem.
//!
//! Every writer numbers its steps, and notes when each began and when it had returned, by a clock that
//! all processes share (`CLOCK_BOOTTIME`). After a cut its directory must be as it was after one step,
//! perhaps with a part of the next. So the filesystem is as it was at a moment T that is
//!
//! * not before the last step that is there (or of which a part is there) *began*, and
//! * not after the first step that is missing had *returned*.
//!
//! The filesystem is **one point in time** if there is a T for which this holds of all writers: if no
//! step that is there began after another one had returned that is missing. T then is
//!
//! * not before the last commit that had been *asked for*, of those that had returned before the cut:
//!   `mobifs sync`, and each step of a writer whose calls wait; such a writer also has all its steps
//!   that had returned;
//! * not **older** than promised: the first step that is missing, whichever writer's it is, had returned
//!   at most `age_max_ms` and a slack before the cut. The slack is for the kernel, whose timer for
//!   commits is rounded up to a whole second and looks no earlier, and for the time that the commit takes.
//!
//! Stores into mappings are not part of T, as ext4 takes the pages of mappings one after the other while it
//! commits: a writer of one may be newer than T, which is counted, and older it may not be.
//!
//! A steered btrfs promises no T, only the last two: there the writer of records says how far *every* one of
//! its files is, and a snapshot that is called exact has to be one point in time like an ext4.
//!
//! Both bounds of T are wider than the truth, never narrower, so a violation is one.

use super::writers::{Found, Writer, app_name};
use crate::history::Step;

/// What a writer did, in order.
#[derive(Clone, Debug)]
pub(super) struct Log {
    pub(super) writer: Writer,
    /// Its calls for durability were waited for.
    pub(super) is_durable: bool,
    pub(super) started_ns: u64,
    pub(super) steps: Vec<Step>,
}

impl Log {
    pub(super) fn app(&self) -> String {
        app_name(self.writer, self.is_durable)
    }

    /// A step that has returned.
    fn step(&self, number: u64) -> Option<&Step> {
        let index = usize::try_from(number.checked_sub(1)?).ok()?;
        self.steps.get(index).filter(|step| step.number == number)
    }

    /// A moment before which a step did nothing.
    fn began_ns(&self, number: u64) -> u64 {
        match (self.step(number), number.checked_sub(1)) {
            (Some(step), _) => step.began_ns,
            (None, Some(before)) => self
                .step(before)
                .map_or(self.started_ns, |step| step.returned_ns),
            (None, None) => 0,
        }
    }

    /// The last step that had returned at `at_ns`.
    fn last_returned(&self, at_ns: u64) -> Option<&Step> {
        let count = self.steps.partition_point(|step| step.returned_ns <= at_ns);
        self.steps[..count].last()
    }
}

/// A commit that was asked for and has returned.
#[derive(Clone, Copy, Debug)]
pub(super) struct Commit {
    pub(super) asked_ns: u64,
    pub(super) returned_ns: u64,
}

/// What is promised of a cut.
#[derive(Clone, Copy, Debug)]
pub(super) struct Promise {
    /// When the power was cut.
    pub(super) cut_ns: u64,
    /// How old what is missing may be, with the slack.
    pub(super) age_max_ns: u64,
    /// Whether what is there is one point in time.
    pub(super) keeps_order: bool,
}

/// A bound of the moment to which a filesystem returned.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Bound {
    at_ns: u64,
    app: String,
    step: u64,
}

/// The verdict on one cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Verdict {
    /// Steps that are there, of all writers.
    pub(super) found: u64,
    /// Steps that had returned before the cut.
    pub(super) returned: u64,
    /// How long before the cut the first step that is missing had returned.
    pub(super) lost_ns: u64,
    /// How wide the bounds of the moment are.
    pub(super) width_ns: u64,
    /// A store into a mapping is there that is newer than the moment.
    pub(super) has_newer_mapping: bool,
}

/// What a cut left, and what is wrong with it; nothing wrong: no promise was broken.
pub(super) fn judge(
    logs: &[(Log, Option<Found>)],
    commits: &[Commit],
    promise: Promise,
) -> (Verdict, Vec<String>) {
    let mut judgement = Judgement::new(promise);
    for commit in commits {
        if commit.returned_ns <= promise.cut_ns {
            judgement.asked_for(commit.asked_ns, || ("mobifs sync".to_owned(), 0));
        }
    }
    for (log, found) in logs {
        judgement.hear(log, *found);
    }
    judgement.conclude();
    (judgement.verdict, judgement.problems)
}

struct Judgement {
    promise: Promise,
    verdict: Verdict,
    problems: Vec<String>,
    /// Not before this.
    lower: Option<Bound>,
    /// When the newest step began whose stores into a mapping are there.
    mapped_ns: u64,
    /// Not after this.
    upper: Option<Bound>,
    /// The last commit that had returned.
    asked: Option<Bound>,
}

impl Judgement {
    fn new(promise: Promise) -> Self {
        Self {
            promise,
            verdict: Verdict::default(),
            problems: Vec::new(),
            lower: None,
            mapped_ns: 0,
            upper: None,
            asked: None,
        }
    }

    fn asked_for(&mut self, at_ns: u64, whose: impl FnOnce() -> (String, u64)) {
        if self.asked.as_ref().is_none_or(|last| last.at_ns < at_ns) {
            let (app, step) = whose();
            self.asked = Some(Bound { at_ns, app, step });
        }
    }

    /// A writer, and the state that the cut left.
    fn hear(&mut self, log: &Log, found: Option<Found>) {
        let cut_ns = self.promise.cut_ns;
        let returned = log.last_returned(cut_ns);
        self.verdict.returned += returned.map_or(0, |step| step.number);
        if let Some(step) = returned.filter(|_| log.is_durable) {
            self.asked_for(step.began_ns, || (log.app(), step.number));
            if let Some(found) = found.filter(|found| found.step < step.number) {
                self.problems.push(format!(
                    "{} is after step {}, but its calls were waited for and step {} had returned {} \
                     before the cut",
                    log.app(),
                    found.step,
                    step.number,
                    shown(cut_ns - step.returned_ns)
                ));
            }
        }
        let Some(found) = found else { return };
        self.verdict.found += found.step;
        let step = found.step + u64::from(found.next_began);
        let stamp_ns = found.stamp_ns.filter(|_| !found.next_began);
        let at_ns = stamp_ns.unwrap_or_else(|| log.began_ns(step));
        let app = log.app();
        if at_ns > cut_ns {
            self.problems
                .push(format!("{app}: step {step} began after the cut"));
        }
        let (lower, upper) = (&mut self.lower, &mut self.upper);
        if log.writer.stores_into_mappings() {
            self.mapped_ns = self.mapped_ns.max(at_ns);
        } else if lower.as_ref().is_none_or(|bound| bound.at_ns < at_ns) {
            *lower = Some(Bound {
                at_ns,
                app: app.clone(),
                step,
            });
        }
        if let Some(missing) = log.step(found.step + 1) {
            let (at_ns, step) = (missing.returned_ns, missing.number);
            if upper.as_ref().is_none_or(|bound| bound.at_ns > at_ns) {
                *upper = Some(Bound { at_ns, app, step });
            }
        }
    }

    /// All writers were heard.
    fn conclude(&mut self) {
        // Nothing is missing.
        let Some(upper) = self.upper.take() else {
            return;
        };
        let missing = format!("step {} of {}", upper.step, upper.app);
        self.verdict.has_newer_mapping = self.mapped_ns > upper.at_ns;
        if let Some(lower) = self.lower.take() {
            if lower.step > 0 {
                self.verdict.width_ns = upper.at_ns.saturating_sub(lower.at_ns);
            }
            if lower.at_ns > upper.at_ns && self.promise.keeps_order {
                self.problems.push(format!(
                    "not one point in time: step {} of {} is there, which began {} after {missing} \
                     had returned, which is missing",
                    lower.step,
                    lower.app,
                    shown(lower.at_ns - upper.at_ns)
                ));
            }
        }
        let asked = self.asked.take();
        if let Some(asked) = asked.filter(|asked| asked.at_ns > upper.at_ns) {
            self.problems.push(format!(
                "what was committed is missing: {missing} had returned {} before {} (step {}) asked \
                 for a commit that had returned before the cut",
                shown(asked.at_ns - upper.at_ns),
                asked.app,
                asked.step
            ));
        }
        let lost_ns = self.promise.cut_ns.saturating_sub(upper.at_ns);
        self.verdict.lost_ns = lost_ns;
        if lost_ns > self.promise.age_max_ns {
            self.problems.push(format!(
                "too old: {missing} had returned {} before the cut, promised with the slack are {}",
                shown(lost_ns),
                shown(self.promise.age_max_ns)
            ));
        }
    }
}

fn shown(ns: u64) -> String {
    format!("{:.3} ms", ns as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Step `n` begins at `n * every` and has returned 4 later.
    fn log(writer: Writer, every: u64, count: u64) -> Log {
        let step = |number| Step {
            number,
            began_ns: number * every,
            returned_ns: number * every + 4,
        };
        Log {
            writer,
            is_durable: false,
            started_ns: 0,
            steps: (1..=count).map(step).collect(),
        }
    }

    fn found(step: u64) -> Option<Found> {
        Some(Found {
            step,
            next_began: false,
            stamp_ns: None,
        })
    }

    fn problems(logs: &[(Log, Option<Found>)], commits: &[Commit], age_max_ns: u64) -> String {
        let promise = Promise {
            cut_ns: 1_000,
            age_max_ns,
            keeps_order: true,
        };
        judge(logs, commits, promise).1.join("; ")
    }

    #[test]
    fn a_moment_that_holds_for_all_is_a_point_in_time() {
        let (fast, slow) = (log(Writer::Records, 10, 99), log(Writer::Git, 100, 9));
        let of = |a, b| [(fast.clone(), found(a)), (slow.clone(), found(b))];
        for (a, b) in [(50, 5), (50, 4), (49, 4), (59, 5), (59, 6), (60, 5)] {
            assert_eq!(problems(&of(a, b), &[], 1_000), "", "{a} {b}");
        }
        // Step 4 of git returned at 404; record 41 began at 410.
        for (a, b) in [(41, 3), (90, 7), (39, 5), (1, 2)] {
            let problems = problems(&of(a, b), &[], 1_000);
            assert!(problems.contains("not one point"), "{a} {b}: {problems}");
        }
        // A part of a step is as old as its beginning.
        let part = Found {
            next_began: true,
            ..found(40).unwrap()
        };
        let logs = [(fast.clone(), Some(part)), (slow.clone(), found(3))];
        assert!(problems(&logs, &[], 1_000).contains("step 41 of records is there"));
        // A program whose last step is unknown proves nothing.
        let logs = [(fast, found(41)), (slow, None)];
        assert_eq!(problems(&logs, &[], 1_000), "");
    }

    #[test]
    fn a_mapping_may_be_newer_and_not_older() {
        let (records, stores) = (log(Writer::Records, 10, 99), log(Writer::Stores, 10, 99));
        let of = |a, b| [(records.clone(), found(a)), (stores.clone(), found(b))];
        let promise = Promise {
            cut_ns: 1_000,
            age_max_ns: 1_000,
            keeps_order: true,
        };
        let (verdict, problems) = judge(&of(50, 60), &[], promise);
        assert!(problems.is_empty() && verdict.has_newer_mapping);
        let (verdict, problems) = judge(&of(60, 50), &[], promise);
        assert!(problems[0].contains("not one point") && !verdict.has_newer_mapping);
    }

    #[test]
    fn what_was_asked_for_is_there() {
        let logs = [(log(Writer::Records, 10, 99), found(50))];
        let commit = |asked_ns, returned_ns| Commit {
            asked_ns,
            returned_ns,
        };
        assert_eq!(problems(&logs, &[commit(514, 900)], 1_000), "");
        assert_eq!(problems(&logs, &[commit(515, 1_001)], 1_000), "");
        let missing = problems(&logs, &[commit(515, 900), commit(100, 200)], 1_000);
        assert!(
            missing.contains("what was committed is missing"),
            "{missing}"
        );
    }

    #[test]
    fn a_writer_that_waits_takes_all_others_with_it() {
        let durable = Log {
            is_durable: true,
            ..log(Writer::RowsWal, 100, 9)
        };
        let records = log(Writer::Records, 10, 99);
        let of = |a, b| [(records.clone(), found(a)), (durable.clone(), found(b))];
        assert_eq!(problems(&of(90, 9), &[], 1_000), "");
        assert!(problems(&of(89, 8), &[], 1_000).contains("its calls were waited for"));
        let other = problems(&of(88, 9), &[], 1_000);
        assert!(other.contains("what was committed is missing"), "{other}");
    }

    #[test]
    fn age_counts_from_the_first_step_that_is_missing() {
        let logs = [(log(Writer::Records, 10, 200), found(50))];
        assert_eq!(problems(&logs, &[], 486), "");
        assert!(problems(&logs, &[], 485).contains("too old"));
        // Nothing is missing.
        assert_eq!(
            problems(&[(log(Writer::Records, 10, 50), found(50))], &[], 1),
            ""
        );
        let late = [(log(Writer::Records, 10, 200), found(101))];
        assert!(problems(&late, &[], 485).contains("after the cut"));
    }
}
