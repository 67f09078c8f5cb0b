//! Where transactions close, against the published rule computed in another way.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail the test")]

use crate::support::{Bed, ROOT};
use mobifs_base::{MonotonicNs, ObjectId};
use mobifs_engine::policy::transactioning::{
    Efficiency, FitWindow, FsyncParameters, IntervalParameters, QuietParameters,
    StalenessParameters, TplParameters, Transactioning as _, TransactioningName,
    TransactioningRule,
};
use mobifs_engine::{AppPolicy, AppRules, Class, Limits, SyncPoint};

/// What happens in a transaction, page by page.
#[derive(Clone, Copy, Debug)]
enum Step {
    New,
    Overwrite,
    Drop(u64),
}

/// e in percent, as a whole number of 2^-20: the precision that the rule is kept with.
fn ratio(written: u64, overwritten: u64) -> i128 {
    ((i128::from(overwritten) * 100) << 20) / i128::from(written)
}

/// The published rule, from its text: after each page written, fit a line through the
/// last k values of e by the textbook formula, and close when its slope is below the
/// threshold and the staleness not below the minimum. Returns the steps after which it
/// closes, each beginning a new curve.
fn published_closings(steps: &[Step], parameters: &TplParameters) -> Vec<usize> {
    let (mut written, mut overwritten) = (0_u64, 0_u64);
    let mut curve: Vec<i128> = Vec::new();
    let mut closings = Vec::new();
    for (at, step) in steps.iter().enumerate() {
        match step {
            Step::New => written += 1,
            Step::Overwrite => {
                written += 1;
                overwritten += 1;
            }
            Step::Drop(pages) => {
                overwritten = (overwritten + pages).min(written);
                continue;
            }
        }
        curve.push(ratio(written, overwritten));
        let points = parameters.window_points;
        if curve.len() < points || written < parameters.staleness_min_pages {
            continue;
        }
        let (numerator, denominator) = slope(&curve[curve.len() - points..]);
        // numerator / denominator / 2^20 % < threshold / 10^6 %
        let threshold = i128::from(parameters.slope_min_micropercent);
        if numerator * 1_000_000 < threshold * (denominator << 20) {
            closings.push(at);
            (written, overwritten) = (0, 0);
            curve.clear();
        }
    }
    closings
}

/// n Σxy − Σx Σy over n Σx² − (Σx)², summed anew.
fn slope(values: &[i128]) -> (i128, i128) {
    let n = values.len() as i128;
    let (mut sx, mut sy, mut sxy, mut sxx) = (0, 0, 0, 0);
    for (x, y) in values.iter().enumerate() {
        let x = x as i128;
        sx += x;
        sy += y;
        sxy += x * y;
        sxx += x * x;
    }
    (n * sxy - sx * sy, n * sxx - sx * sx)
}

fn closings(steps: &[Step], rule: &TransactioningRule) -> Vec<usize> {
    let (mut efficiency, mut policy) = (Efficiency::default(), rule.begin());
    let mut closings = Vec::new();
    for (at, step) in steps.iter().enumerate() {
        match step {
            Step::Drop(pages) => {
                efficiency.pages_dropped(*pages);
                continue;
            }
            Step::New | Step::Overwrite => {
                efficiency.page_written(matches!(step, Step::Overwrite));
                policy.page_written(&efficiency);
            }
        }
        if policy.is_due(&efficiency, 0) {
            closings.push(at);
            (efficiency, policy) = (Efficiency::default(), rule.begin());
        }
    }
    closings
}

/// Numbers that look random and are the same everywhere.
fn noise(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut state = seed;
    move |below| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    }
}

/// Phases of overwriting and of new data in turn, as apps have them.
fn phases(seed: u64, drops: bool) -> Vec<Step> {
    let mut noise = noise(seed);
    let mut steps = Vec::new();
    for _ in 0..40 {
        let of_hundred = noise(101);
        for _ in 0..50 + noise(400) {
            let is_overwrite = noise(100) < of_hundred;
            steps.push([Step::New, Step::Overwrite][usize::from(is_overwrite)]);
            if drops && noise(40) == 0 {
                steps.push(Step::Drop(1 + noise(8)));
            }
        }
    }
    steps
}

