//! `mobifs trace cat`

use std::fmt::Write as _;
use std::io::{self, BufWriter, Write as _};

use mobifs_trace::{Event, Row, Trace};
use serde_json::{Map, Value, json};

use super::arguments::CatArguments;
use super::input;
use crate::failure::{Code, Failure};

pub(super) fn run(arguments: &CatArguments) -> Result<(), Failure> {
    let trace = input::trace(&arguments.trace, &arguments.input)?;
    let part = input::selected(&trace, &arguments.selection, false)?;
    let mut output = BufWriter::new(io::stdout().lock());
    let mut print = || -> io::Result<()> {
        for event in &part.events {
            let line = if arguments.json {
                json(&part, event).to_string()
            } else {
                text(&part, event)
            };
            writeln!(output, "{line}")?;
        }
        output.flush()
    };
    match print() {
        // The reader of standard output has closed it.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::new(Code::Failed, error.to_string()))
        }
        _ => Ok(()),
    }
}

/// Bytes as people and JSON can have them: what is not UTF-8 is escaped.
fn shown(name: &[u8]) -> String {
    match std::str::from_utf8(name) {
        Ok(text) if !text.chars().any(char::is_control) => text.to_owned(),
        _ => name.escape_ascii().to_string(),
    }
}

fn text(trace: &Trace, event: &Event) -> String {
    let row = Row::of(&event.kind);
    let name = |path| shown(trace.paths.get(path));
    let mut line = format!(
        "{:.9} {} {}/{} {}",
        event.time.0 as f64 / 1e9,
        shown(trace.app_of(event)),
        event.process,
        event.thread,
        event.kind.name()
    );
    let mut add = |text: String| {
        line.push(' ');
        line.push_str(&text);
    };
    if let Some(path) = row.path {
        add(name(path));
    }
    if let Some(target) = row.target {
        add(format!("-> {}", name(target)));
    }
    for (label, number) in [
        ("device", row.device),
        ("offset", row.offset),
        ("length", row.length),
    ] {
        if let Some(number) = number {
            add(format!("{label} {number}"));
        }
    }
    if let Some(mode) = row.mode {
        add(format!("mode {mode:o}"));
    }
    if let Some(detail) = row.detail {
        add(detail.into_owned());
    }
    add(format!("= {}", event.result));
    if event.duration_ns > 0 {
        // Writing to a string cannot fail.
        let _written = write!(line, " ({:.1} µs)", event.duration_ns as f64 / 1e3);
    }
    line
}

fn json(trace: &Trace, event: &Event) -> Value {
    let row = Row::of(&event.kind);
    let name = |path| Value::from(shown(trace.paths.get(path)));
    let mut object = Map::new();
    for (key, value) in [
        ("time_ns", Some(json!(event.time.0))),
        ("app", Some(json!(shown(trace.app_of(event))))),
        ("process", Some(json!(event.process))),
        ("thread", Some(json!(event.thread))),
        ("operation", Some(json!(event.kind.name()))),
        ("path", row.path.map(name)),
        ("target", row.target.map(name)),
        ("offset", row.offset.map(Value::from)),
        ("length", row.length.map(Value::from)),
        ("mode", row.mode.map(Value::from)),
        ("detail", row.detail.map(Value::from)),
        ("device", row.device.map(Value::from)),
        ("result", Some(json!(event.result))),
        (
            "duration_ns",
            (event.duration_ns > 0).then(|| json!(event.duration_ns)),
        ),
    ] {
        if let Some(value) = value {
            object.insert(key.to_owned(), value);
        }
    }
    Value::Object(object)
}
