//! System calls of an Android app as MobiGen has them, one a line: thread, microseconds, call,
//! arguments, result.
//!
//! ```text
//! 5 18777676 pwrite 77 0 4096
//! 2 16985470 open "/dev/urandom" O_RDONLY|O_LARGEFILE 94
//! ```
//!
//! The lines are in the order of threads, not of time. Reads and writes have the number of bytes
//! that were moved; there are no error numbers.
//!
//! # Files and other things
//!
//! Most names are lost. Where a descriptor was used whose opening the recording had missed, the
//! tool that made the trace put an opening before its first use, of a bare `/data/data`. What
//! the descriptor is, a file, a pipe, a socket, an event descriptor, can only be seen from how it
//! is used until it is closed (a *life*), and is decided so:
//!
//! 1. a call that only files have (pread, pwrite, fsync) makes it a file;
//! 2. so does an opening whose name is known or lost only in part (`data/data`): a program did open
//!    that;
//! 3. so does fstat with reads or writes in one direction only: this is how a stream over a
//!    file begins;
//! 4. all else is none: reads that fail or that alternate with writes are sockets, writes of
//!    1, 4 or 8 bytes without a place are pipes and event descriptors.
//!
//! Names that are lost are made of the descriptor's number, because only the number distinguishes
//! files. An opening that makes or empties a file gets a name of its own: under the number alone,
//! it would discard the content of another file.
//!
//! In the trace of the Facebook app, rule 4 leaves out 8 descriptors with 5,975 writes of 1 or
//! 4 bytes each, which would make it a trace of wake-ups.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use super::text::{TextImport, content, decimal, shown};
use super::{ImportReport, LoadOptions};
use crate::edit::tool;
use crate::lines::Line;
use crate::model::{
    AppIndex, Event, EventKind, Header, OpenFlags, PathIndex, Trace, TraceBuilder, TraceNs,
};

const CALLS: [&[u8]; 11] = [
    b"open", b"close", b"read", b"write", b"pread", b"pwrite", b"fsync", b"fstat64", b"stat64",
    b"access", b"unlink",
];

/// What the format has for an opening that its tool made up.
const GUESSED_PATH: &[u8] = b"/data/data";
/// What it has for names that it lost in part.
const LOST_PATH: &[u8] = b"data/data";
/// The trace has no error numbers; what fails in it are lookups and openings.
const ERRNO_NOT_FOUND: i64 = 2;
const ERRNO_IO: i64 = 5;

#[derive(Clone, Debug)]
enum Call {
    Open {
        path: Vec<u8>,
        flags: OpenFlags,
        descriptor: i64,
    },
    Close {
        descriptor: i64,
    },
    Read {
        descriptor: i64,
        offset: Option<u64>,
        moved: i64,
    },
    Write {
        descriptor: i64,
        offset: Option<u64>,
        moved: i64,
    },
    Sync {
        descriptor: i64,
    },
    DescriptorStat {
        descriptor: i64,
    },
    Stat {
        path: Vec<u8>,
        result: i64,
    },
    Unlink {
        path: Vec<u8>,
        result: i64,
    },
}

#[derive(Clone, Debug)]
struct Entry {
    thread: u32,
    time_us: u64,
    call: Call,
}

fn number(text: &[u8]) -> Option<i64> {
    let (sign, digits) = match text.strip_prefix(b"-") {
        Some(digits) => (-1, digits),
        None => (1, text),
    };
    Some(i64::try_from(decimal(digits)?).ok()? * sign)
}

fn entry(line: &[u8]) -> Option<Entry> {
    let mut words = line.splitn(4, |&byte| byte == b' ');
    let thread = u32::try_from(decimal(words.next()?)?).ok()?;
    let time_us = decimal(words.next()?)?;
    time_us.checked_mul(1_000)?;
    let call = call(words.next()?, words.next()?)?;
    Some(Entry {
        thread,
        time_us,
        call,
    })
}

