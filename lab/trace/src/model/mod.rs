//! What a trace consists of.

mod builder;
mod event;
mod names;

pub use builder::TraceBuilder;
pub use event::{AllocateMode, Attribute, BlockCommand, Event, EventKind, OpenFlags, TraceNs};
pub use mobifs_base::{DeviceState, UserOperation};
pub use names::{AppIndex, NameIndex, Names, PathIndex};

/// Where a trace came from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// What observed the events: `strace`, `mobigen`, `pixel`, `blkparse`, `mount`.
    pub source: String,
    /// The program that made the trace of it, with its version.
    pub tool: String,
    /// What else a reader should know, a line each: the command that ran, what was left out.
    pub notes: Vec<String>,
}

/// Events in the order of time, and the names they refer to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// Where it came from.
    pub header: Header,
    /// The apps. `.` is the app of what belongs to none.
    pub apps: Names<AppIndex>,
    /// Paths, and the contents of symbolic links. Bytes without NUL, with one exception: a file
    /// that lost its last name while it was open goes on under its old path and `\0`.
    pub paths: Names<PathIndex>,
    /// What happened, by time; events of the same time are in the order they happened.
    pub events: Vec<Event>,
}

impl Trace {
    /// Time from the trace's start to the end of the last event, in nanoseconds.
    pub fn duration_ns(&self) -> u64 {
        let ends = self
            .events
            .iter()
            .map(|event| event.time.0.saturating_add(event.duration_ns));
        ends.max().unwrap_or(0)
    }

    /// The path of an event, if it has one.
    ///
    /// # Panics
    /// The event is of another trace.
    pub fn path_of(&self, event: &Event) -> Option<&[u8]> {
        event.kind.path().map(|path| self.paths.get(path))
    }

    /// The name of an event's app.
    ///
    /// # Panics
    /// The event is of another trace.
    pub fn app_of(&self, event: &Event) -> &[u8] {
        self.apps.get(event.app)
    }
}
