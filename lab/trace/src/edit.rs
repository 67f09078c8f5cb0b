//! Traces from traces.

use crate::model::{Event, Header, Trace, TraceBuilder, TraceNs};

/// One of the traces that are merged.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// The trace.
    pub trace: &'a Trace,
    /// Its events are this much later in the merged one, in nanoseconds.
    pub shift_ns: u64,
    /// Put before its apps and paths, with a `/`, so that they differ from those of others.
    pub label: Option<&'a str>,
}

/// Lays traces over each other. Processes and threads of different parts stay different: their
/// numbers are moved up after those of the part before.
pub fn merge(parts: &[Part<'_>]) -> Trace {
    let mut builder = TraceBuilder::new(Header {
        source: "merge".to_owned(),
        tool: tool(),
        notes: Vec::new(),
    });
    let mut number_offset = 0_u32;
    for part in parts {
        let label = part.label.map(str::as_bytes);
        let mut highest = number_offset;
        for event in &part.trace.events {
            let event = Event {
                time: TraceNs(event.time.0.saturating_add(part.shift_ns)),
                process: moved(event.process, number_offset),
                thread: moved(event.thread, number_offset),
                ..*event
            };
            highest = highest.max(event.process).max(event.thread);
            copy(&mut builder, part.trace, event, label);
        }
        number_offset = highest;
        builder.note(format!(
            "{} {}: {} events, {} ns later",
            part.trace.header.source,
            part.label.unwrap_or("without a label"),
            part.trace.events.len(),
            part.shift_ns
        ));
    }
    builder.finish()
}

/// A number of a process; 0, which stands for unknown, stays.
const fn moved(number: u32, offset: u32) -> u32 {
    if number == 0 {
        0
    } else {
        number.saturating_add(offset)
    }
}

/// What [`cut`] keeps.
#[derive(Clone, Copy)]
pub struct Selection<'a> {
    /// Events from this time on.
    pub from: TraceNs,
    /// Events before this time.
    pub until: TraceNs,
    /// Events of apps for which this is true.
    pub app: &'a dyn Fn(&[u8]) -> bool,
    /// Events with a path or target for which this is true, and all events without paths.
    pub path: &'a dyn Fn(&[u8]) -> bool,
    /// The new trace's time starts at `from`; else times stay as they are.
    pub moves_start: bool,
}

/// The part of a trace that a selection keeps.
pub fn cut(trace: &Trace, selection: &Selection<'_>) -> Trace {
    let apps: Vec<bool> = names_kept(trace.apps.iter(), selection.app);
    let paths: Vec<bool> = names_kept(trace.paths.iter(), selection.path);
    let mut builder = TraceBuilder::new(trace.header.clone());
    let start_ns = if selection.moves_start {
        selection.from.0
    } else {
        0
    };
    for event in &trace.events {
        let is_in_time = event.time >= selection.from && event.time < selection.until;
        let mut named = event.kind.path().into_iter().chain(event.kind.target());
        let has_path = event.kind.path().is_none() || named.any(|path| paths[path.0 as usize]);
        if is_in_time && has_path && apps[event.app.0 as usize] {
            let time = TraceNs(event.time.0 - start_ns);
            copy(&mut builder, trace, Event { time, ..*event }, None);
        }
    }
    builder.note(format!(
        "cut: {} of {} events",
        builder.len(),
        trace.events.len()
    ));
    builder.finish()
}

fn names_kept<'a, I>(
    names: impl Iterator<Item = (I, &'a [u8])>,
    is_kept: &dyn Fn(&[u8]) -> bool,
) -> Vec<bool> {
    names.map(|(_, name)| is_kept(name)).collect()
}

/// Takes an event of another trace over, with its names.
fn copy(builder: &mut TraceBuilder, trace: &Trace, event: Event, label: Option<&[u8]>) {
    let labelled = |name: &[u8]| match label {
        Some(label) => [label, b"/", name.strip_prefix(b"/").unwrap_or(name)].concat(),
        None => name.to_vec(),
    };
    let app = builder.app(&labelled(trace.apps.get(event.app)));
    let kind = event
        .kind
        .with_paths(|path| builder.path(&labelled(trace.paths.get(path))));
    builder.push(Event { app, kind, ..event });
}

/// This program, as headers name it.
pub(crate) fn tool() -> String {
    concat!("mobifs ", env!("CARGO_PKG_VERSION")).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::EventKind;

    fn sample(app: &[u8], times: &[u64]) -> Trace {
        let mut builder = TraceBuilder::new(Header::default());
        let app = builder.app(app);
        for (number, &time) in times.iter().enumerate() {
            let path = builder.path(format!("f{number}").as_bytes());
            builder.push(Event {
                time: TraceNs(time),
                app,
                process: 7,
                thread: 0,
                kind: EventKind::Unlink { path },
                result: 0,
                duration_ns: 5,
            });
        }
        builder.finish()
    }

    #[test]
    fn merged_traces_keep_apart_what_is_apart() {
        let (first, second) = (sample(b"a", &[0, 20]), sample(b"a", &[0]));
        let part = |trace, shift_ns, label| Part {
            trace,
            shift_ns,
            label,
        };
        let merged = merge(&[part(&first, 0, None), part(&second, 10, Some("x"))]);
        let seen = merged.events.iter().map(|event| {
            let path = merged.path_of(event).unwrap();
            (
                event.time.0,
                merged.app_of(event),
                event.process,
                event.thread,
                path,
            )
        });
        let seen: Vec<_> = seen.collect();
        assert_eq!(
            seen,
            [
                (0, &b"a"[..], 7, 0, &b"f0"[..]),
                (10, b"x/a", 14, 0, b"x/f0"),
                (20, b"a", 7, 0, b"f1"),
            ]
        );
    }

    #[test]
    fn a_cut_keeps_what_is_selected_and_no_other_names() {
        let trace = sample(b"a", &[0, 10, 20, 30]);
        let selection = Selection {
            from: TraceNs(10),
            until: TraceNs(30),
            app: &|app| app == b"a",
            path: &|path| path != b"f1",
            moves_start: true,
        };
        let kept = cut(&trace, &selection);
        assert_eq!(kept.events.len(), 1);
        assert_eq!(kept.events[0].time, TraceNs(10));
        assert_eq!(
            kept.paths.iter().map(|(_, name)| name).collect::<Vec<_>>(),
            [b"f2"]
        );
        let no_app = Selection {
            app: &|_| false,
            ..selection
        };
        assert!(cut(&trace, &no_app).events.is_empty());
    }
}