fn tpl(parameters: TplParameters) -> TransactioningRule {
    TransactioningRule {
        name: TransactioningName::Tpl,
        tpl: parameters,
        ..TransactioningRule::default()
    }
}

#[test]
fn tpl_closes_exactly_where_the_published_rule_says() {
    for window_points in [2, 3, 8, 16, 64, 1024] {
        let mut closed = 0;
        for slope_min_micropercent in [-500_000, -20_000, -1_703, 0, 3_001] {
            for (staleness_min_pages, seed) in [(0, 1), (128, 2), (700, 3)] {
                let parameters = TplParameters {
                    staleness_min_pages,
                    slope_min_micropercent,
                    window_points,
                };
                for drops in [false, true] {
                    let steps = phases(seed, drops);
                    let expected = published_closings(&steps, &parameters);
                    let got = closings(&steps, &tpl(parameters));
                    assert_eq!(got, expected, "{parameters:?}, drops: {drops}");
                    closed += expected.len();
                }
            }
        }
        assert!(closed > 20, "{closed} closings of {window_points} points");
    }
}

#[test]
fn published_rule_on_hand_computed_steps() {
    // 99 of 100 pages overwritten, then only new ones: e falls from 99 % by 99/s % a
    // page. The window of 16 reaches −0.02 % while it still has mostly old points, but
    // nothing is looked at below 128 pages.
    let mut steps = vec![Step::New];
    steps.extend([Step::Overwrite; 99]);
    steps.extend([Step::New; 100]);
    let published = tpl(TplParameters::default());
    assert_eq!(closings(&steps, &published)[0], 127);
    // A file rewritten for ever never closes by its curve; nor does one that grows.
    for step in [Step::Overwrite, Step::New] {
        assert_eq!(closings(&[step; 5_000], &published), [0; 0]);
    }
    // Without the minimum it closes at the second new page after the peak: the first
    // leaves the slope of the fit at (0.97 % lower at the end of a rising window) above
    // the threshold or not, which the textbook formula decides.
    let eager = tpl(TplParameters {
        staleness_min_pages: 0,
        ..TplParameters::default()
    });
    let expected = published_closings(&steps, &eager.tpl);
    assert!((100..104).contains(&expected[0]), "{expected:?}");
    assert_eq!(closings(&steps, &eager), expected);
    // A threshold that no slope is below.
    let never = tpl(TplParameters {
        slope_min_micropercent: i64::MIN,
        ..TplParameters::default()
    });
    assert_eq!(closings(&steps, &never), [0; 0]);
}

#[test]
fn the_incremental_fit_is_the_least_squares_fit() {
    let mut noise = noise(7);
    for points in [2, 5, 16, 1024] {
        let mut window = FitWindow::new(points);
        let mut all = Vec::new();
        for _ in 0..3_000 {
            let y = noise(100 << 20) as i64;
            window.push(y);
            all.push(i128::from(y));
            let expected = (all.len() >= points).then(|| slope(&all[all.len() - points..]));
            let got = window.slope_numerator();
            let got = got.map(|numerator| (numerator.into(), window.slope_denominator().into()));
            assert_eq!(got, expected);
        }
    }
}

#[test]
fn the_other_policies_close_where_they_say() {
    let rule = |name| TransactioningRule {
        name,
        interval: IntervalParameters { interval_ms: 700 },
        staleness: StalenessParameters { staleness_pages: 9 },
        fsync: FsyncParameters {
            flush_interval_ms: 300,
        },
        ..TransactioningRule::default()
    };
    let steps = [Step::New; 30];
    let staleness = rule(TransactioningName::Staleness);
    assert_eq!(closings(&steps, &staleness), [8, 17, 26]);
    let nothing = Efficiency::default();
    for (name, age_ms) in [
        (TransactioningName::Interval, 700),
        (TransactioningName::Fsync, 300),
    ] {
        let policy = rule(name).begin();
        assert_eq!(closings(&steps, &rule(name)), [0; 0]);
        assert!(!policy.is_due(&nothing, age_ms - 1) && policy.is_due(&nothing, age_ms));
        assert_eq!(policy.due_age_ms(), Some(age_ms));
    }
    let ideal = rule(TransactioningName::Ideal).begin();
    assert!(!ideal.is_due(&nothing, u64::MAX) && !ideal.is_bounded());
    let at_fsync = TransactioningName::ALL.map(|name| rule(name).begin().closes_at_fsync());
    assert_eq!(at_fsync, [false, false, false, false, true, false]);
}

