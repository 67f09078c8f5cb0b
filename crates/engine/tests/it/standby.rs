//! What is committed when the screen is off, the battery low, or the user known to be gone.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail the test")]

use crate::support::{Bed, ROOT};
use mobifs_base::{MonotonicNs, ObjectId};
use mobifs_engine::policy::prediction::{PredictionRules, UserActivity, UserState};
use mobifs_engine::{
    AppPolicy, Limits, Machine, MachineEvent, Next, Pacing, PacingRules, TransactioningName,
    TransactioningRule,
};

const fn ms(ms: u64) -> MonotonicNs {
    MonotonicNs(ms * 1_000_000)
}

fn rules(standby_age_max_ms: u64) -> PacingRules {
    PacingRules {
        standby_age_max_ms,
        ..PacingRules::default()
    }
}

/// An app that commits every 20 s, or when it has written 8 pages; 30 s and 16 pages are
/// promised.
struct Device {
    bed: Bed,
    file: ObjectId,
    pacing: Pacing,
}

impl Device {
    fn new(standby_age_max_ms: u64) -> Self {
        let policy = AppPolicy {
            staleness_max_pages: 16,
            transactioning: TransactioningRule {
                name: TransactioningName::Interval,
                ..TransactioningRule::default()
            },
            ..AppPolicy::default()
        };
        let mut bed = Bed::new(policy, Limits::default());
        let app = bed.directory(ROOT, "app");
        let file = bed.file(app, "file");
        bed.checkpoint();
        let pacing = Pacing::new(rules(standby_age_max_ms));
        Self { bed, file, pacing }
    }

    fn write(&mut self, pages: u64) {
        for index in 0..pages {
            self.bed.write(self.file, index << 12, &[1; 4096]);
        }
    }

    /// What the checkpointer does at this moment: how many transactions it commits, and when
    /// it wants to look again, in milliseconds.
    fn step(&mut self, now_ms: u64, is_urgent: bool) -> (usize, Option<u64>) {
        self.bed.now_ms = now_ms;
        self.bed.engine.tick(ms(now_ms));
        let mut commits = 0;
        loop {
            match self
                .pacing
                .next(&mut self.bed.engine, ms(now_ms), is_urgent)
            {
                Next::Commit(commit) => {
                    self.bed.engine.committed(commit.transaction);
                    commits += 1;
                }
                Next::Nothing { until } => return (commits, until.map(|at| at.0 / 1_000_000)),
            }
        }
    }

    fn happens(&mut self, event: MachineEvent) -> bool {
        self.pacing.machine_event(event)
    }
}

#[test]
fn in_standby_only_the_promised_limits_commit() {
    let mut device = Device::new(0);
    assert!(device.happens(MachineEvent::ScreenOff));
    device.write(1);
    // The policy closes at 20 s, and no user was ever seen: without standby it would go now.
    assert_eq!(device.step(20_000, false), (0, Some(30_000)));
    assert_eq!(device.step(29_999, false), (0, Some(30_000)));
    assert_eq!(device.step(30_000, false), (1, None));
    device.write(16);
    assert_eq!(device.step(30_001, false).0, 1, "the limit of staleness");
    device.write(1);
    assert_eq!(device.step(50_001, true).0, 1, "memory is short");
}

#[test]
fn what_waited_goes_when_standby_ends() {
    let mut device = Device::new(0);
    assert!(device.happens(MachineEvent::ScreenOff));
    device.write(1);
    assert_eq!(device.step(20_000, false).0, 0);
    assert!(!device.happens(MachineEvent::ScreenOn));
    assert_eq!(device.step(20_000, false), (1, None));
}

#[test]
fn a_larger_limit_for_standby_puts_commits_off() {
    let mut device = Device::new(600_000);
    assert!(device.happens(MachineEvent::ScreenOff));
    device.write(1);
    // Closed at its 20 s, and counted from its first change.
    assert_eq!(device.step(20_000, false), (0, Some(600_000)));
    assert_eq!(device.step(599_999, false).0, 0);
    assert_eq!(device.step(600_000, false).0, 1);
    // One that is shorter than an app's own means nothing.
    device.pacing.set_rules(rules(5_000));
    device.write(1);
    assert_eq!(device.step(620_000, false), (0, Some(630_000)));
}

#[test]
fn a_low_battery_ends_the_putting_off() {
    let mut device = Device::new(600_000);
    assert!(device.happens(MachineEvent::ScreenOff));
    device.write(1);
    assert_eq!(device.step(20_000, false).0, 0);
    assert!(device.happens(MachineEvent::BatteryLow));
    assert_eq!(device.step(20_000, false).0, 1);
    device.write(1);
    assert_eq!(device.step(40_000, false).0, 1);
    assert!(!device.happens(MachineEvent::BatteryOk));
    device.write(1);
    assert_eq!(device.step(60_000, false).0, 0, "the screen is still off");
}

#[test]
fn what_asks_for_a_commit_of_everything() {
    let mut machine = Machine::default();
    assert!(machine.happened(MachineEvent::PowerGoes));
    assert!(machine.happened(MachineEvent::PowerGoes), "every time");
    assert!(machine.happened(MachineEvent::ScreenOff));
    assert!(!machine.happened(MachineEvent::ScreenOff), "it is no news");
    assert!(machine.is_standby());
    assert!(machine.happened(MachineEvent::BatteryLow));
    assert!(!machine.happened(MachineEvent::BatteryLow));
    assert!(machine.is_screen_off() && !machine.is_standby());
    assert!(!machine.happened(MachineEvent::ScreenOn));
    assert!(!machine.happened(MachineEvent::BatteryOk));
    assert_eq!(machine, Machine::default());
}

#[test]
fn a_user_who_has_left_is_away_until_the_next_event() {
    let mut user = UserActivity::new(&PredictionRules::default());
    user.left(ms(1_000));
    assert_eq!(
        user.state(ms(2_000)),
        UserState::Unknown,
        "no user was seen"
    );
    user.event(ms(5_000));
    assert!(matches!(user.state(ms(5_200)), UserState::Active { .. }));
    user.left(ms(5_050));
    let until = |at| UserState::Active { until: ms(at) };
    assert_eq!(user.state(ms(5_099)), until(5_100), "the drag goes on");
    let UserState::Away(first) = user.state(ms(5_100)) else {
        panic!("the user has left");
    };
    assert_eq!(first.rest_ns(ms(5_100)), 60_000_000_000);
    let UserState::Away(later) = user.state(ms(5_100 + 60_000)) else {
        panic!("the user has left");
    };
    assert_eq!(later.number, first.number + 1);
    user.event(ms(70_000));
    assert_eq!(user.state(ms(70_050)), until(70_100));
    // From here on it is what the predictor says.
    assert_eq!(user.state(ms(70_100)), until(71_000));
    let UserState::Away(predicted) = user.state(ms(71_000)) else {
        panic!("a long interval is predicted");
    };
    assert!(predicted.number < first.number);
}
