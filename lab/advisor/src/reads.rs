//! What a trace says: which parts of files are read, and how files grow.

use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use mobifs_defragmenter::Hot;
use mobifs_trace::{EventKind, Trace};

use crate::report::TraceReport;

/// How a file that the trace sees being made grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Growth {
    /// Its size at the end.
    pub(crate) grown_bytes: u64,
    /// Bytes that were written to it.
    pub(crate) written_bytes: u64,
}

/// What a trace says.
#[derive(Clone, Debug, Default)]
pub struct TraceFacts {
    hot: Hot,
    growth: HashMap<PathBuf, Growth>,
    read_bytes: u64,
}

impl TraceFacts {
    /// The facts of all events that succeeded.
    #[must_use]
    pub fn of(trace: &Trace) -> Self {
        let mut facts = Self::default();
        let path_of =
            |index| PathBuf::from(std::ffi::OsStr::from_bytes(trace.paths.get(index)).to_owned());
        for event in trace.events.iter().filter(|event| event.has_succeeded()) {
            // What was asked for is not what was got, at the end of a file.
            let done = u64::try_from(event.result).unwrap_or(0);
            match event.kind {
                EventKind::Read {
                    path,
                    offset,
                    length,
                } => {
                    let length = done.min(length);
                    facts.read_bytes += length;
                    facts
                        .hot
                        .add(&path_of(path), (offset, offset.saturating_add(length)));
                }
                EventKind::Create { path, .. } => {
                    facts.growth.insert(path_of(path), Growth::default());
                }
                EventKind::Write {
                    path,
                    offset,
                    length,
                } => {
                    if let Some(growth) = facts.growth.get_mut(&path_of(path)) {
                        let length = done.min(length);
                        growth.written_bytes += length;
                        growth.grown_bytes = growth.grown_bytes.max(offset.saturating_add(length));
                    }
                }
                _ => {}
            }
        }
        facts.hot.finish();
        facts
    }

    /// What is read.
    #[must_use]
    pub const fn hot(&self) -> &Hot {
        &self.hot
    }

    /// What is said of the trace, of whose files so many lie here.
    pub(crate) fn report(&self, files_here: u64) -> TraceReport {
        TraceReport {
            files: self.hot.files() as u64,
            files_here,
            read_bytes: self.read_bytes,
        }
    }

    /// How a file grew; none if the trace does not see it being made. Both paths are absolute.
    pub(crate) fn growth(&self, file: &Path, top: &Path) -> Option<Growth> {
        let known = |path: &Path| self.growth.get(path).copied();
        known(file).or_else(|| {
            top.ancestors()
                .find_map(|above| known(file.strip_prefix(above).ok()?))
        })
    }
}

#[cfg(test)]
mod tests {
    use mobifs_trace::{Event, Header, TraceBuilder, TraceNs};

    use super::*;

    #[test]
    fn reads_are_what_was_got_and_growth_is_of_files_that_were_made() {
        let mut builder = TraceBuilder::new(Header::default());
        let (app, old, new) = (
            builder.app(b"app"),
            builder.path(b"old"),
            builder.path(b"new"),
        );
        let mut push = |kind, result| {
            builder.push(Event {
                time: TraceNs(0),
                app,
                process: 1,
                thread: 1,
                kind,
                result,
                duration_ns: 0,
            });
        };
        let write = |path, offset| EventKind::Write {
            path,
            offset,
            length: 4096,
        };
        push(
            EventKind::Read {
                path: old,
                offset: 0,
                length: 1 << 20,
            },
            100,
        );
        push(write(old, 0), 4096);
        push(
            EventKind::Create {
                path: new,
                mode: 0o600,
            },
            0,
        );
        push(write(new, 0), 4096);
        push(write(new, 4096), 4096);
        push(write(new, 0), 4096);
        push(write(new, 8192), -28);
        let facts = TraceFacts::of(&builder.finish());
        assert_eq!(
            (facts.report(1).files, facts.report(1).read_bytes),
            (1, 100)
        );
        let (top, at) = (Path::new("/t"), |name: &str| Path::new("/t").join(name));
        assert_eq!(facts.hot().of(&at("old"), top), Some(&[(0, 100)][..]));
        assert_eq!(facts.growth(&at("old"), top), None);
        let growth = facts.growth(&at("new"), top).unwrap();
        assert_eq!((growth.grown_bytes, growth.written_bytes), (8192, 12288));
    }
}
