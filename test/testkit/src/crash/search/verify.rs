//! Recovers a crash image and compares.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use mobifs_store::{Gate, JournalOptions, JournalStore, RecoveryReport, Store, StoreError};
use parking_lot::Mutex;

use super::run::continue_history;
use super::tree::{Seen, Tree};
use super::walk::{walk_lower, walk_store};
use super::{SearchOptions, SearchStatistics};
use crate::crash::{CrashLower, Effect, Fate, Refusals, RefusedCalls, leftovers};
use crate::harness::demand_none_externally_modified;
use mobifs_numerics::Random;

/// How many of a thousand mounts are followed by one more before anything is applied.
const REOPENED_PERMILLE: u64 = 200;
/// How many of a thousand crash images are copied to another filesystem before they are mounted.
const COPIED_PERMILLE: u64 = 150;

/// What all parts of one search share.
pub(super) struct Search {
    pub(super) options: SearchOptions,
    pub(super) journal: JournalOptions,
    /// What the filesystem refuses while the history goes on, unknown to the store.
    pub(super) refusals: Refusals,
    shared: Mutex<Shared>,
}

struct Shared {
    dice: Random,
    statistics: SearchStatistics,
    violation: Option<String>,
}

/// A tree that a crash may leave.
#[derive(Clone)]
pub(super) struct Candidate {
    pub(super) tree: Arc<Tree>,
    pub(super) seen: Arc<Seen>,
}

impl Candidate {
    pub(super) fn new(tree: &Tree) -> Self {
        Self {
            tree: Arc::new(tree.clone()),
            seen: Arc::new(tree.seen()),
        }
    }
}

impl Search {
    pub(super) fn new(options: SearchOptions, journal: JournalOptions, seed: u64) -> Self {
        let shared = Shared {
            dice: Random::new(seed ^ 0x5eed_0fc4_a54e_5000),
            statistics: SearchStatistics::default(),
            violation: None,
        };
        Self {
            options,
            journal,
            refusals: refusals(seed),
            shared: Mutex::new(shared),
        }
    }

    /// Whether this is an error with which the lower filesystem refuses a call.
    pub(super) fn is_refusal(&self, error: &StoreError) -> bool {
        self.refusals.answer_with(error.errno())
    }

    /// A refusal may keep an object from its place. Nothing else may fail.
    pub(super) fn refusable(&self, done: Result<(), StoreError>) -> Result<(), String> {
        match done {
            Err(error) if self.is_refusal(&error) => {
                self.count(|statistics| statistics.refused += 1);
                Ok(())
            }
            done => done.map_err(text),
        }
    }

    pub(super) fn below(&self, bound: u64) -> u64 {
        self.shared.lock().dice.below(bound)
    }

    pub(super) fn chance(&self, permille: u64) -> bool {
        self.shared.lock().dice.permille(permille)
    }

    pub(super) fn count(&self, count: impl FnOnce(&mut SearchStatistics)) {
        count(&mut self.shared.lock().statistics);
    }

    pub(super) fn statistics(&self) -> SearchStatistics {
        self.shared.lock().statistics
    }

    /// Records a violation; only the first counts.
    pub(super) fn report(&self, what: String) {
        self.shared.lock().violation.get_or_insert(what);
    }

    pub(super) fn violation(&self) -> Option<String> {
        self.shared.lock().violation.clone()
    }

    pub(super) fn has_failed(&self) -> bool {
        self.shared.lock().violation.is_some()
    }

    /// A crash image of `lower` by a random way of choosing, with its description.
    pub(super) fn image(&self, lower: &CrashLower) -> (CrashLower, String) {
        let effects = lower.pending_effects().max(1) as u64;
        let mut dice = Random::new(self.shared.lock().dice.next_u64());
        let at = dice.below(effects);
        let likelihood = [20, 200, 500, 800, 980][dice.below(5) as usize];
        let kind = dice.below(8);
        let what = match kind {
            0 => "nothing landed".to_owned(),
            1 => "everything landed".to_owned(),
            2 => format!("only effect {at} of {effects} landed"),
            3 => format!("all but effect {at} of {effects} landed"),
            4 => format!("the first {at} of {effects} effects landed"),
            5 => format!("all but the first {at} of {effects} effects landed"),
            6 => "the namespace landed, content and attributes by chance".to_owned(),
            _ => format!("{likelihood} of 1000 of {effects} effects landed"),
        };
        let mut position = 0;
        let image = lower.crash_image(&mut |effect| {
            let now = position;
            position += 1;
            let lands = match kind {
                0 => false,
                1 => true,
                2 => now == at,
                3 => now != at,
                4 => now < at,
                5 => now >= at,
                6 => is_namespace(effect) || dice.permille(300),
                _ => dice.permille(likelihood),
            };
            if lands { Fate::Land } else { Fate::Vanish }
        });
        (image, what)
    }