/// Arguments are parted by blanks; only a path, the first one, may have some itself.
fn call(name: &[u8], arguments: &[u8]) -> Option<Call> {
    let from_end = |count| {
        let mut words: Vec<&[u8]> = arguments.rsplitn(count, |&byte| byte == b' ').collect();
        words.reverse();
        (words.len() == count).then_some(words)
    };
    if name == b"open" {
        let words = from_end(3)?;
        return Some(Call::Open {
            path: unquoted(words[0]),
            flags: flags(words[1]),
            descriptor: number(words[2])?,
        });
    }
    if matches!(name, b"stat64" | b"access" | b"unlink") {
        let words = from_end(2)?;
        let (path, result) = (unquoted(words[0]), number(words[1])?);
        return Some(if name == b"unlink" {
            Call::Unlink { path, result }
        } else {
            Call::Stat { path, result }
        });
    }
    let numbers: Option<Vec<i64>> = arguments.split(|&byte| byte == b' ').map(number).collect();
    Some(match (name, numbers?.as_slice()) {
        (b"close", &[descriptor, _]) => Call::Close { descriptor },
        (b"read", &[descriptor, moved]) => Call::Read {
            descriptor,
            offset: None,
            moved,
        },
        (b"write", &[descriptor, moved]) => Call::Write {
            descriptor,
            offset: None,
            moved,
        },
        (b"pread", &[descriptor, offset, moved]) => Call::Read {
            descriptor,
            offset: Some(u64::try_from(offset).ok()?),
            moved,
        },
        (b"pwrite", &[descriptor, offset, moved]) => Call::Write {
            descriptor,
            offset: Some(u64::try_from(offset).ok()?),
            moved,
        },
        (b"fsync", &[descriptor, _]) => Call::Sync { descriptor },
        (b"fstat64", &[descriptor, _]) => Call::DescriptorStat { descriptor },
        _ => return None,
    })
}

/// Paths are in quotes, but the tool cut off some of them.
fn unquoted(path: &[u8]) -> Vec<u8> {
    let path = path.strip_prefix(b"\"").unwrap_or(path);
    path.strip_suffix(b"\"").unwrap_or(path).to_vec()
}

fn flags(words: &[u8]) -> OpenFlags {
    let mut flags = OpenFlags::NONE;
    for word in words.split(|&byte| byte == b'|') {
        flags |= match word {
            b"O_RDONLY" => OpenFlags::READ,
            b"O_WRONLY" => OpenFlags::WRITE,
            b"O_RDWR" => OpenFlags::READ | OpenFlags::WRITE,
            b"O_CREAT" => OpenFlags::CREATE,
            b"O_EXCL" => OpenFlags::EXCLUSIVE,
            b"O_TRUNC" => OpenFlags::TRUNCATE,
            b"O_APPEND" => OpenFlags::APPEND,
            b"O_SYNC" | b"O_DSYNC" => OpenFlags::SYNCHRONOUS,
            b"O_DIRECTORY" => OpenFlags::DIRECTORY,
            _ => OpenFlags::NONE,
        };
    }
    flags
}

/// Whether a line is one of this format.
pub(super) fn recognises(line: &[u8]) -> bool {
    let call = line.split(|&byte| byte == b' ').nth(2);
    call.is_some_and(|call| CALLS.contains(&call)) && entry(line).is_some()
}

pub(super) struct Import {
    app: Vec<u8>,
    keep_pipes: bool,
    entries: Vec<Entry>,
}

/// The files are called `mobigen.out.APP`.
fn app_of(path: &Path) -> Vec<u8> {
    let extension = path.extension().unwrap_or(OsStr::new("app"));
    extension.as_bytes().to_vec()
}

impl TextImport for Import {
    const LINE_BYTES_MAX: usize = 8192;

    fn new(path: &Path, options: &LoadOptions) -> Self {
        Self {
            app: app_of(path),
            keep_pipes: options.keep_pipes,
            entries: Vec::new(),
        }
    }

    fn line(
        &mut self,
        _number: u64,
        line: Line<'_>,
        _report: &mut ImportReport,
    ) -> Result<(), String> {
        let line = content(line, Self::LINE_BYTES_MAX)?;
        if line.is_empty() {
            return Ok(());
        }
        let entry = entry(line).ok_or_else(|| {
            format!(
                "'{}' is not: thread, microseconds, call, arguments",
                shown(line)
            )
        })?;
        self.entries.push(entry);
        Ok(())
    }

    fn finish(mut self, report: &mut ImportReport) -> Trace {
        self.entries.sort_by_key(|entry| entry.time_us);
        let (lives, life_of_entry) = lives(&self.entries);
        let mut events = Events::new(&self.app, self.keep_pipes, lives, report);
        for (entry, life) in self.entries.iter().zip(life_of_entry) {
            events.add(entry, life);
        }
        events.builder.finish()
    }
}

