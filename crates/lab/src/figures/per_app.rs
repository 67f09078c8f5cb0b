//! One value for each app: S0 Figures 5, 6 and 13.

use super::bars::BarFigure;
use super::published::{APPS, FOOTPRINT_KB_PER_SECOND};
use super::{Figure, Unit};
use crate::plot::{Bars, PlotError};
use crate::sim::{AppOutcome, TimeHistogram};

const PAGE_BYTES: f64 = 4096.0;
/// Room for one group of bars, at least, and for each letter of its name.
const GROUP_WIDTH_MIN: u32 = 64;
const LETTER_WIDTH: u32 = 7;

pub(super) fn figures(units: &[Unit<'_>]) -> Result<Vec<Figure>, PlotError> {
    Ok(vec![footprint(units)?, intervals(units)?, flushed(units)?])
}

/// Ours first, then the published apps; a series has values for some of them.
struct Table {
    categories: Vec<String>,
    series: Vec<(String, Vec<Option<f64>>)>,
}

impl Table {
    fn new(units: &[Unit<'_>], published: &[String]) -> Self {
        let ours = units.iter().map(|unit| unit.name.clone());
        Self {
            categories: ours.chain(published.iter().cloned()).collect(),
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
        let letters = self.categories.iter().map(|name| name.chars().count());
        let group_width = LETTER_WIDTH * (letters.max().unwrap_or(0) as u32 + 1);
        let figure = BarFigure {
            name,
            title,
            caption,
            category: "app",
            y_label,
            decimals: 2,
            width: group_width.max(GROUP_WIDTH_MIN) * self.categories.len().max(8) as u32,
            bars: Bars {
                categories: self.categories,
                series: self.series,
            },
            remark,
        };
        figure.draw()
    }
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

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
    if count > 0.0 { sum / count } else { 0.0 }
}

/// Figure 5: memory if nothing is checkpointed.
fn footprint(units: &[Unit<'_>]) -> Result<Figure, PlotError> {
    let published = ["published mean".to_owned()];
    let mut table = Table::new(units, &published);
    let cache =
        |unit: &Unit<'_>| growth_kb_per_second(unit.ideal.at_risk_bytes(), unit.duration_seconds);
    let versions =
        |unit: &Unit<'_>| growth_kb_per_second(unit.tpl.kept_bytes(), unit.duration_seconds);
    let (ext4, mobifs) = FOOTPRINT_KB_PER_SECOND;
    table.add(
        "page cache",
        units
            .iter()
            .map(|unit| Some(cache(unit)))
            .chain([Some(ext4)]),
    );
    table.add(
        "with closed versions",
        units
            .iter()
            .map(|unit| Some(versions(unit)))
            .chain([Some(mobifs)]),
    );
    let remark = format!(
        "Ours on average: {:.1} KB/s for one copy of each page, {:.1} KB/s with the versions \
         of transactions that are closed and never checkpointed; published: {ext4} and \
         {mobifs}. The difference to the paper is what the programs write; the ratio of the \
         two is what versions cost.",
        mean(units.iter().map(cache)),
        mean(units.iter().map(versions)),
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

/// Figure 6: mean time between checkpoints.
fn intervals(units: &[Unit<'_>]) -> Result<Figure, PlotError> {
    let published: Vec<String> = APPS.iter().map(|app| format!("{}*", app.name)).collect();
    let mut table = Table::new(units, &published);
    let of = |app: &AppOutcome| app.interval_mean_ms().map(|mean| mean / 1e3);
    let theirs = APPS.iter().map(|app| Some(app.interval_seconds));
    table.add("tpl", units.iter().map(|unit| of(unit.tpl)).chain(theirs));
    table.add("default", units.iter().map(|unit| of(unit.default)));
    table.add("ext4", units.iter().map(|unit| of(unit.ext4)));
    let spread = |values: Vec<f64>| {
        let most = values.iter().copied().fold(0.0, f64::max);
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        if least > 0.0 && most > 0.0 {
            most / least
        } else {
            1.0
        }
    };
    let ours = spread(units.iter().filter_map(|unit| of(unit.tpl)).collect());
    let default = spread(units.iter().filter_map(|unit| of(unit.default)).collect());
    let remark = format!(
        "With *: published. Longest to shortest: tpl {ours:.1}×, default {default:.1}×, \
         published 21.7×. Every app of ours has an age limit, which the paper's evaluation \
         does not mention, and it cuts the long intervals.",
    );
    table.figure(
        ("fig06-intervals", "S0 Figure 6: mean checkpoint intervals"),
        ("mean checkpoint interval (S0 Fig. 6)", "s"),
        remark,
    )
}

/// Figure 13: what was flushed.
fn flushed(units: &[Unit<'_>]) -> Result<Figure, PlotError> {
    let published: Vec<String> = APPS.iter().map(|app| format!("{}*", app.name)).collect();
    let mut table = Table::new(units, &published);
    let rate = |unit: &Unit<'_>, app: &AppOutcome| {
        let seconds = unit.duration_seconds.max(f64::MIN_POSITIVE);
        Some(app.flushed_pages as f64 * PAGE_BYTES / 1e3 / seconds)
    };
    let ext4 = APPS.iter().map(|app| Some(app.ext4_kb_per_second));
    let mobifs = APPS.iter().map(|app| Some(app.mobifs_kb_per_second));
    table.add(
        "ext4",
        units.iter().map(|unit| rate(unit, unit.ext4)).chain(ext4),
    );
    table.add(
        "tpl",
        units.iter().map(|unit| rate(unit, unit.tpl)).chain(mobifs),
    );
    table.add("default", units.iter().map(|unit| rate(unit, unit.default)));
    let less = |of: fn(&Unit<'_>) -> u64| {
        let ratios = units.iter().map(|unit| {
            let flushed = of(unit).max(1) as f64;
            (flushed / unit.ext4.flushed_pages.max(1) as f64).ln()
        });
        (1.0 - mean(ratios).exp()) * 100.0
    };
    let remark = format!(
        "With *: published. Geometric mean below ext4: tpl {:.1} %, default {:.1} %, the \
         bound (ideal) {:.1} %; published 53.0 %. What can be saved depends on how often a \
         program calls fsync and rewrites the same pages, so other programs give other \
         numbers under the same policy.",
        less(|unit| unit.tpl.flushed_pages),
        less(|unit| unit.default.flushed_pages),
        less(|unit| unit.ideal.flushed_pages),
    );
    table.figure(
        ("fig13-flushed", "S0 Figure 13: flushed data"),
        ("flushed data (S0 Fig. 13)", "KB/s"),
        remark,
    )
}
