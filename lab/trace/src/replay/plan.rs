//! What must be there before a trace begins.

use std::collections::{BTreeMap, HashMap};

use super::error::ReplayError;
use super::files::Directory;
use super::report::Prepared;
use crate::model::{Event, EventKind, OpenFlags, Trace};

/// Something that was there before the trace began, by its path then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Initial {
    /// A file, with the size that reads of it need.
    File {
        size: u64,
    },
    Directory,
}

/// What a path means at some moment of the trace.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Meaning {
    /// Something that was there before, under this path.
    Initial(Vec<u8>),
    /// Something the trace has made.
    Made,
    /// Nothing.
    Missing,
}

/// What must be there, by path.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) initial: BTreeMap<Vec<u8>, Initial>,
    meanings: HashMap<Vec<u8>, Meaning>,
}

impl Plan {
    /// Follows the trace and notes what it needs.
    pub(super) fn of(trace: &Trace) -> Self {
        let mut plan = Self::default();
        for event in &trace.events {
            plan.follow(trace, event);
        }
        plan
    }

    fn follow(&mut self, trace: &Trace, event: &Event) {
        let Some(path) = trace.path_of(event) else {
            return;
        };
        if !event.has_succeeded() {
            if event.result == -ENOENT && !self.meanings.contains_key(path) {
                self.meanings.insert(path.to_vec(), Meaning::Missing);
            }
            return;
        }
        let target = event.kind.target().map(|target| trace.paths.get(target));
        match event.kind {
            EventKind::Create { .. } | EventKind::MakeDirectory { .. } => self.make(path),
            EventKind::Symlink { .. } => self.make(path),
            EventKind::Open { flags, .. } => self.open(path, flags),
            EventKind::Read { offset, .. } => {
                self.need(path, false);
                self.need_size(path, offset.saturating_add(event.result as u64));
            }
            EventKind::ReadDirectory { .. } => self.need(path, true),
            EventKind::Unlink { .. } => {
                self.need(path, false);
                self.meanings.insert(path.to_vec(), Meaning::Missing);
            }
            EventKind::RemoveDirectory { .. } => {
                self.need(path, true);
                self.meanings.insert(path.to_vec(), Meaning::Missing);
            }
            EventKind::Link { .. } => {
                self.need(path, false);
                if let Some(to) = target {
                    self.need_parents(to);
                    let meaning = self.meanings.get(path).cloned().unwrap_or(Meaning::Made);
                    self.meanings.insert(to.to_vec(), meaning);
                }
            }
            EventKind::Rename { exchange, .. } => {
                if let Some(to) = target {
                    self.rename(path, to, exchange);
                }
            }
            // What may be a file or a directory is a file, unless something is found below it.
            _ => self.need(path, false),
        }
    }

    fn open(&mut self, path: &[u8], flags: OpenFlags) {
        if flags.contains(OpenFlags::CREATE) {
            // If it is needed before, a read of it says so.
            self.need_parents(path);
            let is_there = matches!(self.meanings.get(path), Some(Meaning::Initial(_)));
            if !is_there || flags.contains(OpenFlags::EXCLUSIVE) {
                let meaning = if flags.contains(OpenFlags::EXCLUSIVE)
                    || flags.contains(OpenFlags::TRUNCATE)
                    || self.meanings.contains_key(path)
                {
                    Meaning::Made
                } else {
                    Meaning::Initial(path.to_vec())
                };
                self.meanings.insert(path.to_vec(), meaning);
            }
        } else {
            self.need(path, flags.contains(OpenFlags::DIRECTORY));
        }
    }

    fn make(&mut self, path: &[u8]) {
        self.need_parents(path);
        self.meanings.insert(path.to_vec(), Meaning::Made);
    }

    /// The path means something; if the trace does not say what, it was there before.
    fn need(&mut self, path: &[u8], is_directory: bool) {
        if is_nameless(path) {
            return;
        }
        self.need_parents(path);
        let meaning = self.meanings.entry(path.to_vec());
        let meaning = meaning.or_insert_with(|| Meaning::Initial(path.to_vec()));
        if let Meaning::Initial(origin) = meaning {
            let wanted = if is_directory {
                Initial::Directory
            } else {
                Initial::File { size: 0 }
            };
            let initial = self.initial.entry(origin.clone()).or_insert(wanted);
            if is_directory {
                *initial = Initial::Directory;
            }
        }
    }

    fn need_size(&mut self, path: &[u8], end: u64) {
        if let Some(Meaning::Initial(origin)) = self.meanings.get(path)
            && let Some(Initial::File { size }) = self.initial.get_mut(origin)
        {
            *size = (*size).max(end);
        }
    }

    fn need_parents(&mut self, path: &[u8]) {
        let Some(slash) = path.iter().rposition(|&byte| byte == b'/') else {
            return;
        };
        if slash > 0 {
            self.need(&path[..slash], true);
        }
    }

    fn rename(&mut self, from: &[u8], to: &[u8], exchange: bool) {
        self.need(from, false);
        self.need_parents(to);
        if exchange {
            self.need(to, false);
        }
        let moved = self.take_tree(from);
        let replaced = self.take_tree(to);
        for (path, meaning) in moved {
            self.meanings
                .insert([to, &path[from.len()..]].concat(), meaning);
        }
        if exchange {
            for (path, meaning) in replaced {
                self.meanings
                    .insert([from, &path[to.len()..]].concat(), meaning);
            }
        } else {
            self.meanings.insert(from.to_vec(), Meaning::Missing);
        }
    }

    fn take_tree(&mut self, path: &[u8]) -> Vec<(Vec<u8>, Meaning)> {
        let is_below = |name: &[u8]| {
            let rest = name.strip_prefix(path);
            rest.is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
        };
        let below: Vec<Vec<u8>> = self
            .meanings
            .keys()
            .filter(|name| is_below(name))
            .cloned()
            .collect();
        let taken = below.into_iter().filter_map(|name| {
            let meaning = self.meanings.remove(&name)?;
            Some((name, meaning))
        });
        taken.collect()
    }

    /// Makes what must be there.
    pub(super) fn prepare(
        &self,
        trace: &Trace,
        directory: &Directory,
    ) -> Result<Prepared, ReplayError> {
        let mut prepared = Prepared::default();
        // In the order of paths, so directories come before what is in them.
        for (path, initial) in &self.initial {
            let made = match initial {
                Initial::Directory => directory.prepare_directory(path),
                Initial::File { size } => {
                    prepared.files += 1;
                    prepared.bytes += size;
                    let key = trace.paths.find(path).map_or(0, |path| path.0);
                    directory.prepare_file(path, key, *size)
                }
            };
            made.map_err(|source| ReplayError::Prepare {
                path: directory.shown(path),
                source,
            })?;
        }
        directory.sync().map_err(|source| ReplayError::Directory {
            path: directory.shown(b""),
            source,
        })?;
        Ok(prepared)
    }
}

const ENOENT: i64 = 2;

/// Whether a path stands for an open file without a name.
pub(super) fn is_nameless(path: &[u8]) -> bool {
    path.contains(&0)
}
