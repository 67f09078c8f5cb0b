//! Block requests of a phone, one a line; [`crate::block`] reads the lines.

use std::collections::HashMap;
use std::path::Path;

use super::text::TextImport;
use super::{ImportReport, LoadOptions};
use crate::block::{Access, BlockRequest, LINE_BYTES_MAX, RepeatFilter, is_header, parse_line};
use crate::edit::tool;
use crate::lines::Line;
use crate::model::{
    AppIndex, BlockCommand, Event, EventKind, Header, Trace, TraceBuilder, TraceNs,
};

const SECTOR_BYTES: u64 = 512;

/// Whether a line is one of this format.
pub(super) fn recognises(line: &[u8]) -> bool {
    is_header(line) || parse_line(line).is_ok()
}

pub(super) struct Import {
    builder: TraceBuilder,
    repeats: Option<RepeatFilter>,
    start_ns: Option<u64>,
    apps: HashMap<Vec<u8>, AppIndex>,
}

impl TextImport for Import {
    const LINE_BYTES_MAX: usize = LINE_BYTES_MAX;

    fn new(_path: &Path, options: &LoadOptions) -> Self {
        Self {
            builder: TraceBuilder::new(Header {
                source: "pixel".to_owned(),
                tool: tool(),
                notes: Vec::new(),
            }),
            repeats: (!options.keep_repeats).then(RepeatFilter::default),
            start_ns: None,
            apps: HashMap::new(),
        }
    }

    fn line(
        &mut self,
        number: u64,
        line: Line<'_>,
        report: &mut ImportReport,
    ) -> Result<(), String> {
        let content = super::text::content(line, LINE_BYTES_MAX)?;
        if content.is_empty() || (number == 1 && is_header(content)) {
            return Ok(());
        }
        let request = parse_line(content).map_err(|error| error.to_string())?;
        if self
            .repeats
            .as_mut()
            .is_some_and(|repeats| repeats.is_repeat(&request))
        {
            report.leave_out("issued again while the controller woke");
            return Ok(());
        }
        let start_ns = *self.start_ns.get_or_insert(request.at_ns);
        if request.at_ns < start_ns {
            report.leave_out("earlier than the first line");
            return Ok(());
        }
        self.add(&request, TraceNs(request.at_ns - start_ns));
        Ok(())
    }

    fn finish(self, _report: &mut ImportReport) -> Trace {
        self.builder.finish()
    }
}

impl Import {
    fn add(&mut self, request: &BlockRequest, time: TraceNs) {
        // `name-id`; names have `-` in them, too.
        let dash = request.process.iter().rposition(|&byte| byte == b'-');
        let (name, id) = match dash {
            Some(dash) => (&request.process[..dash], &request.process[dash + 1..]),
            None => (&request.process[..], &b""[..]),
        };
        let thread = super::text::decimal(id).and_then(|id| u32::try_from(id).ok());
        let builder = &mut self.builder;
        let app = *self
            .apps
            .entry(name.to_vec())
            .or_insert_with(|| builder.app(name));
        let command = match request.access {
            Access::Read => BlockCommand::Read,
            Access::Write { .. } => BlockCommand::Write,
            Access::Discard => BlockCommand::Discard,
            Access::Flush => BlockCommand::Flush,
        };
        let (flush_before, durable) = match request.access {
            Access::Write {
                flush_before,
                durable,
            } => (flush_before, durable),
            _ => (false, false),
        };
        let mut push = |command, offset, length, is_forced_unit_access| {
            builder.push(Event {
                time,
                app,
                process: 0,
                thread: thread.unwrap_or(0),
                kind: EventKind::Block {
                    device: request.device,
                    command,
                    offset,
                    length,
                    is_forced_unit_access,
                },
                result: 0,
                duration_ns: 0,
            });
        };
        if flush_before {
            push(BlockCommand::Flush, 0, 0, false);
        }
        let offset = request.start.saturating_mul(SECTOR_BYTES);
        let length = u64::from(request.sectors) * SECTOR_BYTES;
        push(command, offset, length, durable);
    }
}