    /// Recovers `image` and checks everything. `allowed` are the trees that may be
    /// found, in the order of their transactions.
    pub(super) fn check(
        self: &Arc<Self>,
        image: &CrashLower,
        allowed: &[Candidate],
        depth: u32,
        trail: &str,
    ) {
        if self.has_failed() {
            return;
        }
        self.count(|statistics| {
            statistics.crash_points += 1;
            statistics.during_recovery += u64::from(depth >= 1);
            statistics.during_nested_recovery += u64::from(depth >= 2);
        });
        let checked = catch_unwind(AssertUnwindSafe(|| {
            if self.chance(COPIED_PERMILLE) {
                return self.recover_copy(image, allowed, depth, trail);
            }
            self.recover(image, allowed, depth, trail)
        }));
        match checked {
            Ok(Ok(())) => {}
            Ok(Err(what)) => self.report(format!("{trail}: {what}")),
            Err(panic) => self.report(format!("{trail}: panic: {}", panic_text(&*panic))),
        }
    }

    /// Recovers a copy, whose inodes have other numbers. It may be refused, and is unchanged
    /// then.
    fn recover_copy(
        self: &Arc<Self>,
        image: &CrashLower,
        allowed: &[Candidate],
        depth: u32,
        trail: &str,
    ) -> Result<(), String> {
        let copy = image.copy(&mut |bound| self.below(bound));
        let probe = copy.copy(&mut |_| 0);
        let before = walk_lower(&copy).map_err(text)?;
        match JournalStore::open(Gate::new(probe.clone()), &self.journal) {
            Err(StoreError::Unsuitable(_)) => {
                self.count(|statistics| statistics.copies_refused += 1);
                let after = walk_lower(&probe).map_err(text)?;
                return match before.first_difference(&after) {
                    Some(difference) => {
                        Err(format!("a copy was refused and changed: {difference}"))
                    }
                    None => self.recover(image, allowed, depth, trail),
                };
            }
            opened => drop(opened),
        }
        self.count(|statistics| statistics.copies += 1);
        self.recover(&copy, allowed, depth, &format!("{trail}, copied"))
    }

    fn recover(
        self: &Arc<Self>,
        image: &CrashLower,
        allowed: &[Candidate],
        depth: u32,
        trail: &str,
    ) -> Result<(), String> {
        let nested = self.collect_nested(image, depth);
        let (store, report) = self.open(image)?;
        self.count(|statistics| {
            statistics.recovered_transactions += report.transactions;
            statistics.torn_tails += u64::from(report.discarded_tail_bytes > 0);
            statistics.unapplied += u64::from(!report.applied);
        });
        let found = find(
            &walk_store(&store).map_err(|error| error.to_string())?,
            allowed,
        )?;
        drop(store);
        self.reopen_unapplied(image, &found)?;
        let goes_on =
            depth < self.options.depth_max && self.chance(self.options.continued_permille);
        let applies = report.applied || !goes_on || self.chance(500);
        if applies {
            self.apply(image, &found)?;
        }
        image.clear_hook();
        for (cut, what) in std::mem::take(&mut *nested.lock()) {
            let trail = format!("{trail}; then {what}");
            self.check(&cut, std::slice::from_ref(&found), depth + 1, &trail);
        }
        if applies {
            self.reopen(image, &found)?;
        }
        if goes_on {
            self.count(|statistics| {
                statistics.continued += 1;
                statistics.continued_unapplied += u64::from(!applies);
            });
            continue_history(self, image, &found, depth + 1, trail)
                .map_err(|what| format!("recovered; going on: {what}"))?;
        }
        Ok(())
    }

    /// Now and then, mounts that only read and end before anything is applied.
    fn reopen_unapplied(&self, image: &CrashLower, found: &Candidate) -> Result<(), String> {
        while self.chance(REOPENED_PERMILLE) {
            let (store, report) = self.open(image)?;
            if !report.applied {
                self.count(|statistics| statistics.reopened_unapplied += 1);
            }
            self.compare(&store, found)
                .map_err(|what| format!("mounting once more: {what}"))?;
        }
        Ok(())
    }

    /// A mount that applies the journal, whether or not its content has been read before.
    fn apply(&self, image: &CrashLower, found: &Candidate) -> Result<(), String> {
        let (store, _) = self.open(image)?;
        if self.chance(500) {
            self.compare(&store, found)
                .map_err(|what| format!("before applying what was found: {what}"))?;
        }
        let applied = store.apply();
        let is_refused = applied.is_err();
        self.count(|statistics| statistics.recovered_refused += u64::from(is_refused));
        self.refusable(applied)
            .map_err(|error| format!("applying after recovery: {error}"))?;
        self.compare(&store, found)
            .map_err(|what| format!("after applying what was found: {what}"))?;
        // There is room again.
        image.set_refusals(Refusals::default());
        demand_none_externally_modified(&store)?;
        // A file is kept in limbo as long as it has names that were never looked up.
        store
            .close()
            .map_err(|error| format!("closing after recovery: {error}"))?;
        compare_lower(image, &found.seen)
    }

