//! Flushed bytes against what is at risk: every policy over the range of its parameters.

use mobifs_engine::AppPolicy;
use mobifs_engine::policy::transactioning::TransactioningName;
use mobifs_numerics::{geometric_mean, mean};
use serde::Serialize;

use super::DeviceChoice;
use super::compare::{ComparisonError, NamedStream, run_all};
use super::contender::Contender;
use super::groups::{AppGroup, app_groups, counted};
use super::outcome::Outcome;

/// A policy with one choice of its parameters.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The policy's name.
    pub family: &'static str,
    /// The keys of the configuration that choose it.
    pub settings: String,
    /// What the engine gets.
    pub policy: AppPolicy,
}

impl Candidate {
    /// As a contender of a comparison.
    pub fn contender(&self) -> Contender {
        Contender::engine(format!("{}:{}", self.family, self.settings), self.policy)
    }
}

/// How one app, over all its users, or the mean of all apps fared under a candidate.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Standing {
    /// Flushed pages, in parts of what ext4 flushed.
    pub flushed_vs_ext4: f64,
    /// Mean over time of the age of the oldest change at risk, in seconds.
    pub age_mean_seconds: f64,
    /// Mean over time of the bytes at risk.
    pub bytes_mean: f64,
}

/// A candidate and how it fared.
#[derive(Clone, Debug, Serialize)]
pub struct FrontierPoint {
    /// The policy's name.
    pub family: String,
    /// The keys of the configuration that choose it.
    pub settings: String,
    /// Geometric mean of the flushed pages, arithmetic means of the rest, over all apps.
    pub mean: Standing,
    /// Each app, in the order of [`Frontier::apps`].
    pub apps: Vec<Standing>,
}

/// All candidates.
#[derive(Clone, Debug, Serialize)]
pub struct Frontier {
    /// Program and app of each column.
    pub apps: Vec<String>,
    /// The candidates.
    pub points: Vec<FrontierPoint>,
}

const SECONDS_MS: [u64; 12] = [
    500, 1_000, 2_000, 3_000, 5_000, 7_000, 10_000, 15_000, 20_000, 30_000, 45_000, 60_000,
];

/// Every policy over the range of its parameters.
pub fn candidates() -> Vec<Candidate> {
    let mut candidates = Vec::new();
    intervals(&mut candidates);
    staleness(&mut candidates);
    efficiency(&mut candidates);
    pauses(&mut candidates);
    candidates.push(Candidate {
        family: Contender::PUBLISHED,
        settings: String::new(),
        policy: Contender::published_policy(),
    });
    candidates.push(candidate(TransactioningName::Ideal, String::new(), |_| {}));
    candidates
}

fn candidate(
    name: TransactioningName,
    settings: String,
    set: impl FnOnce(&mut AppPolicy),
) -> Candidate {
    let mut policy = AppPolicy {
        age_max_ms: 60_000,
        ..AppPolicy::default()
    };
    policy.transactioning.name = name;
    set(&mut policy);
    Candidate {
        family: name.as_str(),
        settings,
        policy,
    }
}

fn intervals(candidates: &mut Vec<Candidate>) {
    for interval_ms in SECONDS_MS {
        let settings = format!("interval_ms={interval_ms},age_max_ms=60000");
        candidates.push(candidate(
            TransactioningName::Interval,
            settings,
            |policy| {
                policy.transactioning.interval.interval_ms = interval_ms;
            },
        ));
    }
}

fn staleness(candidates: &mut Vec<Candidate>) {
    for pages in [32, 64, 128, 256, 512, 1_024, 2_048, 4_096] {
        let settings = format!("staleness_bytes={}KiB,age_max_ms=60000", pages * 4);
        candidates.push(candidate(
            TransactioningName::Staleness,
            settings,
            |policy| {
                policy.transactioning.staleness.staleness_pages = pages;
            },
        ));
    }
}

fn efficiency(candidates: &mut Vec<Candidate>) {
    for slope in [-5_000, -20_000, -80_000, -320_000] {
        for pages in [32, 128, 512] {
            for age_max_ms in [10_000, 30_000, 60_000] {
                let settings = format!(
                    "slope_min_micropercent={slope},staleness_min_bytes={}KiB,\
                     age_max_ms={age_max_ms}",
                    pages * 4
                );
                candidates.push(candidate(TransactioningName::Tpl, settings, |policy| {
                    policy.age_max_ms = age_max_ms;
                    policy.transactioning.tpl.slope_min_micropercent = slope;
                    policy.transactioning.tpl.staleness_min_pages = pages;
                }));
            }
        }
    }
}

