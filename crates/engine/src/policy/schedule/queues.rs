//! Three queues and four rules (S0 §5.4).

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use mobifs_base::{AppId, TransactionId};

use super::{Round, TransactionScheduler, Waiting};

/// The most urgent queue; the others are 1 and 0.
const QUEUE_TOP: u8 = 2;

/// An app that was skipped in so many intervals is committed in the next, whatever its
/// length.
pub const SKIPS_MAX: u32 = 8;

/// The queue position of an app.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    queue: u8,
    /// Intervals in which it was skipped since something of it was last chosen.
    skips: u32,
}

/// The published scheduler. Apps are in queues:
///
/// 1. *Affinity*: an app that an interval skips moves to the next higher queue; of an app
///    that is chosen, further transactions go before those of others.
/// 2. *Age*: an app begins in the lowest queue. If nothing in any queue is feasible, the
///    shortest first transaction in the highest queue that is not empty goes.
/// 3. *Length*: an app is feasible if its first transaction fits into what is left of
///    the interval.
/// 4. *Replenishment*: what is left of an app that was chosen goes back to the lowest
///    queue.
///
/// The rules alone let a long transaction starve while short ones of others come
/// again and again, so there is a fifth of ours: an app skipped [`SKIPS_MAX`] times goes
/// first. So the transaction at place n of its app is chosen in the (n + 1) ×
/// (`SKIPS_MAX` + 1)th interval at the latest.
#[derive(Clone, Debug, Default)]
pub struct ThreeQueues {
    places: BTreeMap<AppId, Place>,
    /// The interval that was last scheduled.
    round: Option<u64>,
}

/// Apps that wait, with their transactions in order.
type Apps = BTreeMap<AppId, Vec<Waiting>>;

impl TransactionScheduler for ThreeQueues {
    fn choose(&mut self, waiting: &[Waiting], round: &Round) -> Vec<TransactionId> {
        let mut apps = Apps::new();
        for transaction in waiting {
            apps.entry(transaction.app).or_default().push(*transaction);
        }
        self.places.retain(|app, _| apps.contains_key(app));
        for app in apps.keys() {
            self.places.entry(*app).or_default();
        }
        let is_new_round = self.round.replace(round.number) != Some(round.number);
        let at_least = self.shortest(&apps).filter(|_| is_new_round);
        let mut rest_ns = round.available_ns;
        let mut chosen = Vec::new();
        for app in self.by_urgency(&apps) {
            let is_overdue = self.place(app).skips >= SKIPS_MAX;
            let taken = take(&apps[&app], is_overdue, &mut rest_ns, round);
            self.move_app(app, !taken.is_empty(), is_new_round);
            chosen.extend(taken);
        }
        if chosen.is_empty()
            && let Some(first) = at_least
        {
            self.move_app(first.app, true, is_new_round);
            chosen.push(first.id);
        }
        chosen
    }
}

impl ThreeQueues {
    fn place(&self, app: AppId) -> Place {
        self.places.get(&app).copied().unwrap_or_default()
    }

    /// Overdue ones first, then from the highest queue down; within a queue the one
    /// that has waited longest, then the one that closed first.
    fn by_urgency(&self, apps: &Apps) -> Vec<AppId> {
        let mut order: Vec<AppId> = apps.keys().copied().collect();
        order.sort_by_key(|app| {
            let Place { queue, skips } = self.place(*app);
            let first = apps[app].first().map(|first| first.id);
            core::cmp::Reverse((skips >= SKIPS_MAX, queue, skips, core::cmp::Reverse(first)))
        });
        order
    }

    /// Rules 1 and 4: where the app goes after it was looked at.
    fn move_app(&mut self, app: AppId, is_chosen: bool, is_new_round: bool) {
        let place = self.places.entry(app).or_default();
        if is_chosen {
            *place = Place::default();
        } else if is_new_round {
            place.queue = (place.queue + 1).min(QUEUE_TOP);
            place.skips += 1;
        }
    }

    /// What rule 2 commits where nothing is feasible, once in an interval.
    fn shortest(&self, apps: &Apps) -> Option<Waiting> {
        let firsts = apps.values().filter_map(|waiting| waiting.first());
        firsts
            .min_by_key(|first| {
                let place = self.place(first.app);
                (core::cmp::Reverse(place.queue), first.pages, first.id)
            })
            .copied()
    }
}

/// The first transactions of an app that fit (rules 1 and 3); at least one if it is
/// overdue.
fn take(
    waiting: &[Waiting],
    is_overdue: bool,
    rest_ns: &mut u64,
    round: &Round,
) -> Vec<TransactionId> {
    let mut taken = Vec::new();
    for transaction in waiting {
        let commit_ns = round.device.commit_ns(transaction.pages);
        if commit_ns > *rest_ns && !(is_overdue && taken.is_empty()) {
            break;
        }
        *rest_ns = rest_ns.saturating_sub(commit_ns);
        taken.push(transaction.id);
    }
    taken
}
