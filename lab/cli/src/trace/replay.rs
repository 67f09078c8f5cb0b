//! `mobifs trace replay`

use std::fmt::Write as _;

use mobifs_trace::{Difference, ReplayOptions, ReplayReport, ReplaySpeed, replay};
use serde_json::{Value, json};

use super::arguments::ReplayArguments;
use super::input;
use super::progress::Progress;
use crate::failure::{Code, Failure, put};

pub(super) fn run(arguments: &ReplayArguments) -> Result<(), Failure> {
    let speed = if arguments.full_speed {
        ReplaySpeed::Full
    } else if arguments.speed.is_finite() && arguments.speed > 0.0 {
        ReplaySpeed::Scaled(arguments.speed)
    } else {
        return Err(Failure::new(Code::Usage, "--speed takes a number above 0"));
    };
    let trace = input::trace(&arguments.trace, &arguments.input)?;
    let options = ReplayOptions {
        directory: arguments.place.clone(),
        speed,
        seed: arguments.seed,
    };
    let progress = Progress::new(trace.events.len() as u64);
    let begin = || {
        if arguments.wait {
            wait_for_line();
        }
    };
    let report = replay(&trace, &options, &begin, &|done| progress.note(done))?;
    progress.end();
    if arguments.json {
        let text = serde_json::to_string_pretty(&document(&report));
        return put(&(text.map_err(|error| Failure::new(Code::Failed, error.to_string()))? + "\n"));
    }
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _written = write_all(&mut text, &report);
    put(&text)
}

/// A script that measures lets what was made come to rest first. The end of standard input begins
/// the trace, too.
fn wait_for_line() {
    eprintln!("mobifs: made; the trace begins with a line on standard input");
    let _end = std::io::stdin().read_line(&mut String::new());
}

fn write_all(text: &mut String, report: &ReplayReport) -> std::fmt::Result {
    let seconds = |ns: u64| ns as f64 / 1e9;
    writeln!(
        text,
        "{} events in {:.3} s (recorded in {:.3} s, at most {:.3} s late); before, {} files with \
         {:.1} MB were made",
        report.events,
        seconds(report.elapsed_ns),
        seconds(report.recorded_ns),
        seconds(report.late_max_ns),
        report.files_prepared,
        report.bytes_prepared as f64 / 1e6
    )?;
    writeln!(
        text,
        "{:16} {:>9} {:>10} {:>10} {:>10} {:>14}",
        "latency in µs", "count", "50 %", "99 %", "most", "recorded 50 %"
    )?;
    let micros = |ns: u64| ns as f64 / 1e3;
    for latency in &report.latencies {
        writeln!(
            text,
            "{:16} {:>9} {:>10.1} {:>10.1} {:>10.1} {:>14.1}",
            latency.operation,
            latency.count,
            micros(latency.p50_ns),
            micros(latency.p99_ns),
            micros(latency.max_ns),
            micros(latency.recorded_p50_ns)
        )?;
    }
    for (difference, count) in &report.differences {
        let Difference {
            operation,
            recorded_errno,
            errno,
        } = difference;
        let named = |errno: i64| match errno {
            0 => "success".to_owned(),
            number => format!("error {number}"),
        };
        let (before, now) = (named(*recorded_errno), named(*errno));
        writeln!(
            text,
            "{count} × {operation}: {before} in the trace, {now} now"
        )?;
    }
    if report.short_reads > 0 {
        writeln!(
            text,
            "{} reads gave another number of bytes",
            report.short_reads
        )?;
    }
    if report.links_changed > 0 {
        writeln!(
            text,
            "{} symbolic links got another target",
            report.links_changed
        )?;
    }
    Ok(())
}

fn document(report: &ReplayReport) -> Value {
    let latencies = report.latencies.iter().map(|latency| {
        json!({
            "operation": latency.operation,
            "count": latency.count,
            "p50_ns": latency.p50_ns,
            "p99_ns": latency.p99_ns,
            "max_ns": latency.max_ns,
            "recorded_p50_ns": latency.recorded_p50_ns,
        })
    });
    let differences = report.differences.iter().map(|(difference, count)| {
        json!({
            "operation": difference.operation,
            "recorded_errno": difference.recorded_errno,
            "errno": difference.errno,
            "count": count,
        })
    });
    json!({
        "events": report.events,
        "files_prepared": report.files_prepared,
        "bytes_prepared": report.bytes_prepared,
        "elapsed_ns": report.elapsed_ns,
        "recorded_ns": report.recorded_ns,
        "late_max_ns": report.late_max_ns,
        "latencies": latencies.collect::<Vec<_>>(),
        "differences": differences.collect::<Vec<_>>(),
        "short_reads": report.short_reads,
        "links_changed": report.links_changed,
    })
}