fn pauses(candidates: &mut Vec<Candidate>) {
    for quiet_ms in [100, 200, 500, 1_000, 2_000] {
        for quiet_age_min_ms in [1, 2_000, 5_000, 10_000, 15_000, 20_000] {
            for age_max_ms in [10_000, 30_000, 60_000] {
                if quiet_age_min_ms >= age_max_ms {
                    continue;
                }
                let settings = format!(
                    "quiet_ms={quiet_ms},quiet_age_min_ms={quiet_age_min_ms},\
                     age_max_ms={age_max_ms}"
                );
                candidates.push(candidate(TransactioningName::Quiet, settings, |policy| {
                    policy.age_max_ms = age_max_ms;
                    policy.transactioning.quiet.quiet_ms = quiet_ms;
                    policy.transactioning.quiet.quiet_age_min_ms = quiet_age_min_ms;
                }));
            }
        }
    }
}

/// Runs every candidate over every trace, on all CPUs.
///
/// # Errors
/// As [`super::compare`].
pub fn frontier(
    traces: &[NamedStream],
    candidates: &[Candidate],
    device: &DeviceChoice,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Frontier, ComparisonError> {
    let contenders: Vec<Contender> = std::iter::once(Contender::ext4())
        .chain(candidates.iter().map(Candidate::contender))
        .collect();
    let runs = run_all(traces, &contenders, device, progress)?;
    let count = contenders.len();
    let of = |contender: usize| -> Vec<&Outcome> {
        let runs = runs.iter().skip(contender).step_by(count);
        runs.map(|(outcome, _)| outcome).collect()
    };
    let reference = of(0);
    let (groups, _) = counted(app_groups(traces), &reference);
    let points = candidates.iter().enumerate().map(|(number, candidate)| {
        let outcomes = of(number + 1);
        let groups = groups.iter();
        let apps: Vec<Standing> = groups
            .map(|group| standing(group, &outcomes, &reference))
            .collect();
        FrontierPoint {
            family: candidate.family.to_owned(),
            settings: candidate.settings.clone(),
            mean: over_all(&apps),
            apps,
        }
    });
    let points = points.collect();
    Ok(Frontier {
        apps: groups.into_iter().map(|group| group.name).collect(),
        points,
    })
}

fn standing(group: &AppGroup, outcomes: &[&Outcome], reference: &[&Outcome]) -> Standing {
    let members = group.members.iter();
    let apps = members.map(|member| &outcomes[member.trace].apps[member.app]);
    let users = group.members.len().max(1) as f64;
    let age_ms: f64 = apps.clone().map(|app| app.age_ms().mean()).sum();
    let bytes: f64 = apps.map(|app| app.at_risk_bytes().mean()).sum();
    let (flushed, reference) = (
        group.flushed_pages(outcomes),
        group.flushed_pages(reference),
    );
    Standing {
        flushed_vs_ext4: flushed as f64 / reference as f64,
        age_mean_seconds: age_ms / users / 1e3,
        bytes_mean: bytes / users,
    }
}

/// Over no app at all: the same as ext4, and nothing at risk.
fn over_all(apps: &[Standing]) -> Standing {
    // An app that flushed nothing at all would make the geometric mean 0.
    let flushed = apps.iter().map(|app| app.flushed_vs_ext4.max(1e-3));
    let ages = apps.iter().map(|app| app.age_mean_seconds);
    let bytes = apps.iter().map(|app| app.bytes_mean);
    Standing {
        flushed_vs_ext4: geometric_mean(flushed).unwrap_or(1.0),
        age_mean_seconds: mean(ages).unwrap_or(0.0),
        bytes_mean: mean(bytes).unwrap_or(0.0),
    }
}

impl Frontier {
    /// The points that no other point beats in both flushed pages and age, by age.
    pub fn efficient(&self) -> Vec<&FrontierPoint> {
        let mut points: Vec<&FrontierPoint> = self.points.iter().collect();
        points.sort_by(|one, other| {
            one.mean
                .age_mean_seconds
                .total_cmp(&other.mean.age_mean_seconds)
        });
        let mut least = f64::INFINITY;
        points.retain(|point| {
            let is_better = point.mean.flushed_vs_ext4 < least;
            least = least.min(point.mean.flushed_vs_ext4);
            is_better
        });
        points
    }
}