#[test]
fn quiet_closes_in_the_first_pause_after_its_age() {
    let rule = TransactioningRule {
        name: TransactioningName::Quiet,
        quiet: QuietParameters {
            quiet_ms: 100,
            quiet_age_min_ms: 1_000,
        },
        ..TransactioningRule::default()
    };
    let nothing = Efficiency::default();
    let mut policy = rule.begin();
    // A pause before the age does not count; one that reaches over it ends there.
    policy.operation_ended(300);
    assert!(!policy.is_due(&nothing, 999) && policy.is_due(&nothing, 1_000));
    assert_eq!(policy.due_age_ms(), Some(1_000));
    // After the age every change postpones it.
    for age_ms in [950, 1_020, 1_100, 1_199] {
        policy.operation_ended(age_ms);
        assert!(!policy.is_due(&nothing, age_ms + 99));
        assert_eq!(policy.due_age_ms(), Some(age_ms + 100));
    }
    assert!(policy.is_due(&nothing, 1_299));
}

#[test]
fn quiet_keeps_a_burst_together_and_the_limit_holds() {
    let mut policy = AppPolicy {
        age_max_ms: 3_000,
        ..AppPolicy::default()
    };
    policy.transactioning.name = TransactioningName::Quiet;
    policy.transactioning.quiet = QuietParameters {
        quiet_ms: 500,
        quiet_age_min_ms: 1_000,
    };
    let mut bed = Bed::new(policy, Limits::default());
    let app = bed.directory(ROOT, "app");
    let file = bed.file(app, "file");
    bed.checkpoint();
    // Writes every 100 ms; returns when transactions closed.
    let mut burst = |from_ms: u64, to_ms: u64| {
        let mut closed_at = Vec::new();
        for now_ms in (from_ms..to_ms).step_by(100) {
            bed.now_ms = now_ms;
            bed.engine.tick(bed.moment().now);
            if !bed.drain().is_empty() {
                closed_at.push(now_ms);
            }
            bed.write(file, 0, b"burst");
        }
        let pause_ends = bed.engine.tick(bed.moment().now);
        let at = |ms: u64| MonotonicNs(ms * 1_000_000);
        assert_eq!(pause_ends, Some(at(to_ms + 400)));
        bed.engine.tick(at(to_ms + 400));
        assert_eq!(bed.drain().len(), 1);
        closed_at
    };
    assert_eq!(burst(10_000, 12_000), [0; 0], "a burst is not cut");
    // One that never ends is cut by the limit.
    assert_eq!(burst(20_000, 27_000), [23_000, 26_000]);
}

#[test]
fn names_are_found_again() {
    for name in TransactioningName::ALL {
        assert_eq!(TransactioningName::from_name(name.as_str()), Some(name));
    }
    assert_eq!(TransactioningName::from_name("TPL"), None);
}

/// Each app has the policy that it is named after.
struct NamedAfterPolicies;

impl AppRules for NamedAfterPolicies {
    fn is_app(&self, path: &[u8]) -> bool {
        !path.contains(&b'/')
    }

    fn has_apps_below(&self, _path: &[u8]) -> bool {
        false
    }

    fn policy(&self, path: &[u8]) -> AppPolicy {
        let name = str::from_utf8(path).ok();
        let transactioning = TransactioningRule {
            name: name
                .and_then(TransactioningName::from_name)
                .unwrap_or_default(),
            staleness: StalenessParameters { staleness_pages: 6 },
            ..TransactioningRule::default()
        };
        AppPolicy {
            transactioning,
            age_max_ms: 20_000,
            staleness_max_pages: 40,
            ..AppPolicy::default()
        }
    }
}