    fn compare(
        &self,
        store: &JournalStore<Gate<CrashLower>>,
        expected: &Candidate,
    ) -> Result<(), String> {
        let found = walk_store(store).map_err(|error| error.to_string())?;
        match expected.seen.first_difference(&found) {
            Some(difference) => Err(format!("the tree is another one: {difference}")),
            None => Ok(()),
        }
    }

    /// Collects crash images of what happens on `image` from now on.
    fn collect_nested(
        self: &Arc<Self>,
        image: &CrashLower,
        depth: u32,
    ) -> Arc<Mutex<Vec<(CrashLower, String)>>> {
        let nested = Arc::new(Mutex::new(Vec::new()));
        if depth < self.options.depth_max {
            let (search, collected) = (Arc::clone(self), Arc::clone(&nested));
            image.set_hook(Box::new(move |operation, lower| {
                // Fewer at greater depth, or the search would not end.
                let permille = search.options.nested_permille / u64::from((depth + 1).pow(2));
                if search.chance(permille) {
                    let (cut, what) = search.image(lower);
                    let what = format!("cut at operation {operation} of its recovery, {what}");
                    collected.lock().push((cut, what));
                }
            }));
        }
        nested
    }

    pub(super) fn open(
        &self,
        lower: &CrashLower,
    ) -> Result<(JournalStore<Gate<CrashLower>>, RecoveryReport), String> {
        JournalStore::open(Gate::new(lower.clone()), &self.journal)
            .map_err(|error| format!("opening the store: {error}"))
    }

    /// Opening again finds nothing to do and changes nothing.
    fn reopen(&self, image: &CrashLower, expected: &Candidate) -> Result<(), String> {
        let (store, report) = self.open(image)?;
        if report.transactions != 0 || report.discarded_tail_bytes != 0 {
            return Err(format!(
                "a second recovery still found something: {report:?}"
            ));
        }
        self.compare(&store, expected)
            .map_err(|what| format!("opening again: {what}"))?;
        drop(store);
        compare_lower(image, &expected.seen)
            .map_err(|difference| format!("after opening again: {difference}"))
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn is_namespace(effect: &Effect) -> bool {
    matches!(
        effect,
        Effect::Link { .. } | Effect::Unlink { .. } | Effect::Rename { .. }
    )
}

/// Some of the histories go on over a filesystem with limits that it does not report.
fn refusals(seed: u64) -> Refusals {
    let mut dice = Random::new(seed ^ 0x0be5_11c7_3d29_6f00);
    let mut some = |least: u64, most: u64| {
        let is_set = dice.permille(600);
        let limit = least + dice.below(most - least);
        is_set.then_some(limit)
    };
    let all = Refusals {
        names_max: some(0, 6).map(|max| max as usize),
        file_bytes_max: some(1 << 12, 1 << 17),
        symlink_bytes_max: some(1, 20).map(|max| max as usize),
        takes_no_overflow: some(0, 4) == Some(0),
        // Some more than a store has at its begin.
        inodes_max: some(11, 43).map(|max| max as usize),
        calls: some(20, 300).map(|permille| RefusedCalls { permille, seed }),
        takes_no_detached: some(0, 8) == Some(0),
    };
    if dice.permille(400) {
        all
    } else {
        Refusals::default()
    }
}

/// Which of the allowed trees was found; the newest if several look the same.
fn find(found: &Seen, allowed: &[Candidate]) -> Result<Candidate, String> {
    if let Some(candidate) = allowed
        .iter()
        .rev()
        .find(|candidate| candidate.seen.allows(found))
    {
        return Ok(candidate.clone());
    }
    let differences: Vec<String> = allowed
        .iter()
        .filter_map(|candidate| candidate.seen.first_difference(found))
        .collect();
    Err(format!(
        "the store shows none of {} possible trees: {}",
        allowed.len(),
        differences.join(" / ")
    ))
}

/// Compares the lower tree at rest.
pub(super) fn compare_lower(lower: &CrashLower, expected: &Seen) -> Result<(), String> {
    let found = walk_lower(lower).map_err(|error| format!("walking the lower tree: {error}"))?;
    if let Some(difference) = expected.first_difference(&found) {
        return Err(format!("the lower tree is wrong: {difference}"));
    }
    let left = leftovers(lower).map_err(|error| format!("looking into .mobifs: {error}"))?;
    if left.is_empty() {
        Ok(())
    } else {
        Err(format!("left behind: {}", left.join(", ")))
    }
}

/// What a panic said.
pub(super) fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_default()
}
