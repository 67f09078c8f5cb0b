//! Reading a journal.

use std::fs::File;
use std::io::{self, BufReader, Read as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use mobifs_base::VirtualNs;
use zerocopy::IntoBytes;

use super::JournalError;
use super::record::{FILE_MAGIC, FileHeader, Kind, Record, RecordHeader, VERSION};

/// Most that is read at once when a checksum is made.
const CHUNK_BYTES: u64 = 1 << 20;

/// A record and where its data lies.
#[derive(Clone, Copy, Debug)]
pub(super) struct Located {
    pub(super) record: Record,
    pub(super) data_offset: u64,
}

/// What begins an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BoundaryKind {
    /// The journal begins.
    Start,
    /// A flush was done.
    Flush,
    /// The power was cut; what survived is known.
    Cut,
}

/// The time between two boundaries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interval {
    /// What begins it.
    pub begins_with: BoundaryKind,
    /// When, in the model's time.
    pub begins_at: VirtualNs,
    /// What was done before this moment is durable.
    pub(super) durable_before: VirtualNs,
    /// Records before this index are older than a cut, whose outcome is recorded.
    pub(super) records_before_cut: usize,
    /// Records that may matter in this interval end here.
    pub(super) records_end: usize,
    /// Commands that may be lost, whole or in part, at the end of the interval.
    pub uncertain: usize,
}

/// A journal, read whole except for the data.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
    device_bytes: u64,
    records: Vec<Located>,
    intervals: Vec<Interval>,
    /// The journal ends in the middle of a record, as when the server was killed.
    is_cut_short: bool,
}

impl Journal {
    /// Reads and checks a journal.
    ///
    /// # Errors
    /// [`JournalError`].
    pub fn open(path: &Path) -> Result<Self, JournalError> {
        let file = File::open(path).map_err(JournalError::io(path))?;
        let file_bytes = file.metadata().map_err(JournalError::io(path))?.len();
        let mut reader = BufReader::with_capacity(CHUNK_BYTES as usize, &file);
        let device_bytes = read_header(&mut reader, path)?;
        let mut journal = Self {
            path: path.to_owned(),
            file: file.try_clone().map_err(JournalError::io(path))?,
            device_bytes,
            records: Vec::new(),
            intervals: Vec::new(),
            is_cut_short: false,
        };
        journal.read_records(&mut reader, file_bytes)?;
        journal.find_intervals();
        Ok(journal)
    }

    /// Size of the device, in bytes.
    pub const fn device_bytes(&self) -> u64 {
        self.device_bytes
    }

    /// The intervals in which a crash can fall, by number.
    pub fn intervals(&self) -> &[Interval] {
        &self.intervals
    }

