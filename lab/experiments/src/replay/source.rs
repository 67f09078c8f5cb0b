//! A trace as requests for a device of some size.

use std::path::{Path, PathBuf};

use mobifs_device_model::{CommandError, Sector};
use mobifs_trace::block::{Access, BlockRequest, RepeatFilter, TraceError, TraceReader};
use serde::Serialize;

use super::error::ReplayError;

/// Malformed lines that a report quotes.
const QUOTED_MAX: usize = 20;

/// How lines become requests.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReadOptions {
    /// Stop at the first line that cannot be understood.
    pub strict: bool,
    /// Addresses beyond the device start again at its beginning.
    pub wrap: bool,
    /// Requests that were issued twice, because the controller slept, count twice.
    pub keep_repeats: bool,
}

/// What became of the lines of traces.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LineCounts {
    /// All lines, headers and empty ones included.
    pub lines: u64,
    /// Lines that could not be understood and were skipped.
    pub malformed: u64,
    /// The first of them, with file, number and reason.
    pub malformed_quoted: Vec<String>,
    /// Requests that were issued again while the controller woke, counted once.
    pub repeats_dropped: u64,
    /// Requests recorded earlier than the line before; issued right after it.
    pub out_of_order: u64,
    /// Requests with addresses beyond the device, moved into it.
    pub wrapped: u64,
}

impl LineCounts {
    pub(super) fn add(&mut self, other: Self) {
        self.lines += other.lines;
        self.malformed += other.malformed;
        self.repeats_dropped += other.repeats_dropped;
        self.out_of_order += other.out_of_order;
        self.wrapped += other.wrapped;
        let room = QUOTED_MAX.saturating_sub(self.malformed_quoted.len());
        let quoted = other.malformed_quoted.into_iter().take(room);
        self.malformed_quoted.extend(quoted);
    }
}

/// A request with its place in the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Placed {
    pub(super) at_ns: u64,
    pub(super) access: Access,
    /// Several, if it was folded around the end of the device.
    pub(super) ranges: Vec<(Sector, u32)>,
}

impl Placed {
    pub(super) const fn flushes_before(&self) -> bool {
        matches!(
            self.access,
            Access::Flush
                | Access::Write {
                    flush_before: true,
                    ..
                }
        )
    }
}

pub(super) struct Source {
    path: PathBuf,
    reader: TraceReader,
    repeats: RepeatFilter,
    options: ReadOptions,
    device_sectors: u64,
    latest_ns: u64,
    counts: LineCounts,
}

impl Source {
    pub(super) fn open(
        path: &Path,
        device_sectors: u64,
        options: ReadOptions,
    ) -> Result<Self, TraceError> {
        Ok(Self {
            path: path.to_owned(),
            reader: TraceReader::open(path)?,
            repeats: RepeatFilter::default(),
            options,
            device_sectors,
            latest_ns: 0,
            counts: LineCounts::default(),
        })
    }

    /// The next request; none at the end of the trace.
    pub(super) fn next(&mut self) -> Result<Option<Placed>, ReplayError> {
        while let Some(item) = self.reader.next() {
            let request = match item {
                Ok(request) => request,
                Err(error @ TraceError::Line { .. }) if !self.options.strict => {
                    self.note_malformed(&error);
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            if !self.options.keep_repeats && self.repeats.is_repeat(&request) {
                self.counts.repeats_dropped += 1;
                continue;
            }
            self.counts.out_of_order += u64::from(request.at_ns < self.latest_ns);
            self.latest_ns = self.latest_ns.max(request.at_ns);
            return self.place(&request).map(Some);
        }
        Ok(None)
    }

    fn note_malformed(&mut self, error: &TraceError) {
        self.counts.malformed += 1;
        if self.counts.malformed_quoted.len() < QUOTED_MAX {
            self.counts.malformed_quoted.push(error.to_string());
        }
    }

    fn place(&mut self, request: &BlockRequest) -> Result<Placed, ReplayError> {
        let device_sectors = self.device_sectors;
        let mut start = request.start;
        let mut left = request.sectors;
        let end = start.saturating_add(u64::from(left));
        let mut ranges = Vec::with_capacity(1);
        if end > device_sectors {
            if !self.options.wrap || u64::from(left) > device_sectors {
                return Err(ReplayError::Beyond {
                    path: self.path.clone(),
                    line: self.reader.lines(),
                    end,
                    device_sectors,
                });
            }
            self.counts.wrapped += 1;
            start %= device_sectors;
            let before_end = device_sectors - start;
            if let Ok(first) = u32::try_from(before_end)
                && first < left
            {
                ranges.push((Sector(start), first));
                left -= first;
                start = 0;
            }
        }
        if left > 0 {
            ranges.push((Sector(start), left));
        }
        Ok(Placed {
            at_ns: request.at_ns,
            access: request.access,
            ranges,
        })
    }

    /// The error for a request that the device refused: the last one.
    pub(super) fn refused(&self, source: CommandError) -> ReplayError {
        ReplayError::Refused {
            path: self.path.clone(),
            line: self.reader.lines(),
            source,
        }
    }

    pub(super) fn into_counts(self) -> LineCounts {
        LineCounts {
            lines: self.reader.lines(),
            ..self.counts
        }
    }
}
