//! What comes after a daemon that died: a successor, the last process, or none.

use std::time::Duration;

/// Pause before a new daemon after one that died before it was ready; twice as long each
/// time.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// After so many successors in a row that crashed before they were ready, there is no other one.
const CRASHES_MAX: u32 = 5;
/// After more kills from outside in a row there is no other daemon. These did nothing wrong, and the killer (the
/// kernel, when memory is short) may stop.
const KILLS_MAX: u32 = 100;
/// After this many hangs before readiness there is no other daemon: each takes minutes.
const HANGS_MAX: u32 = 2;
/// After this many crashes soon after readiness there is no other daemon.
const SHORT_LIVES_MAX: u32 = 10;
/// A daemon that lives so long after it was ready starts the counts anew.
const LONG_LIFE: Duration = Duration::from_secs(60);
/// Successors that may die after an end was requested.
const DEATHS_AT_END_MAX: u32 = 2;
/// Last processes that may die: two for each transaction that is passed over because of that.
const LASTS_MAX: u32 = 12;
/// Last processes that may die after an end was requested.
const LASTS_AT_END_MAX: u32 = 4;

/// How a daemon died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DeathCause {
    /// By what it did.
    Crashed,
    /// It could not take over, and reported that.
    Refused,
    /// It was killed from outside.
    Killed,
    /// It hung, so the supervisor killed it.
    Hung,
}

/// A daemon that died.
#[derive(Clone, Copy, Debug)]
pub(super) struct Death {
    pub(super) how: DeathCause,
    /// How long it lived after it was ready, if it ever was.
    pub(super) ready_for: Option<Duration>,
}

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextProcess {
    /// A daemon that takes over, after this pause.
    Successor(Duration),
    /// A process that only commits what is uncommitted, after this pause.
    Last(Duration),
    /// No process: the supervisor gives up.
    GiveUp,
}

/// The deaths so far.
#[derive(Debug, Default)]
pub(super) struct RestartPolicy {
    /// Deaths in a row of daemons that were not ready.
    unready: u32,
    /// Kills from outside in a row, the last of these deaths.
    kills: u32,
    /// Crashes among these deaths.
    crashes: u32,
    /// Hangs among these deaths.
    hangs: u32,
    /// Crashes of daemons that were ready only for a short time.
    short_lives: u32,
    /// The last daemon was killed from outside.
    was_killed: bool,
    /// Deaths since an end was requested.
    at_end: u32,
    /// Deaths of last processes; none: there was no last process.
    lasts: Option<u32>,
}

impl RestartPolicy {
    /// The last daemon was killed from outside: what it attempted is not to blame.
    pub(super) const fn last_was_killed(&self) -> bool {
        self.was_killed
    }

    /// What comes after this death. `is_end_wanted`: an end was requested.
    pub(super) fn after(&mut self, death: Death, is_end_wanted: bool) -> NextProcess {
        if let Some(lasts) = &mut self.lasts {
            *lasts += 1;
            let lasts_max = if is_end_wanted {
                LASTS_AT_END_MAX
            } else {
                LASTS_MAX
            };
            return if *lasts >= lasts_max {
                NextProcess::GiveUp
            } else {
                NextProcess::Last(pause_after(*lasts))
            };
        }
        self.count(death);
        self.at_end += u32::from(is_end_wanted);
        let is_hopeless = self.crashes >= CRASHES_MAX
            || self.kills > KILLS_MAX
            || self.hangs >= HANGS_MAX
            || self.short_lives >= SHORT_LIVES_MAX
            || self.at_end >= DEATHS_AT_END_MAX;
        if is_hopeless {
            return self.last();
        }
        NextProcess::Successor(pause_after(self.unready))
    }

    /// No other daemon is started: the last process comes.
    pub(super) fn last(&mut self) -> NextProcess {
        self.lasts.get_or_insert(0);
        NextProcess::Last(Duration::ZERO)
    }

    fn count(&mut self, death: Death) {
        self.was_killed = death.how == DeathCause::Killed;
        let Some(ready_for) = death.ready_for else {
            self.unready += 1;
            self.kills = if death.how == DeathCause::Killed {
                self.kills + 1
            } else {
                0
            };
            self.crashes += u32::from(death.how == DeathCause::Crashed);
            self.hangs += u32::from(death.how == DeathCause::Hung);
            return;
        };
        (self.unready, self.kills, self.crashes, self.hangs) = (0, 0, 0, 0);
        if ready_for >= LONG_LIFE {
            self.short_lives = 0;
        } else if death.how != DeathCause::Killed {
            self.short_lives += 1;
        }
    }
}