/// How a descriptor was used from its opening to its closing.
#[derive(Clone, Debug, Default)]
struct Life {
    descriptor: i64,
    path: Option<Vec<u8>>,
    has_file_call: bool,
    has_stat: bool,
    reads: u64,
    writes: u64,
    /// Which of the files that were made or emptied under this number it is; 0 for none.
    fresh: u64,
    /// The file was never opened in the trace, or its tool made the opening up.
    is_guessed: bool,
    /// Where the next read or write without an offset goes.
    position: u64,
}

impl Life {
    /// The rules of the module's documentation.
    const fn is_file(&self) -> bool {
        let one_way = (self.reads == 0) != (self.writes == 0);
        self.has_file_call || !self.is_guessed || (self.has_stat && one_way)
    }
}

/// The lives, and to which one each entry belongs.
fn lives(entries: &[Entry]) -> (Vec<Life>, Vec<Option<usize>>) {
    let mut lives: Vec<Life> = Vec::new();
    let mut open: HashMap<i64, usize> = HashMap::new();
    let mut fresh: HashMap<i64, u64> = HashMap::new();
    let mut of_entry = Vec::with_capacity(entries.len());
    for entry in entries {
        let descriptor = match entry.call {
            Call::Open { descriptor, .. } if descriptor < 0 => None,
            Call::Open { descriptor, .. } => {
                open.remove(&descriptor);
                Some(descriptor)
            }
            Call::Close { descriptor }
            | Call::Read { descriptor, .. }
            | Call::Write { descriptor, .. }
            | Call::Sync { descriptor }
            | Call::DescriptorStat { descriptor } => Some(descriptor),
            Call::Stat { .. } | Call::Unlink { .. } => None,
        };
        let Some(descriptor) = descriptor else {
            of_entry.push(None);
            continue;
        };
        let index = *open.entry(descriptor).or_insert_with(|| {
            lives.push(Life {
                descriptor,
                is_guessed: true,
                ..Life::default()
            });
            lives.len() - 1
        });
        of_entry.push(Some(index));
        let life = &mut lives[index];
        match &entry.call {
            Call::Open { path, flags, .. } => {
                life.is_guessed = path == GUESSED_PATH;
                let made = [OpenFlags::TRUNCATE, OpenFlags::EXCLUSIVE];
                if !life.is_guessed && made.iter().any(|&flag| flags.contains(flag)) {
                    let count = fresh.entry(descriptor).or_default();
                    *count += 1;
                    life.fresh = *count;
                }
                life.path = (!life.is_guessed && path != LOST_PATH).then(|| path.clone());
            }
            Call::Read { offset, .. } => {
                life.reads += 1;
                life.has_file_call |= offset.is_some();
            }
            Call::Write { offset, .. } => {
                life.writes += 1;
                life.has_file_call |= offset.is_some();
            }
            Call::Sync { .. } => life.has_file_call = true,
            Call::DescriptorStat { .. } => life.has_stat = true,
            Call::Close { .. } => {
                open.remove(&descriptor);
            }
            Call::Stat { .. } | Call::Unlink { .. } => {}
        }
    }
    (lives, of_entry)
}

struct Events<'a> {
    builder: TraceBuilder,
    app: AppIndex,
    lives: Vec<Life>,
    keep_pipes: bool,
    report: &'a mut ImportReport,
}

impl<'a> Events<'a> {
    fn new(app: &[u8], keep_pipes: bool, lives: Vec<Life>, report: &'a mut ImportReport) -> Self {
        let mut builder = TraceBuilder::new(Header {
            source: "mobigen".to_owned(),
            tool: tool(),
            notes: vec!["files without a known name are called descriptor-N".to_owned()],
        });
        Self {
            app: builder.app(app),
            builder,
            lives,
            keep_pipes,
            report,
        }
    }

    fn add(&mut self, entry: &Entry, life: Option<usize>) {
        if self.is_device(entry, life) {
            self.report.leave_out("file of the kernel: /dev, /proc");
            return;
        }
        if let Some(life) = life
            && !self.keep_pipes
            && !self.lives[life].is_file()
        {
            self.report.leave_out(left_out(&self.lives[life]));
            return;
        }
        let (kind, result) = self.kind(entry, life);
        self.builder.push(Event {
            time: TraceNs(entry.time_us.saturating_mul(1_000)),
            app: self.app,
            process: 1,
            thread: entry.thread,
            kind,
            result,
            duration_ns: 0,
        });
    }

