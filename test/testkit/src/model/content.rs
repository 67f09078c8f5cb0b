//! Content of a regular file: bytes, with holes that cost nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes of one stored block.
const BLOCK_BYTES: usize = 4096;
const BLOCK_BYTES_U64: u64 = BLOCK_BYTES as u64;

/// The bytes of a file. Two contents are equal when the files read the same: a
/// block of zeros is never stored.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Content {
    size: u64,
    blocks: BTreeMap<u64, Arc<Vec<u8>>>,
}

impl Content {
    /// Size in bytes.
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// Changes the size; what is cut off is gone, what is added reads as zero.
    pub fn truncate(&mut self, size: u64) {
        if size < self.size {
            self.zero(size, self.size);
        }
        self.size = size;
    }

    /// Overwrites from `offset` on; grows the file when it must.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        let mut at = offset;
        let mut rest = data;
        while !rest.is_empty() {
            let within = (at % BLOCK_BYTES_U64) as usize;
            let count = rest.len().min(BLOCK_BYTES - within);
            self.change(at / BLOCK_BYTES_U64, |block| {
                block[within..within + count].copy_from_slice(&rest[..count]);
            });
            at += count as u64;
            rest = &rest[count..];
        }
        if !data.is_empty() {
            self.size = self.size.max(at);
        }
    }

    /// Makes `start..end` read as zero; the size stays.
    pub fn zero(&mut self, start: u64, end: u64) {
        let touched: Vec<u64> = self
            .blocks
            .range(start / BLOCK_BYTES_U64..end.div_ceil(BLOCK_BYTES_U64))
            .map(|(&index, _)| index)
            .collect();
        for index in touched {
            let base = index * BLOCK_BYTES_U64;
            let from = start.saturating_sub(base).min(BLOCK_BYTES_U64) as usize;
            let to = end.saturating_sub(base).min(BLOCK_BYTES_U64) as usize;
            self.change(index, |block| block[from..to].fill(0));
        }
    }

    /// Up to `length` bytes from `offset` on; fewer only at the end of the file.
    pub fn read(&self, offset: u64, length: usize) -> Vec<u8> {
        let length = (self.size.saturating_sub(offset)).min(length as u64) as usize;
        let mut out = vec![0; length];
        let end = offset + length as u64;
        for (&index, block) in self
            .blocks
            .range(offset / BLOCK_BYTES_U64..end.div_ceil(BLOCK_BYTES_U64))
        {
            let base = index * BLOCK_BYTES_U64;
            let (from, to) = (base.max(offset), (base + BLOCK_BYTES_U64).min(end));
            out[(from - offset) as usize..(to - offset) as usize]
                .copy_from_slice(&block[(from - base) as usize..(to - base) as usize]);
        }
        out
    }

    /// Whether a byte is not 0 that was something else before.
    pub fn has_more_than(&self, before: &Self) -> bool {
        let changed = self
            .blocks
            .iter()
            .filter(|(index, block)| before.blocks.get(index) != Some(block));
        changed.into_iter().any(|(index, block)| {
            let zeros = vec![0; BLOCK_BYTES];
            let earlier = before.blocks.get(index).map_or(&zeros, |block| &**block);
            let mut bytes = block.iter().zip(earlier);
            bytes.any(|(now, before)| *now != 0 && now != before)
        })
    }

    /// First place where the two differ, in words; none if they read the same.
    pub fn difference(&self, actual: &Self) -> Option<String> {
        if self.size != actual.size {
            return Some(format!(
                "size {} expected, {} found",
                self.size, actual.size
            ));
        }
        let blocks = self.blocks.keys().chain(actual.blocks.keys());
        let index = *blocks
            .filter(|index| self.blocks.get(index) != actual.blocks.get(index))
            .min()?;
        let base = index * BLOCK_BYTES_U64;
        let (expected, found) = (self.read(base, BLOCK_BYTES), actual.read(base, BLOCK_BYTES));
        let at = expected.iter().zip(&found).position(|(a, b)| a != b)?;
        Some(format!(
            "byte {}: {:#04x} expected, {:#04x} found (size {})",
            base + at as u64,
            expected[at],
            found[at],
            self.size
        ))
    }

    fn change(&mut self, index: u64, edit: impl FnOnce(&mut [u8])) {
        let block = self
            .blocks
            .entry(index)
            .or_insert_with(|| Arc::new(vec![0; BLOCK_BYTES]));
        edit(Arc::make_mut(block).as_mut_slice());
        if block.iter().all(|&byte| byte == 0) {
            self.blocks.remove(&index);
        }
    }
}

impl std::fmt::Debug for Content {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes in {} blocks", self.size, self.blocks.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Change {
        Write(u64, u8, usize),
        Zero(u64, u64),
        Truncate(u64),
    }

    fn change() -> impl Strategy<Value = Change> {
        prop_oneof![
            (0..20_000_u64, 0..3_u8, 0..9000_usize).prop_map(|(o, b, n)| Change::Write(o, b, n)),
            (0..20_000_u64, 0..9000_u64).prop_map(|(o, n)| Change::Zero(o, o + n)),
            (0..20_000_u64).prop_map(Change::Truncate),
        ]
    }

    proptest! {
        #[test]
        fn reads_like_a_vector(changes in prop::collection::vec(change(), 1..20)) {
            let (mut content, mut plain) = (Content::default(), Vec::<u8>::new());
            for change in changes {
                match change {
                    Change::Write(offset, byte, length) => {
                        content.write(offset, &vec![byte; length]);
                        if length > 0 {
                            let end = offset as usize + length;
                            plain.resize(plain.len().max(end), 0);
                            plain[offset as usize..end].fill(byte);
                        }
                    }
                    Change::Zero(start, end) => {
                        let end = end.min(plain.len() as u64);
                        if start < end {
                            content.zero(start, end);
                            plain[start as usize..end as usize].fill(0);
                        }
                    }
                    Change::Truncate(size) => {
                        content.truncate(size);
                        plain.resize(size as usize, 0);
                    }
                }
                prop_assert_eq!(content.size(), plain.len() as u64);
                prop_assert_eq!(&content.read(0, usize::MAX), &plain);
                prop_assert_eq!(&content.read(5000, 3000)[..],
                    &plain[plain.len().min(5000)..plain.len().min(8000)]);
                let mut copy = Content::default();
                copy.truncate(plain.len() as u64);
                copy.write(0, &plain);
                prop_assert_eq!(content.difference(&copy), None);
                prop_assert_eq!(&content, &copy);
            }
        }
    }
}
