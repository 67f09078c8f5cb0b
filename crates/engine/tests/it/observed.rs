//! The one transaction of a store that collects changes by itself.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail the test")]

use mobifs_base::MonotonicNs;
use mobifs_engine::{
    AppPolicy, CommitQueue as _, MachineEvent, Next, ObservedTransaction, Pacing, PacingRules,
    TransactioningName, TransactioningRule,
};

const fn ms(ms: u64) -> MonotonicNs {
    MonotonicNs(ms * 1_000_000)
}

fn policy(name: TransactioningName) -> AppPolicy {
    AppPolicy {
        transactioning: TransactioningRule {
            name,
            ..TransactioningRule::default()
        },
        ..AppPolicy::default()
    }
}

/// What would be committed at this moment, and when to look again, in milliseconds.
fn step(
    observed: &mut ObservedTransaction,
    pacing: &mut Pacing,
    now_ms: u64,
) -> (bool, Option<u64>) {
    let due = observed.tick(ms(now_ms));
    match pacing.next(observed, ms(now_ms), false) {
        Next::Commit(_) => {
            observed.committed().unwrap();
            (true, None)
        }
        Next::Nothing { until } => {
            let look = [due, until].into_iter().flatten().min();
            (false, look.map(|at| at.0 / 1_000_000))
        }
    }
}

#[test]
fn the_policy_says_when_it_is_committed() {
    let mut pacing = Pacing::new(PacingRules::default());
    let mut observed = ObservedTransaction::new(policy(TransactioningName::Interval));
    assert_eq!(step(&mut observed, &mut pacing, 5), (false, None));
    observed.changed(ms(1_000), 1, 0);
    assert_eq!(
        step(&mut observed, &mut pacing, 1_000),
        (false, Some(21_000))
    );
    observed.changed(ms(20_000), 9, 3);
    let seen = observed.observed().unwrap();
    assert_eq!(seen.opened_at, ms(1_000));
    assert_eq!(seen.efficiency.written_pages(), 10);
    assert_eq!(seen.efficiency.overwritten_pages(), 3);
    assert_eq!(step(&mut observed, &mut pacing, 21_000), (true, None));
    assert_eq!(observed.observed(), None);

    let mut observed = ObservedTransaction::new(policy(TransactioningName::Quiet));
    observed.changed(ms(0), 1, 0);
    observed.changed(ms(6_000), 1, 0);
    assert_eq!(
        step(&mut observed, &mut pacing, 6_500),
        (false, Some(7_000))
    );
    assert_eq!(step(&mut observed, &mut pacing, 7_000), (true, None));
}

#[test]
fn the_limits_hold_whatever_the_policy_says() {
    let mut pacing = Pacing::new(PacingRules::default());
    let mut observed = ObservedTransaction::new(policy(TransactioningName::Staleness));
    let limit = observed.policy().staleness_max_pages;
    observed.changed(ms(0), limit, 0);
    assert!(step(&mut observed, &mut pacing, 1).0);
    observed.changed(ms(10), 1, 0);
    assert_eq!(step(&mut observed, &mut pacing, 10), (false, Some(30_010)));
    assert!(step(&mut observed, &mut pacing, 30_010).0);
    // Where a filesystem commits by itself, the age begins anew.
    observed.changed(ms(40_000), 1, 0);
    assert!(observed.committed().is_some());
    observed.changed(ms(50_000), 1, 0);
    assert_eq!(
        step(&mut observed, &mut pacing, 70_000),
        (false, Some(80_000))
    );
    let mut tighter = policy(TransactioningName::Staleness);
    tighter.age_max_ms = 5_000;
    observed.set_policy(tighter);
    assert!(step(&mut observed, &mut pacing, 70_000).0);
}

/// What is closed and waits for the user, or for the end of standby, is committed when it reaches
/// a limit.
#[test]
fn what_waits_is_committed_at_its_limit() {
    let mut pacing = Pacing::new(PacingRules::default());
    assert!(pacing.machine_event(MachineEvent::ScreenOff));
    let mut observed = ObservedTransaction::new(policy(TransactioningName::Interval));
    observed.changed(ms(0), 1, 0);
    assert_eq!(
        step(&mut observed, &mut pacing, 20_000),
        (false, Some(30_000))
    );
    assert_eq!(observed.waiting().len(), 1);
    assert!(step(&mut observed, &mut pacing, 30_000).0);
    // A user who is at work.
    assert!(!pacing.machine_event(MachineEvent::ScreenOn));
    observed.changed(ms(40_000), 1, 0);
    let mut now_ms = 40_000;
    while now_ms < 69_999 {
        pacing.user_event(ms(now_ms));
        assert!(!step(&mut observed, &mut pacing, now_ms).0, "at {now_ms}");
        now_ms += 50;
    }
    assert!(step(&mut observed, &mut pacing, 70_000).0);
}

/// A daemon that was not run for hours (stopped, or on a machine that slept and whose clock went on)
/// finds what is uncommitted too old at its first look, whatever it waits for, and then goes on as
/// ever. The wall clock is not asked.
#[test]
fn after_a_jump_of_the_clock_what_is_uncommitted_is_due_at_once() {
    const HOURS_MS: u64 = 9 * 3_600_000;
    for name in [
        TransactioningName::Interval,
        TransactioningName::Quiet,
        TransactioningName::Tpl,
        TransactioningName::Staleness,
        TransactioningName::Fsync,
    ] {
        for is_standby in [false, true] {
            let mut pacing = Pacing::new(PacingRules::default());
            if is_standby {
                assert!(pacing.machine_event(MachineEvent::ScreenOff));
            }
            let mut observed = ObservedTransaction::new(policy(name));
            observed.changed(ms(1_000), 1, 0);
            // A user who was at work just before.
            pacing.user_event(ms(1_500));
            assert!(!step(&mut observed, &mut pacing, 1_600).0, "{name:?}");
            let after_ms = 1_600 + HOURS_MS;
            assert!(step(&mut observed, &mut pacing, after_ms).0, "{name:?}");
            observed.changed(ms(after_ms + 1), 1, 0);
            let (is_due, until) = step(&mut observed, &mut pacing, after_ms + 1);
            assert!(!is_due, "{name:?}");
            let until = until.unwrap() - after_ms;
            assert!(
                until <= 1 + observed.policy().age_max_ms,
                "{name:?}: {until}"
            );
        }
    }
}
