//! The default output of blkparse:
//!
//! ```text
//!   8,0    3        1     0.000000000   697  D   W 223490 + 8 [kjournald]
//! ```
//!
//! Device, CPU, sequence number, seconds, process, action, `rwbs`, sector, number of sectors,
//! name of the process. A request appears once for each action that it went through; one of
//! them is taken, by default `D`: it was given to the driver.

use std::path::Path;

use super::text::{TextImport, content, decimal, seconds, shown};
use super::{ImportReport, LoadOptions};
use crate::edit::tool;
use crate::lines::Line;
use crate::model::{BlockCommand, Event, EventKind, Header, Trace, TraceBuilder, TraceNs};

const SECTOR_BYTES: u64 = 512;

/// The summary after the events begins with one of these.
const SUMMARY: [&[u8]; 6] = [
    b"CPU",
    b"Total",
    b"Reads",
    b"Throughput",
    b"Events",
    b"Skips",
];

/// One line of the output.
struct Action<'a> {
    device: u64,
    time_ns: u64,
    process: u32,
    action: &'a [u8],
    rwbs: &'a [u8],
    rest: Vec<&'a [u8]>,
}

fn action(line: &[u8]) -> Option<Action<'_>> {
    let mut words = line
        .split(u8::is_ascii_whitespace)
        .filter(|word| !word.is_empty());
    let device = words.next()?;
    let comma = device.iter().position(|&byte| byte == b',')?;
    let (major, minor) = (decimal(&device[..comma])?, decimal(&device[comma + 1..])?);
    let _cpu = decimal(words.next()?)?;
    let _sequence = decimal(words.next()?)?;
    let time_ns = seconds(words.next()?)?;
    let process = u32::try_from(decimal(words.next()?)?).ok()?;
    Some(Action {
        // As the kernel's own number of a device.
        device: major.checked_mul(1 << 20)?.checked_add(minor)?,
        time_ns,
        process,
        action: words.next()?,
        rwbs: words.next().unwrap_or_default(),
        rest: words.collect(),
    })
}

/// Whether a line is one of this format.
pub(super) fn recognises(line: &[u8]) -> bool {
    action(line).is_some()
}

pub(super) struct Import {
    builder: TraceBuilder,
    action: u8,
    start_ns: Option<u64>,
    has_ended: bool,
}

impl TextImport for Import {
    const LINE_BYTES_MAX: usize = 4096;

    fn new(_path: &Path, options: &LoadOptions) -> Self {
        Self {
            builder: TraceBuilder::new(Header {
                source: "blkparse".to_owned(),
                tool: tool(),
                notes: vec![format!("action {}", char::from(options.action))],
            }),
            action: options.action,
            start_ns: None,
            has_ended: false,
        }
    }

    fn line(
        &mut self,
        _number: u64,
        line: Line<'_>,
        report: &mut ImportReport,
    ) -> Result<(), String> {
        let line = content(line, Self::LINE_BYTES_MAX)?;
        self.has_ended |= SUMMARY.iter().any(|word| line.starts_with(word));
        if line.is_empty() || self.has_ended {
            return Ok(());
        }
        let Some(action) = action(line) else {
            return Err(format!("'{}' is no line of blkparse", shown(line)));
        };
        if action.action != [self.action] {
            let name = String::from_utf8_lossy(action.action);
            report.leave_out(&format!("action {name}"));
            return Ok(());
        }
        self.add(&action, report)
    }

    fn finish(self, _report: &mut ImportReport) -> Trace {
        self.builder.finish()
    }
}

impl Import {
    fn add(&mut self, action: &Action<'_>, report: &mut ImportReport) -> Result<(), String> {
        // A range is `sector + count`; a flush has none.
        let (range, name) = match action.rest.as_slice() {
            [sector, b"+", count, name @ ..] => {
                let range = (decimal(sector), decimal(count));
                let (Some(sector), Some(count)) = range else {
                    return Err("sector and count are not numbers".to_owned());
                };
                (Some((sector, count)), name)
            }
            name => (None, name),
        };
        let range = range.map(|(sector, count)| {
            (
                sector.saturating_mul(SECTOR_BYTES),
                count.saturating_mul(SECTOR_BYTES),
            )
        });
        let Some(commands) = commands(action.rwbs, range.is_some()) else {
            let rwbs = String::from_utf8_lossy(action.rwbs);
            report.leave_out(&format!("request of the kind '{rwbs}'"));
            return Ok(());
        };
        let start_ns = *self.start_ns.get_or_insert(action.time_ns);
        let name = name.join(&b' ');
        let name = name.strip_prefix(b"[").unwrap_or(&name);
        let name = name.strip_suffix(b"]").unwrap_or(name);
        let app = self.builder.app(if name.is_empty() { b"." } else { name });
        for (command, is_forced_unit_access) in commands {
            let range = if command == BlockCommand::Flush {
                None
            } else {
                range
            };
            let (offset, length) = range.unwrap_or_default();
            self.builder.push(Event {
                time: TraceNs(action.time_ns.saturating_sub(start_ns)),
                app,
                process: action.process,
                thread: action.process,
                kind: EventKind::Block {
                    device: action.device,
                    command,
                    offset,
                    length,
                    is_forced_unit_access,
                },
                result: 0,
                duration_ns: 0,
            });
        }
        Ok(())
    }
}

/// What an `rwbs` asks for: an F before the operation is a flush, one after it FUA.
fn commands(rwbs: &[u8], has_range: bool) -> Option<Vec<(BlockCommand, bool)>> {
    let (flush, rest) = match rwbs {
        [b'F', rest @ ..] => (true, rest),
        rest => (false, rest),
    };
    let mut commands = Vec::new();
    if flush {
        commands.push((BlockCommand::Flush, false));
    }
    let command = match rest.first() {
        Some(b'R') => Some(BlockCommand::Read),
        Some(b'W') => Some(BlockCommand::Write),
        Some(b'D') => Some(BlockCommand::Discard),
        None | Some(b'N' | b'F' | b'S') if flush => None,
        _ => return None,
    };
    if let Some(command) = command
        && has_range
    {
        commands.push((command, rest[1..].contains(&b'F')));
    }
    (!commands.is_empty()).then_some(commands)
}
