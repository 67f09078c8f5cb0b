//! What a trace consists of, in numbers.

use std::collections::{BTreeMap, HashMap, HashSet};

use mobifs_base::{ByteRange, RangeSet};

use crate::model::{BlockCommand, Event, EventKind, OpenFlags, PathIndex, Trace};

/// Counts of an app, or of all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// All events.
    pub events: u64,
    /// Those that failed.
    pub failed: u64,
    /// How many there are of each operation, by its name.
    pub operations: BTreeMap<&'static str, u64>,
    /// Bytes read from files.
    pub bytes_read: u64,
    /// Bytes written to files.
    pub bytes_written: u64,
    /// Written bytes that replaced what the trace had written to the same place of the same
    /// file before.
    pub bytes_overwritten: u64,
    /// Syncs of files and of everything.
    pub syncs: u64,
    /// Different paths that were read, written, or made.
    pub files: u64,
    /// What the user did.
    pub user_operations: u64,
    /// Bytes read from block devices.
    pub block_bytes_read: u64,
    /// Bytes written to block devices.
    pub block_bytes_written: u64,
}

/// Numbers of a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// From the start to the end of the last event.
    pub duration_ns: u64,
    /// Processes and threads.
    pub threads: u64,
    /// All apps together.
    pub total: Counts,
    /// Each app with its name, by name.
    pub apps: BTreeMap<Vec<u8>, Counts>,
}

/// Counts what is in a trace.
pub fn statistics(trace: &Trace) -> Statistics {
    let mut counting = Counting {
        trace,
        written: HashMap::new(),
        files: HashSet::new(),
    };
    let mut statistics = Statistics {
        duration_ns: trace.duration_ns(),
        ..Statistics::default()
    };
    let mut apps = vec![Counts::default(); trace.apps.len()];
    let mut threads = HashSet::new();
    for event in &trace.events {
        let overwritten = counting.follow(event);
        let is_new = counting.is_new_file(event);
        threads.insert((event.process, event.thread));
        for counts in [&mut statistics.total, &mut apps[event.app.0 as usize]] {
            add(counts, event, overwritten);
            counts.files += u64::from(is_new);
        }
    }
    statistics.threads = threads.len() as u64;
    let named = trace.apps.iter().zip(apps);
    let named = named.filter(|(_, counts)| counts.events > 0);
    statistics.apps = named
        .map(|((_, name), counts)| (name.to_vec(), counts))
        .collect();
    statistics
}

fn add(counts: &mut Counts, event: &Event, overwritten: u64) {
    counts.events += 1;
    counts.failed += u64::from(!event.has_succeeded());
    *counts.operations.entry(event.kind.name()).or_default() += 1;
    counts.bytes_overwritten += overwritten;
    let moved = u64::try_from(event.result).unwrap_or(0);
    match event.kind {
        EventKind::Read { .. } => counts.bytes_read += moved,
        EventKind::Write { .. } => counts.bytes_written += moved,
        EventKind::Sync { .. } | EventKind::SyncAll => counts.syncs += 1,
        EventKind::User(_) => counts.user_operations += 1,
        EventKind::Block {
            command, length, ..
        } => match command {
            BlockCommand::Read => counts.block_bytes_read += length,
            BlockCommand::Write => counts.block_bytes_written += length,
            BlockCommand::Discard | BlockCommand::Flush => {}
        },
        _ => {}
    }
}

/// Follows what was written where.
struct Counting<'a> {
    trace: &'a Trace,
    written: HashMap<PathIndex, RangeSet>,
    files: HashSet<PathIndex>,
}

impl Counting<'_> {
    fn is_new_file(&mut self, event: &Event) -> bool {
        let path = match event.kind {
            EventKind::Create { path, .. }
            | EventKind::Read { path, .. }
            | EventKind::Write { path, .. } => path,
            _ => return false,
        };
        event.has_succeeded() && self.files.insert(path)
    }

    /// Takes an event; how many bytes it wrote that the trace had written before.
    fn follow(&mut self, event: &Event) -> u64 {
        if !event.has_succeeded() {
            return 0;
        }
        match event.kind {
            EventKind::Write { path, offset, .. } => {
                let end = offset.saturating_add(event.result as u64);
                let range = ByteRange::new(offset, end);
                let written = self.written.entry(path).or_default();
                let before = covered(written, range);
                written.insert(range);
                return before;
            }
            EventKind::Truncate { path, length } => {
                if let Some(written) = self.written.get_mut(&path) {
                    written.remove(ByteRange::new(length, u64::MAX));
                }
            }
            EventKind::Open { path, flags } if flags.contains(OpenFlags::TRUNCATE) => {
                self.written.remove(&path);
            }
            EventKind::Create { path, .. } | EventKind::Unlink { path } => {
                self.written.remove(&path);
            }
            EventKind::Rename { from, to, exchange } => self.rename(from, to, exchange),
            _ => {}
        }
        0
    }

    fn rename(&mut self, from: PathIndex, to: PathIndex, exchange: bool) {
        let moved = self.written.remove(&from);
        let replaced = self.written.remove(&to);
        if let Some(moved) = moved {
            self.written.insert(to, moved);
        }
        if let (Some(replaced), true) = (replaced, exchange) {
            self.written.insert(from, replaced);
        }
        self.rename_below(from, to);
    }

    /// What lies below a directory moves with it, to paths that the trace names.
    fn rename_below(&mut self, from: PathIndex, to: PathIndex) {
        let paths = &self.trace.paths;
        let (from, to) = (paths.get(from), paths.get(to));
        let below = self.written.keys().copied().filter_map(|path| {
            let rest = paths.get(path).strip_prefix(from)?;
            rest.starts_with(b"/").then_some((path, rest))
        });
        let below: Vec<_> = below.collect();
        for (path, rest) in below {
            if let (Some(written), Some(new)) =
                (self.written.remove(&path), paths.find(&[to, rest].concat()))
            {
                self.written.insert(new, written);
            }
        }
    }
}

/// How many bytes of a range are in a set.
fn covered(set: &RangeSet, range: ByteRange) -> u64 {
    let mut missing = RangeSet::new();
    missing.insert(range);
    let mut at = range.start;
    while at < range.end {
        let next = set.range_at(at).or_else(|| set.next_after(at));
        let Some(next) = next.filter(|next| next.start < range.end) else {
            break;
        };
        missing.remove(next);
        at = next.end;
    }
    let missing: u64 = missing.iter().map(|range| range.end - range.start).sum();
    range
        .end
        .saturating_sub(range.start)
        .saturating_sub(missing)
}
