//! Where files lie, for the picture: those that are most fragmented exactly, the others as a shade.
//! Memory has a bound, however many files and extents there are.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use crate::bins::Bins;
use crate::kind::Kind;
use crate::shape::{FileShape, Run};

/// Files that get a colour.
pub(crate) const FILES_MAX: usize = 200;
/// Places that are kept of a file; of more, neighbours become one.
const PLACES_MAX: usize = 4096;

/// Where one file lies: parts from, to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Places {
    parts: Vec<(u64, u64)>,
    /// Parts with smaller gaps between them are one.
    gap: u64,
}

impl Places {
    pub(crate) fn add(&mut self, run: Run) {
        self.parts.push((run.start, run.end));
        if self.parts.len() > PLACES_MAX {
            self.coarsen();
        }
    }

    pub(crate) fn clear(&mut self) {
        self.parts.clear();
        self.gap = 0;
    }

    /// In the order of addresses; what overlaps or touches is one.
    pub(crate) fn sorted(mut self) -> Vec<(u64, u64)> {
        self.parts.sort_unstable();
        self.join(0);
        self.parts
    }

    /// Whether some are drawn as one.
    pub(crate) const fn is_coarse(&self) -> bool {
        self.gap > 0
    }

    fn coarsen(&mut self) {
        self.parts.sort_unstable();
        loop {
            self.join(self.gap);
            if self.parts.len() <= PLACES_MAX / 2 {
                return;
            }
            self.gap = self.gap.saturating_mul(2).max(4096);
        }
    }

    /// Makes one of parts with no more than `gap` between them; they are sorted.
    fn join(&mut self, gap: u64) {
        self.parts.dedup_by(|next, before| {
            let is_near = next.0 <= before.1.saturating_add(gap);
            if is_near {
                before.1 = before.1.max(next.1);
            }
            is_near
        });
    }
}

/// A file of the picture.
#[derive(Clone, Debug)]
pub(crate) struct Drawn {
    pub(crate) path: Vec<u8>,
    pub(crate) kind: Kind,
    pub(crate) shape: FileShape,
    pub(crate) size: u64,
    pub(crate) places: Places,
}

impl Drawn {
    fn rank(&self) -> (u64, u64) {
        rank(&self.shape)
    }
}

/// Most fragmented first, then largest.
const fn rank(shape: &FileShape) -> (u64, u64) {
    (shape.excess(), shape.mapped_bytes)
}

/// The other way round, so that the heap has on top what goes first.
impl Ord for Drawn {
    fn cmp(&self, other: &Self) -> Ordering {
        other
            .rank()
            .cmp(&self.rank())
            .then_with(|| self.path.cmp(&other.path))
    }
}

impl PartialOrd for Drawn {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Drawn {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Drawn {}

/// What is known of where things lie on one filesystem.
#[derive(Clone, Debug, Default)]
pub(crate) struct Layout {
    files: BinaryHeap<Drawn>,
    /// Files that have places and no colour.
    pub(crate) without_colour: u64,
    pub(crate) taken: Bins,
    pub(crate) free: Bins,
    /// The highest address that was seen.
    pub(crate) end: u64,
}

impl Layout {
    /// Something lies here.
    pub(crate) fn take(&mut self, run: Run) {
        self.end = self.end.max(run.end);
        self.taken.add(run.start, run.end);
    }

    /// Nothing lies here.
    pub(crate) fn leave_free(&mut self, start: u64, length: u64) {
        let end = start.saturating_add(length);
        self.end = self.end.max(end);
        self.free.add(start, end);
    }

    /// Keeps a file if it is among the most fragmented.
    pub(crate) fn consider(
        &mut self,
        path: &[u8],
        kind: Kind,
        size: u64,
        shape: &FileShape,
        places: &Places,
    ) {
        if places.parts.is_empty() {
            return;
        }
        if self.files.len() >= FILES_MAX {
            self.without_colour += 1;
            if self
                .files
                .peek()
                .is_some_and(|least| least.rank() >= rank(shape))
            {
                return;
            }
            self.files.pop();
        }
        self.files.push(Drawn {
            path: path.to_vec(),
            kind,
            shape: *shape,
            size,
            places: places.clone(),
        });
    }

    /// The files with colours, the most fragmented first.
    pub(crate) fn drawn(&self) -> Vec<&Drawn> {
        let mut files: Vec<_> = self.files.iter().collect();
        files.sort_unstable();
        files
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(start: u64, length: u64) -> Run {
        Run {
            start,
            end: start + length,
            length,
            new_bytes: length,
        }
    }

    #[test]
    fn a_file_of_very_many_pieces_keeps_few_places_that_cover_all() {
        let mut places = Places::default();
        const PIECES: u64 = 100_000;
        let piece = |n: u64| (n * 7919 % PIECES) * 65536;
        for n in 0..PIECES {
            places.add(run(piece(n), 4096));
        }
        assert!(places.is_coarse() && places.parts.len() <= PLACES_MAX);
        let parts = places.sorted();
        for n in 0..PIECES {
            let at = piece(n);
            let after = parts.partition_point(|part| part.0 <= at);
            assert!(after > 0 && parts[after - 1].1 >= at + 4096, "{at}");
        }
    }

    #[test]
    fn the_most_fragmented_files_get_the_colours() {
        let mut layout = Layout::default();
        for extents in 0..1000_u64 {
            // Not in order.
            let extents = extents * 337 % 1000 + 1;
            let shape = FileShape {
                extents,
                least: 1,
                ..FileShape::default()
            };
            let mut places = Places::default();
            places.add(run(0, 1));
            layout.consider(&extents.to_be_bytes(), Kind::Other, 1, &shape, &places);
        }
        let extents: Vec<_> = layout
            .drawn()
            .iter()
            .map(|file| file.shape.extents)
            .collect();
        let expected: Vec<_> = (801..=1000).rev().collect();
        assert_eq!(extents, expected);
        assert_eq!(layout.without_colour, 800);
        layout.consider(
            b"",
            Kind::Other,
            0,
            &FileShape::default(),
            &Places::default(),
        );
        assert_eq!(
            layout.without_colour, 800,
            "a file without places is not missing"
        );
    }
}