    /// Whether the last record is incomplete and was left out.
    pub const fn is_cut_short(&self) -> bool {
        self.is_cut_short
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn records(&self) -> &[Located] {
        &self.records
    }

    /// Reads the data of a record from its byte `skip` on.
    pub(super) fn read_data(
        &self,
        located: &Located,
        skip: u64,
        out: &mut [u8],
    ) -> Result<(), JournalError> {
        self.file
            .read_exact_at(out, located.data_offset + skip)
            .map_err(JournalError::io(&self.path))
    }

    fn read_records(
        &mut self,
        reader: &mut BufReader<&File>,
        file_bytes: u64,
    ) -> Result<(), JournalError> {
        let failed = |error| JournalError::io(&self.path)(error);
        let mut position = size_of::<FileHeader>() as u64;
        let header_bytes = size_of::<RecordHeader>() as u64;
        while position < file_bytes {
            let mut header = RecordHeader::default();
            if position + header_bytes > file_bytes {
                self.is_cut_short = true;
                return Ok(());
            }
            reader.read_exact(header.as_mut_bytes()).map_err(failed)?;
            let damaged = || JournalError::Damaged {
                path: self.path.clone(),
                offset: position,
            };
            let (record, data_crc) =
                Record::decode(&header, self.device_bytes).ok_or_else(damaged)?;
            let data_offset = position + header_bytes;
            let end = data_offset + record.data_bytes();
            if end > file_bytes {
                self.is_cut_short = true;
                return Ok(());
            }
            let found = checksum(reader, record.data_bytes()).map_err(failed)?;
            if found != data_crc {
                return Err(damaged());
            }
            self.records.push(Located {
                record,
                data_offset,
            });
            position = end;
        }
        Ok(())
    }

    fn find_intervals(&mut self) {
        let mut intervals = vec![Interval {
            begins_with: BoundaryKind::Start,
            begins_at: self
                .records
                .first()
                .map_or(VirtualNs(0), |first| first.record.at),
            durable_before: VirtualNs(0),
            records_before_cut: 0,
            records_end: 0,
            uncertain: 0,
        }];
        for (index, located) in self.records.iter().enumerate() {
            let record = &located.record;
            let Some(&last) = intervals.last() else {
                continue;
            };
            match record.kind {
                Kind::Flush => {
                    close(
                        &mut intervals,
                        under_way_at_end(&self.records, index),
                        &self.records,
                    );
                    intervals.push(Interval {
                        begins_with: BoundaryKind::Flush,
                        begins_at: record.done_at,
                        durable_before: last.durable_before.max(record.at),
                        records_before_cut: last.records_before_cut,
                        ..last
                    });
                }
                Kind::Cut => {
                    close(&mut intervals, index, &self.records);
                    intervals.push(Interval {
                        begins_with: BoundaryKind::Cut,
                        begins_at: record.at,
                        durable_before: record.at,
                        records_before_cut: index,
                        ..last
                    });
                }
                _ => {}
            }
        }
        close(&mut intervals, self.records.len(), &self.records);
        self.intervals = intervals;
    }
}

/// A request during the flush `flush` may survive although the data that it flushes does not: the
/// index after the last such record.
fn under_way_at_end(records: &[Located], flush: usize) -> usize {
    let done_at = records[flush].record.done_at;
    records[flush + 1..]
        .iter()
        .position(|later| later.record.at >= done_at || later.record.kind == Kind::Cut)
        .map_or(records.len(), |count| flush + 1 + count)
}

/// Ends the last interval in front of the record `end`.
fn close(intervals: &mut [Interval], end: usize, records: &[Located]) {
    if let Some(last) = intervals.last_mut() {
        last.records_end = end;
        last.uncertain = records[last.records_before_cut..end]
            .iter()
            .filter(|located| last.leaves_open(&located.record))
            .count();
    }
}

impl Interval {
    /// Whether `record` may be lost at the end of the interval.
    pub(super) fn leaves_open(&self, record: &Record) -> bool {
        !matches!(record.kind, Kind::Flush | Kind::Cut | Kind::AfterCut)
            && !record.kind.is_durable()
            && record.done_at > self.durable_before
    }
}

fn read_header(reader: &mut impl io::Read, path: &Path) -> Result<u64, JournalError> {
    let mut header = FileHeader::default();
    let not_one = || JournalError::NotAJournal(path.to_owned());
    match reader.read_exact(header.as_mut_bytes()) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Err(not_one()),
        other => other.map_err(JournalError::io(path))?,
    }
    if header.magic != FILE_MAGIC {
        return Err(not_one());
    }
    if header.version.get() > VERSION {
        return Err(JournalError::NewerFormat {
            path: path.to_owned(),
            found: header.version.get(),
            supported: VERSION,
        });
    }
    if header.crc.get() != header.expected_crc() {
        return Err(not_one());
    }
    Ok(header.device_bytes.get())
}

/// Checksum of the next `bytes`.
fn checksum(reader: &mut BufReader<&File>, bytes: u64) -> io::Result<u32> {
    let mut crc = 0;
    let mut left = bytes;
    let mut chunk = vec![0; left.min(CHUNK_BYTES) as usize];
    while left > 0 {
        let part = &mut chunk[..left.min(CHUNK_BYTES) as usize];
        reader.read_exact(part)?;
        crc = crc32c::crc32c_append(crc, part);
        left -= part.len() as u64;
    }
    Ok(crc)
}
