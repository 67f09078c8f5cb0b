//! Building a trace.

use super::{AppIndex, Event, Header, PathIndex, Trace};

/// Interns names and collects events in any order.
#[derive(Debug, Default)]
pub struct TraceBuilder {
    trace: Trace,
}

impl TraceBuilder {
    /// Begins a trace.
    pub fn new(header: Header) -> Self {
        Self {
            trace: Trace {
                header,
                ..Trace::default()
            },
        }
    }

    /// The index of an app.
    pub fn app(&mut self, name: &[u8]) -> AppIndex {
        self.trace.apps.intern(name)
    }

    /// The index of a path.
    pub fn path(&mut self, path: &[u8]) -> PathIndex {
        self.trace.paths.intern(path)
    }

    /// The name that an index stands for.
    pub fn path_name(&self, path: PathIndex) -> &[u8] {
        self.trace.paths.get(path)
    }

    /// Adds a line to the header's notes.
    pub fn note(&mut self, note: impl Into<String>) {
        self.trace.header.notes.push(note.into());
    }

    /// Adds an event whose indices are from this builder.
    pub fn push(&mut self, event: Event) {
        self.trace.events.push(event);
    }

    /// How many events there are.
    pub fn len(&self) -> usize {
        self.trace.events.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.trace.events.is_empty()
    }

    /// The trace: events by time, those of the same time as they were added.
    pub fn finish(mut self) -> Trace {
        self.trace.events.sort_by_key(|event| event.time);
        self.trace
    }
}
