//! One value for each app: S0 Figures 5, 6 and 13. An app that several people used has one value
//! for all of them.

use mobifs_charts::{Bars, PlotError};
use mobifs_numerics::{TimeHistogram, geometric_mean, mean};

use super::bars::BarFigure;
use super::figure::Figure;
use super::published::{APPS, FOOTPRINT_KB_PER_SECOND, FOOTPRINT_WORST_KB_PER_SECOND};
use super::unit::{Of, Unit};
use crate::sim::{Contender, Intervals, PAGES_MIN};

const PAGE_BYTES: f64 = 4096.0;
/// Room for one group of bars where there is enough.
const GROUP_WIDTH: u32 = 56;
/// A picture is no smaller than this, and no larger: it must be readable on a page.
const WIDTHS: std::ops::RangeInclusive<u32> = 640..=1_200;

pub(super) fn figures(units: &[Unit<'_>]) -> Result<Vec<Figure>, PlotError> {
    Ok(vec![footprint(units)?, intervals(units)?, flushed(units)?])
}

/// Ours first, then the published apps; a series has values for some of them.
struct Table {
    categories: Vec<String>,
    series: Vec<(String, Vec<Option<f64>>)>,
}

impl Table {
    fn new(units: &[Unit<'_>], others: &[String]) -> Self {
        let ours = units.iter().map(|unit| unit.name.clone());
        Self {
            categories: ours.chain(others.iter().cloned()).collect(),
            series: Vec::new(),
        }
    }

    /// Adds a series; what is missing at its end has no value.
    fn add(&mut self, name: &str, values: impl Iterator<Item = Option<f64>>) {
        let mut values: Vec<Option<f64>> = values.collect();
        values.resize(self.categories.len(), None);
        self.series.push((name.to_owned(), values));
    }

    fn figure(
        self,
        (name, title): (&str, &str),
        (caption, y_label): (&str, &'static str),
        remark: String,
    ) -> Result<Figure, PlotError> {
        let width = GROUP_WIDTH * self.categories.len() as u32;
        let figure = BarFigure {
            name,
            title,
            caption,
            category: "app",
            y_label,
            decimals: 2,
            width: width.clamp(*WIDTHS.start(), *WIDTHS.end()),
            bars: Bars {
                categories: self.categories,
                series: self.series,
            },
            remark,
        };
        figure.draw()
    }
}

fn published_names() -> impl Iterator<Item = String> {
    APPS.iter().map(|app| format!("{}*", app.name))
}

/// Growth of memory that has this distribution over so many seconds, in KB a second: the
/// slope of the line with the same integral (S0 §7.2, footnote 4).
fn growth_kb_per_second(memory: &TimeHistogram, seconds: f64) -> f64 {
    if seconds > 0.0 {
        2.0 * memory.mean() / 1e3 / seconds
    } else {
        0.0
    }
}

/// Growth of one copy of each page, if nothing is ever flushed.
pub(super) fn one_version(unit: &Unit<'_>) -> f64 {
    mean(
        unit.users
            .iter()
            .map(|user| growth_kb_per_second(user.ideal.at_risk_bytes(), user.duration_seconds)),
    )
    .unwrap_or(0.0)
}

/// Growth with what transactions have closed and no checkpoint has written.
pub(super) fn with_versions(unit: &Unit<'_>) -> f64 {
    mean(
        unit.users
            .iter()
            .map(|user| growth_kb_per_second(user.published.kept_bytes(), user.duration_seconds)),
    )
    .unwrap_or(0.0)
}

/// Figure 5: memory if nothing is checkpointed.
fn footprint(units: &[Unit<'_>]) -> Result<Figure, PlotError> {
    let published = ["published mean".to_owned()];
    let mut table = Table::new(units, &published);
    let (ext4, mobifs) = FOOTPRINT_KB_PER_SECOND;
    let ones = units.iter().map(|unit| Some(one_version(unit)));
    table.add("page cache", ones.chain([Some(ext4)]));
    let versions = units.iter().map(|unit| Some(with_versions(unit)));
    table.add("with closed versions", versions.chain([Some(mobifs)]));
    let worst = units.iter().map(with_versions).fold(0.0, f64::max);
    let lasts = |kb_per_second: f64| 100e3 / kb_per_second.max(f64::MIN_POSITIVE) / 60.0;
    let remark = format!(
        "Ours on average: {:.1} KB/s for one copy of each page, {:.1} KB/s with the versions \
         of transactions that {} has closed and no checkpoint has written; published: {ext4} and \
         {mobifs}. In the worst case {worst:.1} KB/s, with which 100 MB last {:.1} minutes; \
         published {FOOTPRINT_WORST_KB_PER_SECOND} KB/s, 17.4 minutes. Both count changed names \
         and attributes at what they take in memory. The difference to the paper is what the \
         programs write; the ratio of the two is what versions cost.",
        mean(units.iter().map(one_version)).unwrap_or(0.0),
        mean(units.iter().map(with_versions)).unwrap_or(0.0),
        Contender::PUBLISHED,
        lasts(worst),
    );
    table.figure(
        (
            "fig05-footprint",
            "S0 Figure 5: growth of memory without checkpoints",
        ),
        ("growth of memory without checkpoints (S0 Fig. 5)", "KB/s"),
        remark,
    )
}

/// One user of one program: the mean time between checkpoints over all its apps that count.
pub(super) struct ProgramUser {
    pub(super) program: String,
    pub(super) trace: String,
    pub(super) intervals: Intervals,
}

/// The users of programs that more than one person used.
pub(super) fn program_users(units: &[Unit<'_>], of: Of) -> Vec<ProgramUser> {
    let mut users: Vec<ProgramUser> = Vec::new();
    for unit in units {
        for user in &unit.users {
            let intervals = of(user).intervals();
            match users.iter_mut().find(|known| known.trace == user.trace) {
                Some(known) => known.intervals = known.intervals.plus(intervals),
                None => users.push(ProgramUser {
                    program: unit.program.clone(),
                    trace: user.trace.clone(),
                    intervals,
                }),
            }
        }
    }
    let programs: Vec<String> = users.iter().map(|user| user.program.clone()).collect();
    users.retain(|user| {
        programs
            .iter()
            .filter(|known| **known == user.program)
            .count()
            > 1
    });
    users
}

/// Largest of these to smallest; none of fewer than two.
pub(super) fn spread(values: &[f64]) -> Option<f64> {
    let most = values.iter().copied().fold(0.0, f64::max);
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    (values.len() > 1 && least > 0.0).then(|| most / least)
}

/// Geometric mean of the ratios of mean intervals to ext4's, and of how many apps.
pub(super) fn ratio_to_ext4(units: &[Unit<'_>], of: Of) -> Option<(f64, usize)> {
    let ratios = units.iter().filter_map(|unit| {
        let own = unit.intervals(of).mean_seconds()?;
        let ext4 = unit.intervals(|user| user.ext4).mean_seconds()?;
        (own > 0.0 && ext4 > 0.0).then(|| own / ext4)
    });
    let ratios: Vec<f64> = ratios.collect();
    let count = ratios.len();
    Some((geometric_mean(ratios)?, count))
}

/// Figure 6: mean time between checkpoints.
fn intervals(units: &[Unit<'_>]) -> Result<Figure, PlotError> {
    let published: Of = |user| user.published;
    let policies: [(&str, Of); 4] = [
        (Contender::PUBLISHED, published),
        ("tpl", |user| user.tpl),
        ("default", |user| user.default),
        ("ext4", |user| user.ext4),
    ];
    let users = program_users(units, published);
    let user_names = users.iter().map(|user| format!("user {}", user.trace));
    let others: Vec<String> = user_names.chain(published_names()).collect();
    let mut table = Table::new(units, &others);
    for (name, of) in policies {
        let ours = units.iter().map(|unit| unit.intervals(of).mean_seconds());
        let by_user = program_users(units, of);
        let by_user = by_user.iter().map(|user| user.intervals.mean_seconds());
        if name == Contender::PUBLISHED {
            let theirs = APPS.iter().map(|app| Some(app.interval_seconds));
            table.add(name, ours.chain(by_user).chain(theirs));
        } else {
            table.add(name, ours.chain(by_user));
        }
    }
    table.figure(
        ("fig06-intervals", "S0 Figure 6: mean checkpoint intervals"),
        ("mean checkpoint interval (S0 Fig. 6)", "s"),
        intervals_remark(units, &policies[..3], &users),
    )
}

fn intervals_remark(units: &[Unit<'_>], policies: &[(&str, Of)], users: &[ProgramUser]) -> String {
    let mut sentences = vec![
        "From an app's first change to its first flush, and from flush to flush; what is flushed \
         because a trace ends is no interval. With *: published."
            .to_owned(),
    ];
    for &(name, of) in policies {
        let means = units.iter().map(|unit| unit.intervals(of).mean_seconds());
        let known: Vec<f64> = means.flatten().collect();
        let missing = units.len() - known.len();
        let spread =
            spread(&known).map_or_else(|| "-".to_owned(), |spread| format!("{spread:.1}×"));
        let ratio = ratio_to_ext4(units, of).map_or_else(
            || "-".to_owned(),
            |(ratio, apps)| format!("{ratio:.1}× (geometric mean of {apps} apps)"),
        );
        sentences.push(format!(
            "{name}: longest to shortest {spread}, against ext4 {ratio}; {missing} apps have no \
             interval, as their traces end before one does."
        ));
    }
    sentences.push(
        "Published: longest to shortest 21.7×, against ext4 17.5×. What tpl and the default do is \
         cut by their limit of age, which the paper's evaluation does not mention."
            .to_owned(),
    );
    let mut programs: Vec<&str> = users.iter().map(|user| user.program.as_str()).collect();
    programs.dedup();
    for program in programs {
        let of_program = users.iter().filter(|user| user.program == program);
        let means: Vec<f64> = of_program
            .filter_map(|user| user.intervals.mean_seconds())
            .collect();
        if let Some(spread) = spread(&means) {
            sentences.push(format!(
                "Among the {} users of {program} {spread:.1}× under {}; published up to 2.6×.",
                means.len(),
                Contender::PUBLISHED
            ));
        }
    }
    sentences.join(" ")
}

/// Geometric mean of what was flushed, in parts of what ext4 flushed. (All apps count, so ext4
/// flushed something.)
pub(super) fn flushed_vs_ext4(units: &[Unit<'_>], of: Of) -> Option<f64> {
    geometric_mean(units.iter().map(|unit| {
        let flushed = unit.flushed_pages(of).max(1) as f64;
        flushed / unit.flushed_pages(|user| user.ext4).max(1) as f64
    }))
}

/// Figure 13: what was flushed.
fn flushed(units: &[Unit<'_>]) -> Result<Figure, PlotError> {
    let mut table = Table::new(units, &published_names().collect::<Vec<_>>());
    let rates = |of: Of| {
        units.iter().map(move |unit| {
            let seconds = unit.duration_seconds().max(f64::MIN_POSITIVE);
            Some(unit.flushed_pages(of) as f64 * PAGE_BYTES / 1e3 / seconds)
        })
    };
    let ext4 = APPS.iter().map(|app| Some(app.ext4_kb_per_second));
    let mobifs = APPS.iter().map(|app| Some(app.mobifs_kb_per_second));
    let published: Of = |user| user.published;
    table.add("ext4", rates(|user| user.ext4).chain(ext4));
    table.add(Contender::PUBLISHED, rates(published).chain(mobifs));
    table.add("tpl", rates(|user| user.tpl));
    table.add("default", rates(|user| user.default));
    let percent = |of: Of| {
        let share = flushed_vs_ext4(units, of);
        share.map_or_else(
            || "-".to_owned(),
            |share| format!("{:.1} %", (1.0 - share) * 100.0),
        )
    };
    let remark = format!(
        "With *: published. Geometric mean below ext4, over the {} apps of which ext4 flushed at \
         least {PAGES_MIN} pages: {} {}, tpl {}, default {}, the bound (ideal) {}; published \
         53.0 %. What can be saved depends on how often a program calls fsync and rewrites the \
         same pages, so other programs give other numbers under the same policy.",
        units.len(),
        Contender::PUBLISHED,
        percent(published),
        percent(|user| user.tpl),
        percent(|user| user.default),
        percent(|user| user.ideal),
    );
    table.figure(
        ("fig13-flushed", "S0 Figure 13: flushed data"),
        ("flushed data (S0 Fig. 13)", "KB/s"),
        remark,
    )
}
