//! What a device holds before a trace begins. Pages that were never written are read
//! without touching the cells, so a trace on an empty device would read at bus speed.

use std::path::PathBuf;

use mobifs_base::{ByteRange, RangeSet};
use mobifs_device_model::{Host, SECTORS_PER_PAGE};
use mobifs_trace::block::Access;
use serde::Serialize;

use super::error::ReplayError;
use super::source::{ReadOptions, Source};

/// What is written before anything else, in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fill {
    /// Nothing: the device is new.
    Nothing,
    /// The pages that the traces read before they write them.
    Reads,
    /// Every page: the device is full, and further writes need garbage collection.
    Everything,
}

/// Fills the device for `traces`; how many pages were written.
pub(super) fn fill<'a>(
    host: &mut Host,
    traces: impl Iterator<Item = &'a PathBuf>,
    what: Fill,
    read: ReadOptions,
) -> Result<u64, ReplayError> {
    let device_pages = host.model().sectors() / u64::from(SECTORS_PER_PAGE);
    let pages = match what {
        Fill::Nothing => RangeSet::new(),
        Fill::Everything => {
            let mut all = RangeSet::new();
            all.insert(ByteRange::new(0, device_pages));
            all
        }
        Fill::Reads => {
            let mut content = Content::default();
            for path in traces {
                let mut source = Source::open(path, host.model().sectors(), read)?;
                while let Some(placed) = source.next()? {
                    for &(start, sectors) in &placed.ranges {
                        content.note(placed.access, start.0, u64::from(sectors));
                    }
                }
            }
            content.expected
        }
    };
    let mut filled = 0;
    for range in pages.iter() {
        host.fill(range.start, range.len())
            .map_err(ReplayError::Fill)?;
        filled += range.len();
    }
    Ok(filled)
}

/// Which pages traces expect to be there. The ranges are of pages.
#[derive(Default)]
struct Content {
    expected: RangeSet,
    written: RangeSet,
}

impl Content {
    fn note(&mut self, access: Access, start: u64, sectors: u64) {
        let per_page = u64::from(SECTORS_PER_PAGE);
        let pages = ByteRange::new(start / per_page, (start + sectors).div_ceil(per_page));
        match access {
            Access::Write { .. } => self.written.insert(pages),
            Access::Read => self.note_read(pages),
            Access::Discard | Access::Flush => {}
        }
    }

    fn note_read(&mut self, pages: ByteRange) {
        let mut missing = RangeSet::new();
        missing.insert(pages);
        let mut page = pages.start;
        while page < pages.end {
            if let Some(written) = self.written.range_at(page) {
                missing.remove(written);
                page = written.end;
            } else {
                page = match self.written.next_after(page) {
                    Some(written) => written.start,
                    None => break,
                };
            }
        }
        for range in missing.iter() {
            self.expected.insert(range);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_read_before_it_is_written_is_expected() {
        let write = Access::Write {
            flush_before: false,
            durable: false,
        };
        let mut content = Content::default();
        content.note(write, 80, 16); // pages 10 and 11
        content.note(write, 104, 8); // page 13
        content.note(Access::Read, 64, 64); // pages 8 to 15
        content.note(Access::Discard, 0, 800);
        content.note(write, 64, 64);
        content.note(Access::Read, 60, 8); // page 7, and 8, which is expected already
        let expected: Vec<_> = content.expected.iter().map(|r| (r.start, r.end)).collect();
        assert_eq!(expected, [(7, 10), (12, 13), (14, 16)]);
    }
}