    /// What a call does, and its result.
    fn kind(&mut self, entry: &Entry, life: Option<usize>) -> (EventKind, i64) {
        match &entry.call {
            Call::Stat { path, result } => {
                let path = self.builder.path(path);
                (EventKind::Stat { path }, errno(*result))
            }
            Call::Unlink { path, result } => {
                let path = self.builder.path(path);
                (EventKind::Unlink { path }, errno(*result))
            }
            Call::Open { path, flags, .. } => self.opening(path, *flags, life),
            Call::Close { .. } => (
                EventKind::Close {
                    path: self.path(life),
                },
                0,
            ),
            Call::Sync { .. } => {
                let path = self.path(life);
                (
                    EventKind::Sync {
                        path,
                        data_only: false,
                    },
                    0,
                )
            }
            Call::DescriptorStat { .. } => (
                EventKind::Stat {
                    path: self.path(life),
                },
                0,
            ),
            Call::Read { offset, moved, .. } => {
                let path = self.path(life);
                let (offset, length, result) = self.moved(life, *offset, *moved);
                (
                    EventKind::Read {
                        path,
                        offset,
                        length,
                    },
                    result,
                )
            }
            Call::Write { offset, moved, .. } => {
                let path = self.path(life);
                let (offset, length, result) = self.moved(life, *offset, *moved);
                (
                    EventKind::Write {
                        path,
                        offset,
                        length,
                    },
                    result,
                )
            }
        }
    }

    /// An opening that failed has no life.
    fn opening(&mut self, path: &[u8], flags: OpenFlags, life: Option<usize>) -> (EventKind, i64) {
        let Some(life) = life else {
            let path = self.builder.path(path);
            return (EventKind::Open { path, flags }, -ERRNO_NOT_FOUND);
        };
        let path = self.path(Some(life));
        let flags = if self.lives[life].is_guessed {
            guessed_flags(flags)
        } else {
            flags
        };
        (EventKind::Open { path, flags }, 0)
    }

    /// Whether it is about a file below `/dev` or `/proc`, whose names may be cut off in front.
    fn is_device(&self, entry: &Entry, life: Option<usize>) -> bool {
        let path = match &entry.call {
            Call::Open { path, .. } | Call::Stat { path, .. } | Call::Unlink { path, .. } => {
                Some(path)
            }
            _ => life.and_then(|life| self.lives[life].path.as_ref()),
        };
        path.is_some_and(|path| {
            let path = path.strip_prefix(b"/").unwrap_or(path);
            path.starts_with(b"dev/") || path.starts_with(b"proc/")
        })
    }

    /// The path of a life: its own, or one made of its descriptor's number.
    fn path(&mut self, life: Option<usize>) -> PathIndex {
        let Some(life) = life.map(|life| &self.lives[life]) else {
            return self.builder.path(b"");
        };
        match &life.path {
            Some(path) => self.builder.path(path),
            None => {
                let mut name = format!("descriptor-{}", life.descriptor);
                if life.fresh > 0 {
                    name = format!("{name}.{}", life.fresh);
                }
                self.builder.path(name.as_bytes())
            }
        }
    }

    /// Offset, length and result of a read or write.
    fn moved(&mut self, life: Option<usize>, offset: Option<u64>, moved: i64) -> (u64, u64, i64) {
        let bytes = u64::try_from(moved).unwrap_or(0);
        let result = if moved < 0 { -ERRNO_IO } else { moved };
        let Some(life) = life.map(|life| &mut self.lives[life]) else {
            return (0, bytes, result);
        };
        let at = offset.unwrap_or(life.position);
        if offset.is_none() {
            life.position = life.position.saturating_add(bytes);
        }
        (at, bytes, result)
    }
}

/// An opening that was made up truncated nothing.
fn guessed_flags(flags: OpenFlags) -> OpenFlags {
    flags.without(OpenFlags::TRUNCATE) | OpenFlags::READ
}

const fn errno(result: i64) -> i64 {
    if result < 0 { -ERRNO_NOT_FOUND } else { 0 }
}

fn left_out(life: &Life) -> &'static str {
    match (life.reads, life.writes) {
        (0, 0) => "descriptor of which only the end is known",
        (0, _) => "written without a place: a pipe or event descriptor",
        (_, 0) => "read without a place: a pipe, an event descriptor or a device",
        _ => "read and written without a place: a socket",
    }
}