/// A committed file in each of these apps.
fn apps<const N: usize>(names: [&str; N]) -> (Bed, [(ObjectId, ObjectId); N]) {
    let mut bed = Bed::with_rules(Box::new(NamedAfterPolicies), Limits::default());
    let made = names.map(|name| {
        let app = bed.directory(ROOT, name);
        (app, bed.file(app, "file"))
    });
    bed.checkpoint();
    (bed, made)
}

/// Writes single pages until the transaction closes; returns how many.
fn writes_until_closed(bed: &mut Bed, file: ObjectId) -> u64 {
    for index in 0..1_000 {
        bed.write(file, index << 12, &[b'x'; 4096]);
        if bed.engine.has_closed() {
            bed.drain();
            return index + 1;
        }
    }
    0
}

#[test]
fn every_policy_but_the_ideal_one_is_bounded_by_the_limits() {
    for name in TransactioningName::ALL {
        let (mut bed, [(_, file)]) = apps([name.as_str()]);
        let expected = match name {
            TransactioningName::Staleness => 6,
            TransactioningName::Ideal => 0,
            _ => 40,
        };
        assert_eq!(writes_until_closed(&mut bed, file), expected, "{name:?}");
        bed.checkpoint();
        bed.write(file, 0, &[b'y'; 4096]);
        let age_ms = match name {
            TransactioningName::Fsync | TransactioningName::Quiet => Some(5_000),
            TransactioningName::Ideal => None,
            _ => Some(20_000),
        };
        let deadline = bed.engine.tick(bed.moment().now);
        assert_eq!(deadline, age_ms.map(|ms| MonotonicNs(ms * 1_000_000)));
        bed.engine.tick(MonotonicNs(u64::MAX));
        assert_eq!(bed.engine.has_closed(), age_ms.is_some(), "{name:?}");
    }
}

#[test]
fn joined_apps_close_when_the_policy_of_one_says_so() {
    let (mut bed, [(of_tpl, tpl_file), (of_staleness, _)]) = apps(["tpl", "staleness"]);
    // Two entries: the rename joins the transactions of both.
    bed.rename((of_staleness, "file"), (of_tpl, "other"));
    assert_eq!(writes_until_closed(&mut bed, tpl_file), 4);
    // Alone again, it closes by its own.
    assert_eq!(writes_until_closed(&mut bed, tpl_file), 40);
}

#[test]
fn at_fsync_the_transaction_closes_if_the_policy_of_its_app_wants_that() {
    let (mut bed, [(of_tpl, tpl_file), (of_fsync, fsync_file)]) = apps(["tpl", "fsync"]);
    bed.write(tpl_file, 0, b"x");
    bed.write(fsync_file, 0, b"x");
    assert_eq!(bed.engine.sync_point(tpl_file), SyncPoint::Now);
    assert!(!bed.engine.has_closed());
    assert_eq!(bed.engine.sync_point(fsync_file), SyncPoint::Now);
    assert_eq!(bed.drain().len(), 1);
    // Joined, each app's `fsync` means what its own policy says.
    bed.rename((of_fsync, "file"), (of_tpl, "other"));
    assert_eq!(bed.engine.sync_point(tpl_file), SyncPoint::Now);
    assert!(!bed.engine.has_closed());
    assert_eq!(bed.engine.sync_point(of_fsync), SyncPoint::Now);
    assert!(bed.engine.has_closed());
}

#[test]
fn a_policy_that_changes_while_a_transaction_is_open_holds_for_it() {
    let policy = AppPolicy {
        class: Class::Relaxed,
        ..AppPolicy::default()
    };
    let mut bed = Bed::new(policy, Limits::default());
    let app = bed.directory(ROOT, "staleness");
    let file = bed.file(app, "file");
    bed.checkpoint();
    (0..20).for_each(|index| bed.write(file, index << 12, &[b'x'; 4096]));
    assert!(!bed.engine.has_closed());
    bed.engine.set_rules(Box::new(NamedAfterPolicies));
    bed.engine.tick(bed.moment().now);
    assert!(bed.engine.has_closed());
}
