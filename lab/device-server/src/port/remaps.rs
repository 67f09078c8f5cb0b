//! Copies that a host has announced, and that a device does by sharing content.
//!
//! A host that moves files (ext4's MOVE_EXT) reads their pages and writes them elsewhere. If it has
//! said before which page goes where, the device compares what arrives with what the source
//! holds. Equal content is shared; any other write is a write. So an announcement that is wrong, or
//! out of date, costs nothing but the comparison.

use std::collections::BTreeMap;

use mobifs_base::VirtualNs;
use serde_json::{Value, json};
use thiserror::Error;

use crate::block::Refusal;
use crate::control::RemapPair;
use crate::device::Device;
use crate::image::PAGE_BYTES;

/// Pages that may be announced at a time: 4 GiB of content.
const PAGES_MAX: usize = 1 << 20;

/// Why copies cannot be announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum RemapError {
    /// The range is not one.
    #[error(
        "a remap takes whole pages of 4096 bytes that lie in the device and do not overlap; this one is {bytes} bytes from {from} to {to}",
        bytes = .0.bytes, from = .0.from, to = .0.to
    )]
    Misplaced(RemapPair),
    /// Too many.
    #[error("at most {PAGES_MAX} pages can be announced at a time; let some arrive first")]
    TooMany,
}

/// Announced copies, each for one write.
#[derive(Default)]
pub(super) struct Remaps {
    /// Offset of the destination page → that of its source.
    expected: BTreeMap<u64, u64>,
    /// Pages that arrived and were shared, or written because they could not be.
    shared: u64,
    written: u64,
}

/// A part of a write.
struct Part {
    start: usize,
    end: usize,
    /// Where its content should be already.
    from: Option<u64>,
}

impl Remaps {
    pub(super) fn is_empty(&self) -> bool {
        self.expected.is_empty()
    }

    /// Announces copies.
    pub(super) fn expect(
        &mut self,
        pairs: &[RemapPair],
        size_bytes: u64,
    ) -> Result<(), RemapError> {
        let mut pages = self.expected.len() as u64;
        for pair in pairs {
            let RemapPair { from, to, bytes } = *pair;
            let is_whole = [from, to, bytes].iter().all(|n| n % PAGE_BYTES == 0);
            let end = from.max(to).checked_add(bytes);
            let lies_within = end.is_some_and(|end| end <= size_bytes);
            if !is_whole || !lies_within || bytes == 0 || from.abs_diff(to) < bytes {
                return Err(RemapError::Misplaced(*pair));
            }
            pages = pages.saturating_add(bytes / PAGE_BYTES);
        }
        if pages > PAGES_MAX as u64 {
            return Err(RemapError::TooMany);
        }
        for pair in pairs {
            for offset in (0..pair.bytes).step_by(PAGE_BYTES as usize) {
                self.expected.insert(pair.to + offset, pair.from + offset);
            }
        }
        Ok(())
    }

    /// Forgets what has not arrived; says how many pages that were.
    pub(super) fn forget(&mut self) -> u64 {
        std::mem::take(&mut self.expected).len() as u64
    }

    pub(super) fn figures(&self) -> Value {
        json!({
            "pages_announced": self.expected.len(),
            "pages_shared": self.shared,
            "pages_written": self.written,
        })
    }

    /// Carries out a plain write, of which some may be announced.
    pub(super) fn write(
        &mut self,
        device: &mut dyn Device,
        at: VirtualNs,
        offset: u64,
        data: &[u8],
    ) -> Result<VirtualNs, Refusal> {
        let mut done_at = at;
        for part in self.parts(offset, data.len()) {
            let own = data.get(part.start..part.end).unwrap_or_default();
            let to = offset + part.start as u64;
            let done = match part.from {
                None => device.write(at, to, own, false)?,
                Some(from) => self.share(device, at, (from, to), own)?,
            };
            done_at = done_at.max(done);
        }
        Ok(done_at)
    }

    /// Shares what can be: all, or else page by page.
    fn share(
        &mut self,
        device: &mut dyn Device,
        at: VirtualNs,
        (from, to): (u64, u64),
        data: &[u8],
    ) -> Result<VirtualNs, Refusal> {
        if let Some(done) = device.share(at, from, to, data)? {
            self.shared += data.len() as u64 / PAGE_BYTES;
            return Ok(done);
        }
        let mut done_at = at;
        for (number, page) in (0..).zip(data.chunks(PAGE_BYTES as usize)) {
            let offset = number * PAGE_BYTES;
            let done = match device.share(at, from + offset, to + offset, page)? {
                Some(done) => {
                    self.shared += 1;
                    done
                }
                None => {
                    self.written += 1;
                    device.write(at, to + offset, page, false)?
                }
            };
            done_at = done_at.max(done);
        }
        Ok(done_at)
    }

    /// Divides a write into what was announced, whole pages from adjacent ones, and the rest. What was
    /// announced for its pages is forgotten.
    fn parts(&mut self, offset: u64, bytes: usize) -> Vec<Part> {
        let end = offset + bytes as u64;
        let mut parts: Vec<Part> = Vec::new();
        let mut start = offset;
        while start < end {
            let part_end = (start - start % PAGE_BYTES + PAGE_BYTES).min(end);
            let page = start - start % PAGE_BYTES;
            let is_whole = part_end - start == PAGE_BYTES;
            let from = self.expected.remove(&page).filter(|_| is_whole);
            let (from_start, to_end) = ((start - offset) as usize, (part_end - offset) as usize);
            match parts.last_mut() {
                Some(last) if follows(last, from) => last.end = to_end,
                _ => parts.push(Part {
                    start: from_start,
                    end: to_end,
                    from,
                }),
            }
            start = part_end;
        }
        parts
    }
}

/// Whether a page belongs to the part before it.
fn follows(last: &Part, from: Option<u64>) -> bool {
    match (last.from, from) {
        (None, None) => true,
        (Some(first), Some(from)) => first + (last.end - last.start) as u64 == from,
        _ => false,
    }
}