fn pause_after(deaths: u32) -> Duration {
    match deaths {
        0 | 1 => Duration::ZERO,
        _ => {
            let doubled = PAUSE_MIN.saturating_mul(1 << (deaths - 2).min(16));
            doubled.min(PAUSE_MAX)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READY: Death = Death {
        how: DeathCause::Crashed,
        ready_for: Some(Duration::from_secs(3)),
    };

    const fn unready(how: DeathCause) -> Death {
        Death {
            how,
            ready_for: None,
        }
    }

    /// How many deaths of this kind come before the last process.
    fn deaths_before_the_last(death: Death, is_end_wanted: bool) -> Option<u32> {
        let mut policy = RestartPolicy::default();
        (1..1000).find(|_| matches!(policy.after(death, is_end_wanted), NextProcess::Last(_)))
    }

    #[test]
    fn each_way_to_die_has_its_limit() {
        let before = |how| deaths_before_the_last(unready(how), false);
        assert_eq!(before(DeathCause::Crashed), Some(5));
        assert_eq!(before(DeathCause::Hung), Some(2));
        assert_eq!(before(DeathCause::Killed), Some(101));
        // The arena counts these, or not, where the lower filesystem is the reason.
        assert_eq!(before(DeathCause::Refused), None);
        assert_eq!(deaths_before_the_last(READY, false), Some(10));
        let killed = Death {
            how: DeathCause::Killed,
            ..READY
        };
        assert_eq!(deaths_before_the_last(killed, false), None);
        for death in [
            READY,
            killed,
            unready(DeathCause::Refused),
            unready(DeathCause::Hung),
        ] {
            assert_eq!(deaths_before_the_last(death, true), Some(2), "{death:?}");
        }
    }

    #[test]
    fn a_daemon_that_was_ready_ends_a_row() {
        let mut policy = RestartPolicy::default();
        for _ in 1..SHORT_LIVES_MAX {
            for _ in 1..CRASHES_MAX {
                let next = policy.after(unready(DeathCause::Crashed), false);
                assert!(matches!(next, NextProcess::Successor(_)), "{next:?}");
            }
            let next = policy.after(READY, false);
            assert_eq!(next, NextProcess::Successor(Duration::ZERO));
        }
        let long_life = Death {
            ready_for: Some(LONG_LIFE),
            ..READY
        };
        for _ in 0..100 {
            let next = policy.after(long_life, false);
            assert_eq!(next, NextProcess::Successor(Duration::ZERO));
        }
    }

    #[test]
    fn a_successor_learns_that_its_predecessor_was_killed_ready_or_not() {
        let mut policy = RestartPolicy::default();
        for (how, ready_for) in [
            (DeathCause::Killed, Some(Duration::ZERO)),
            (DeathCause::Crashed, None),
            (DeathCause::Killed, None),
            (DeathCause::Hung, Some(LONG_LIFE)),
        ] {
            policy.after(Death { how, ready_for }, false);
            assert_eq!(policy.last_was_killed(), how == DeathCause::Killed);
        }
    }

    #[test]
    fn after_the_last_process_comes_another_one_or_none() {
        let mut policy = RestartPolicy::default();
        assert_eq!(policy.last(), NextProcess::Last(Duration::ZERO));
        for _ in 1..LASTS_MAX {
            let next = policy.after(unready(DeathCause::Killed), false);
            assert!(matches!(next, NextProcess::Last(_)), "{next:?}");
        }
        assert_eq!(
            policy.after(unready(DeathCause::Crashed), false),
            NextProcess::GiveUp
        );
        assert_eq!(
            RestartPolicy::default().last(),
            NextProcess::Last(Duration::ZERO)
        );
        let mut policy = RestartPolicy {
            lasts: Some(LASTS_AT_END_MAX - 1),
            ..RestartPolicy::default()
        };
        assert_eq!(
            policy.after(unready(DeathCause::Hung), true),
            NextProcess::GiveUp
        );
    }
}
