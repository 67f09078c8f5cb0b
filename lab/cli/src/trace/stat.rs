//! `mobifs trace stat`

use std::fmt::Write as _;
use std::path::Path;

use mobifs_trace::{Counts, Statistics, Trace, statistics};
use serde_json::{Value, json};

use super::arguments::StatArguments;
use super::input;
use crate::failure::{Code, Failure, put};

pub(super) fn run(arguments: &StatArguments) -> Result<(), Failure> {
    let mut documents = Vec::new();
    let mut text = String::new();
    for path in &arguments.traces {
        let trace = input::trace(path, &arguments.input)?;
        let counted = statistics(&trace);
        if arguments.json {
            documents.push(document(path, &trace, &counted));
        } else {
            // Writing to a string cannot fail.
            let _written = table(&mut text, path, &trace, &counted);
        }
    }
    if arguments.json {
        let all = json!({ "traces": documents });
        text = serde_json::to_string_pretty(&all)
            .map_err(|error| Failure::new(Code::Failed, error.to_string()))?
            + "\n";
    }
    put(&text)
}

fn table(text: &mut String, path: &Path, trace: &Trace, counted: &Statistics) -> std::fmt::Result {
    writeln!(
        text,
        "{}: {}, {:.1} s, {} threads, {} events",
        path.display(),
        trace.header.source,
        counted.duration_ns as f64 / 1e9,
        counted.threads,
        counted.total.events
    )?;
    for note in &trace.header.notes {
        writeln!(text, "  {note}")?;
    }
    writeln!(
        text,
        "{:28} {:>9} {:>8} {:>7} {:>10} {:>10} {:>10} {:>7} {:>5}",
        "app", "events", "failed", "files", "read MB", "written MB", "again MB", "syncs", "user"
    )?;
    for (name, counts) in &counted.apps {
        row(text, &String::from_utf8_lossy(name), counts)?;
    }
    if counted.apps.len() > 1 {
        row(text, "all", &counted.total)?;
    }
    let operations = counted.total.operations.iter();
    let operations: Vec<String> = operations
        .map(|(name, count)| format!("{name} {count}"))
        .collect();
    writeln!(text, "{}\n", operations.join(", "))
}

fn row(text: &mut String, name: &str, counts: &Counts) -> std::fmt::Result {
    let megabytes = |bytes: u64| bytes as f64 / 1e6;
    writeln!(
        text,
        "{:28} {:>9} {:>8} {:>7} {:>10.2} {:>10.2} {:>10.2} {:>7} {:>5}",
        name,
        counts.events,
        counts.failed,
        counts.files,
        megabytes(counts.bytes_read + counts.block_bytes_read),
        megabytes(counts.bytes_written + counts.block_bytes_written),
        megabytes(counts.bytes_overwritten),
        counts.syncs,
        counts.user_operations
    )
}

fn document(path: &Path, trace: &Trace, counted: &Statistics) -> Value {
    let apps = counted
        .apps
        .iter()
        .map(|(name, counts)| (String::from_utf8_lossy(name).into_owned(), numbers(counts)));
    json!({
        "file": path.display().to_string(),
        "source": trace.header.source,
        "tool": trace.header.tool,
        "notes": trace.header.notes,
        "duration_ns": counted.duration_ns,
        "threads": counted.threads,
        "total": numbers(&counted.total),
        "apps": apps.collect::<serde_json::Map<_, _>>(),
    })
}

fn numbers(counts: &Counts) -> Value {
    json!({
        "events": counts.events,
        "failed": counts.failed,
        "operations": counts.operations,
        "files": counts.files,
        "bytes_read": counts.bytes_read,
        "bytes_written": counts.bytes_written,
        "bytes_overwritten": counts.bytes_overwritten,
        "syncs": counts.syncs,
        "user_operations": counts.user_operations,
        "block_bytes_read": counts.block_bytes_read,
        "block_bytes_written": counts.block_bytes_written,
    })
}
