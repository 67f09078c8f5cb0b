//! Which snapshots are kept.

use std::time::Duration;

use crate::snapshot::Snapshot;
use crate::time::WallTime;

/// How many are kept, and how old they become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// No more than so many.
    pub count: u64,
    /// None that is older; none: of any age.
    pub age_max: Option<Duration>,
}

impl Retention {
    /// Those that are not kept any more, the oldest first, if so many are about to come.
    pub fn surplus(&self, snapshots: &[Snapshot], coming: u64, now: WallTime) -> Vec<Snapshot> {
        let in_order = oldest_first(snapshots, now);
        let room = self.count.saturating_sub(coming);
        let room = usize::try_from(room).unwrap_or(usize::MAX);
        let too_many = in_order.len().saturating_sub(room);
        let oldest = self.age_max.map(|age| now.before(age));
        let is_surplus = |(place, snapshot): &(usize, Snapshot)| {
            *place < too_many || oldest.is_some_and(|oldest| snapshot.time < oldest)
        };
        let surplus = in_order.into_iter().enumerate().filter(is_surplus);
        surplus.map(|(_, snapshot)| snapshot).collect()
    }
}

/// In the order in which they were taken. One whose moment has not come yet was taken before the clock
/// was set back, and so before all others.
pub(crate) fn oldest_first(snapshots: &[Snapshot], now: WallTime) -> Vec<Snapshot> {
    let mut in_order = snapshots.to_vec();
    in_order.sort_by_key(|snapshot| (snapshot.time <= now, snapshot.clone()));
    in_order
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshots(seconds: &[u64]) -> Vec<Snapshot> {
        let start = WallTime::parse("2026-11-27T16:00:00Z").unwrap();
        let at = |&second: &u64| {
            let time = start.before(Duration::from_secs(1_000 - second));
            Snapshot::new(time, second % 2 == 0)
        };
        seconds.iter().map(at).collect()
    }

    #[test]
    fn the_oldest_go_first() {
        let retention = Retention {
            count: 2,
            age_max: None,
        };
        let now = WallTime::parse("2026-11-27T16:00:00Z").unwrap();
        let all = snapshots(&[30, 10, 20]);
        assert_eq!(retention.surplus(&all, 0, now), snapshots(&[10]));
        assert_eq!(retention.surplus(&all, 1, now), snapshots(&[10, 20]));
        assert_eq!(retention.surplus(&all, 9, now), snapshots(&[10, 20, 30]));
        assert!(retention.surplus(&all[..2], 0, now).is_empty());
    }

    #[test]
    fn what_is_too_old_goes() {
        let retention = Retention {
            count: 10,
            age_max: Some(Duration::from_secs(980)),
        };
        let now = WallTime::parse("2026-11-27T16:00:00Z").unwrap();
        let all = snapshots(&[30, 10, 20]);
        assert_eq!(retention.surplus(&all, 1, now), snapshots(&[10]));
    }

    /// Each new snapshot was removed at once, as the oldest one, until the clock was where it had been.
    #[test]
    fn a_clock_that_was_set_back_does_not_take_new_snapshots() {
        let retention = Retention {
            count: 2,
            age_max: None,
        };
        // The clock has been at 900 and is at 20 again.
        let now = snapshots(&[20])[0].time;
        let all = snapshots(&[10, 20, 800, 900]);
        assert_eq!(retention.surplus(&all, 0, now), snapshots(&[800, 900]));
        assert_eq!(retention.surplus(&all, 1, now), snapshots(&[800, 900, 10]));
    }
}
