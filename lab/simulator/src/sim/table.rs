//! A report as tables for people.

use std::fmt::Write as _;

use super::report::{AppReport, ContenderReport, Report, TraceReport};

/// Room for names, at least.
const NAME_WIDTH_MIN: usize = 28;

impl Report {
    /// The report as text: one table for each trace, and one line over all.
    pub fn table(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _written = self.write_table(&mut text);
        text
    }

    fn write_table(&self, text: &mut String) -> std::fmt::Result {
        for trace in &self.traces {
            write_trace(text, trace)?;
        }
        writeln!(
            text,
            "{} flushed {:.1} % less than ext4 over {} ({})",
            self.policy,
            self.flush_reduction_vs_ext4 * 100.0,
            match self.traces.len() {
                1 => "the trace".to_owned(),
                count => format!("all {count} traces"),
            },
            self.device
        )
    }
}

fn write_trace(text: &mut String, trace: &TraceReport) -> std::fmt::Result {
    writeln!(text, "== {} ({:.0} s)", trace.trace, trace.duration_seconds)?;
    let names = trace
        .contenders
        .iter()
        .map(|contender| contender.name.len());
    let width = names.max().unwrap_or(0).max(NAME_WIDTH_MIN);
    writeln!(
        text,
        "{:<width$} {:>10} {:>8} {:>6} {:>24} {:>10} {:>9} {:>9} {:>10}",
        "", "flushed", "vs ext4", "e", "age at risk s", "at risk", "device", "energy", "fsync wait"
    )?;
    writeln!(
        text,
        "{:<width$} {:>10} {:>8} {:>6} {:>8} {:>7} {:>7} {:>10} {:>9} {:>9} {:>10}",
        "", "KiB", "%", "", "mean", "p50", "max", "mean KiB", "ms", "mJ", "ms"
    )?;
    for contender in &trace.contenders {
        write_contender(text, contender, width)?;
    }
    for prediction in &trace.predictions {
        writeln!(
            text,
            "pauses of the user by {}: {} predicted, {:.3} operations in each, {:.2} s long",
            prediction.predictor,
            prediction.predictions,
            prediction.conflicts_per_prediction,
            prediction.length_mean_seconds
        )?;
    }
    if let Some(policy) = trace.contenders.first() {
        writeln!(text, "apps under {}", policy.name)?;
        writeln!(
            text,
            "{:<28} {:>10} {:>8} {:>6} {:>8} {:>7} {:>7} {:>10} {:>9} {:>10}",
            "", "KiB", "vs ext4", "e", "mean", "p50", "max", "mean KiB", "flushes", "interval s"
        )?;
        for app in &policy.apps {
            write_app(text, app)?;
        }
    }
    writeln!(text)
}

fn write_contender(
    text: &mut String,
    contender: &ContenderReport,
    width: usize,
) -> std::fmt::Result {
    let age = &contender.age_at_risk;
    writeln!(
        text,
        "{:<width$} {:>10} {:>8.1} {:>6.3} {:>8.2} {:>7.2} {:>7.1} {:>10.0} {:>9.1} {:>9.2} {:>10.1}",
        contender.name,
        contender.flushed_bytes / 1024,
        contender.flush_reduction_vs_ext4 * 100.0,
        contender.efficiency,
        age.mean,
        age.p50,
        age.max,
        contender.bytes_at_risk.mean / 1024.0,
        contender.device.busy_ms,
        contender.device.energy_mj,
        contender.device.fsync_wait_ms,
    )
}

fn write_app(text: &mut String, app: &AppReport) -> std::fmt::Result {
    let age = &app.age_at_risk;
    let interval = app.interval_mean_seconds;
    writeln!(
        text,
        "  {:<26} {:>10} {:>8.1} {:>6.3} {:>8.2} {:>7.2} {:>7.1} {:>10.0} {:>9} {:>10}",
        app.name,
        app.flushed_bytes / 1024,
        app.flush_reduction_vs_ext4 * 100.0,
        app.efficiency,
        age.mean,
        age.p50,
        age.max,
        app.bytes_at_risk.mean / 1024.0,
        app.flushes,
        interval.map_or_else(|| "-".to_owned(), |seconds| format!("{seconds:.1}")),
    )
}
