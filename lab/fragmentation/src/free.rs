//! Free room: how many free extents of which size.

use serde::Serialize;

/// Free extents of up to 4 KiB, of up to twice as much, and so on.
const SMALLEST: u64 = 4096;
const SIZES: usize = 24;

/// Free extents of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct FreeSize {
    /// They are no larger than this, and larger than those of the entry before; none: no limit.
    pub bytes_max: Option<u64>,
    /// How many there are.
    pub extents: u64,
    /// How much room they are.
    pub bytes: u64,
}

/// All free room of a filesystem.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FreeSpace {
    /// Free extents; neighbours are one.
    pub extents: u64,
    /// Free bytes.
    pub bytes: u64,
    /// The largest free extent.
    pub largest_bytes: u64,
    /// Free bytes by free extents.
    pub mean_bytes: Option<f64>,
    /// By size, up to the largest that there is.
    pub sizes: Vec<FreeSize>,
}

/// Counts free extents, which come in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct FreeCounter {
    counts: [(u64, u64); SIZES],
    largest: u64,
    open: Option<(u64, u64)>,
}

impl FreeCounter {
    /// Start and length of a free extent; `done` gets start and length of one that is complete.
    pub(crate) fn push(&mut self, start: u64, length: u64, done: &mut dyn FnMut(u64, u64)) {
        let end = start.saturating_add(length);
        match &mut self.open {
            _ if length == 0 => {}
            Some((_, open_end)) if *open_end == start => *open_end = end,
            _ => {
                self.close(done);
                self.open = Some((start, end));
            }
        }
    }

    fn close(&mut self, done: &mut dyn FnMut(u64, u64)) {
        let Some((start, end)) = self.open.take() else {
            return;
        };
        let length = end - start;
        let mut size = 0;
        while size + 1 < SIZES && length > SMALLEST << size {
            size += 1;
        }
        self.counts[size].0 += 1;
        self.counts[size].1 += length;
        self.largest = self.largest.max(length);
        done(start, length);
    }

    pub(crate) fn finish(mut self, done: &mut dyn FnMut(u64, u64)) -> FreeSpace {
        self.close(done);
        let filled = self.counts.iter().rposition(|&(count, _)| count > 0);
        let sizes = self.counts.iter().enumerate();
        let sizes = sizes.take(filled.map_or(0, |last| last + 1));
        let sizes: Vec<_> = sizes
            .map(|(size, &(extents, bytes))| FreeSize {
                bytes_max: (size + 1 < SIZES).then_some(SMALLEST << size),
                extents,
                bytes,
            })
            .collect();
        let extents = sizes.iter().map(|size| size.extents).sum();
        let bytes = sizes.iter().map(|size| size.bytes).sum();
        FreeSpace {
            extents,
            bytes,
            largest_bytes: self.largest,
            mean_bytes: (extents > 0).then(|| bytes as f64 / extents as f64),
            sizes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_one_extent_and_sizes_are_counted() {
        let mut counter = FreeCounter::default();
        let mut seen = Vec::new();
        let extents = [
            (0, 4096),
            (8192, 4096),
            (12288, 1),
            (1 << 20, 1 << 40),
            (1 << 50, 0),
        ];
        for (start, length) in extents {
            counter.push(start, length, &mut |start, length| {
                seen.push((start, length))
            });
        }
        let free = counter.finish(&mut |start, length| seen.push((start, length)));
        assert_eq!(seen, [(0, 4096), (8192, 4097), (1 << 20, 1 << 40)]);
        assert_eq!((free.extents, free.largest_bytes), (3, 1 << 40));
        assert_eq!(free.bytes, 4096 + 4097 + (1 << 40));
        assert_eq!((free.sizes[0].extents, free.sizes[1].extents), (1, 1));
        assert_eq!(free.sizes.len(), SIZES);
        assert_eq!(free.sizes.last().unwrap().bytes_max, None);
    }

    #[test]
    fn a_full_filesystem_has_no_mean() {
        let free = FreeCounter::default().finish(&mut |_, _| {});
        assert_eq!(
            (free.extents, free.mean_bytes, free.sizes.len()),
            (0, None, 0)
        );
    }
}
