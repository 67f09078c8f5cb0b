//! What shape a file has: how many extents, how many it could do with, and how large they are.

use crate::extent::Extent;

/// Levels of sizes of fragments (S4, Table 2).
pub const FS_LEVELS: usize = 7;
/// The largest fragment of level 1; each further level goes to twice the size, the last has no end.
const LEVEL_1_BYTES_MAX: u64 = 16 << 10;

/// The index, from 0, of the level of a fragment of this size.
#[must_use]
pub fn level(bytes: u64) -> usize {
    let mut most = LEVEL_1_BYTES_MAX;
    let mut level = 0;
    while bytes > most && level + 1 < FS_LEVELS {
        most *= 2;
        level += 1;
    }
    level
}

/// A maximal part of a file that is contiguous in the file and on the disk: a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Where it begins in the filesystem, in bytes.
    pub start: u64,
    /// Where it ends there. Of encoded data this is the most that it can be.
    pub end: u64,
    /// Its length in the file.
    pub length: u64,
    /// Its length without what an earlier file has brought already (shared extents).
    pub new_bytes: u64,
}

/// What is counted of one file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileShape {
    /// Extents after merging: a run that is longer than the largest extent counts as several.
    pub extents: u64,
    /// The least number of extents that the file could have, with its holes.
    pub least: u64,
    /// Runs.
    pub runs: u64,
    /// The number of runs of each level with anything new.
    pub levels: [u64; FS_LEVELS],
    /// Bytes that have a place, up to the end of the file.
    pub mapped_bytes: u64,
    /// Those of them that no earlier file has brought.
    pub new_bytes: u64,
    /// Those that were never written.
    pub unwritten_bytes: u64,
    /// Those that are shared with other files.
    pub shared_bytes: u64,
    /// Some of the file has no known place.
    pub is_unplaced: bool,
    /// The file, or its beginning, lies within metadata.
    pub is_inline: bool,
    /// Some of it is compressed or encrypted by the filesystem.
    pub is_encoded: bool,
}

impl FileShape {
    /// The degree of fragmentation: extents by least extents. None of a file without blocks, or
    /// with places that are not known.
    #[must_use]
    pub fn dof(&self) -> Option<f64> {
        if self.is_unplaced {
            None
        } else if self.extents > 0 {
            Some(self.extents as f64 / self.least as f64)
        } else {
            self.is_inline.then_some(1.0)
        }
    }

    /// Extents more than least.
    #[must_use]
    pub const fn excess(&self) -> u64 {
        self.extents.saturating_sub(self.least)
    }
}

/// The run that is being put together.
#[derive(Clone, Copy, Debug)]
struct Open {
    run: Run,
    /// Where the next extent of the file has to begin.
    logical_end: u64,
    /// Where it may begin on the disk: the least and the most.
    next: (u64, u64),
}

/// Counts the extents of one file, which come in the order of the file, one by one.
#[derive(Clone, Debug)]
pub struct Pieces {
    shape: FileShape,
    /// The end of the file, rounded up to a block: what is after it is no fragment.
    end: u64,
    extent_bytes_max: u64,
    open: Option<Open>,
    /// Length so far of the part between two holes.
    segment_bytes: u64,
}

impl Pieces {
    /// For a file of this size, on a filesystem with this largest extent (none: no limit).
    #[must_use]
    pub fn new(size: u64, block_bytes: u64, extent_bytes_max: Option<u64>) -> Self {
        Self {
            shape: FileShape::default(),
            end: size
                .checked_next_multiple_of(block_bytes.max(1))
                .unwrap_or(u64::MAX),
            extent_bytes_max: extent_bytes_max.unwrap_or(u64::MAX).max(1),
            open: None,
            segment_bytes: 0,
        }
    }

    /// Up to where extents matter.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.end
    }

    /// The next extent. `is_new`: no earlier file has brought it. A finished run goes to `runs`.
    pub fn push(&mut self, extent: Extent, is_new: bool, runs: &mut dyn FnMut(Run)) {
        let reached = self.open.map_or(0, |open| open.logical_end);
        let Some(extent) = clip(extent, reached, self.end) else {
            return;
        };
        if extent.is_inline {
            self.shape.is_inline = true;
            return;
        }
        if extent.is_unplaced {
            self.shape.is_unplaced = true;
            return;
        }
        self.count(&extent, is_new);
        let logical_end = extent.logical + extent.length;
        let physical_end = extent.physical.saturating_add(extent.length);
        // What is encoded takes less than its length: how much is not reported.
        let next_least = if extent.is_encoded {
            extent.physical
        } else {
            physical_end
        };
        let continued = self.open.filter(|open| {
            open.logical_end == extent.logical
                && (open.next.0..=open.next.1).contains(&extent.physical)
        });
        let mut open = continued.unwrap_or_else(|| {
            self.close(runs);
            let run = Run {
                start: extent.physical,
                end: extent.physical,
                length: 0,
                new_bytes: 0,
            };
            Open {
                run,
                logical_end,
                next: (0, 0),
            }
        });
        if reached != extent.logical {
            self.end_segment();
        }
        self.segment_bytes = self.segment_bytes.saturating_add(extent.length);
        open.run.length = open.run.length.saturating_add(extent.length);
        open.run.new_bytes += if is_new { extent.length } else { 0 };
        open.run.end = physical_end;
        open.logical_end = logical_end;
        open.next = (next_least, physical_end);
        self.open = Some(open);
    }

    /// The file has no more extents.
    pub fn finish(mut self, runs: &mut dyn FnMut(Run)) -> FileShape {
        self.close(runs);
        self.end_segment();
        self.shape
    }

    fn count(&mut self, extent: &Extent, is_new: bool) {
        let shape = &mut self.shape;
        let add = |sum: &mut u64, applies: bool| {
            *sum = sum.saturating_add(if applies { extent.length } else { 0 });
        };
        add(&mut shape.mapped_bytes, true);
        add(&mut shape.new_bytes, is_new);
        add(&mut shape.unwritten_bytes, extent.is_unwritten);
        add(&mut shape.shared_bytes, extent.is_shared);
        shape.is_encoded |= extent.is_encoded;
    }

    fn close(&mut self, runs: &mut dyn FnMut(Run)) {
        let Some(open) = self.open.take() else {
            return;
        };
        let shape = &mut self.shape;
        shape.runs += 1;
        shape.extents += open.run.length.div_ceil(self.extent_bytes_max);
        if open.run.new_bytes > 0 {
            shape.levels[level(open.run.length)] += 1;
        }
        runs(open.run);
    }

    /// A hole, or the end of the file: no extent reaches across it.
    fn end_segment(&mut self) {
        self.shape.least += self.segment_bytes.div_ceil(self.extent_bytes_max);
        self.segment_bytes = 0;
    }
}

/// The part of an extent that lies between two places of the file; none if nothing does.
fn clip(mut extent: Extent, start: u64, end: u64) -> Option<Extent> {
    let extent_end = extent.logical.saturating_add(extent.length).min(end);
    if extent.logical < start {
        let before = start - extent.logical;
        if !extent.is_encoded {
            extent.physical = extent.physical.saturating_add(before);
        }
        extent.logical = start;
    }
    extent.length = extent_end.checked_sub(extent.logical)?;
    (extent.length > 0).then_some(extent)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const EXT4: Option<u64> = Some(128 * MIB);

    fn extent(logical: u64, physical: u64, length: u64) -> Extent {
        Extent {
            logical,
            physical,
            length,
            ..Extent::default()
        }
    }

    fn shape_with(size: u64, limit: Option<u64>, extents: &[Extent]) -> (FileShape, Vec<Run>) {
        let mut runs = Vec::new();
        let mut pieces = Pieces::new(size, 4096, limit);
        for extent in extents {
            pieces.push(*extent, true, &mut |run| runs.push(run));
        }
        let shape = pieces.finish(&mut |run| runs.push(run));
        (shape, runs)
    }

    fn shape(size: u64, extents: &[Extent]) -> FileShape {
        shape_with(size, EXT4, extents).0
    }

    #[test]
    fn levels_are_those_of_the_paper() {
        let kib = |k: u64| level(k << 10) + 1;
        let borders = [16, 17, 32, 33, 64, 65, 128, 129, 256, 257, 512, 513];
        assert_eq!(borders.map(kib), [1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7]);
        assert_eq!(
            (level(1), level((16 << 10) + 1), level(u64::MAX)),
            (0, 1, 6)
        );
    }

    #[test]
    fn the_papers_example_of_a_gigabyte_in_24_extents_has_dof_3() {
        let piece = (1 << 30) / 24 / 4096 * 4096;
        let mut extents: Vec<_> = (0..23)
            .map(|n| extent(n * piece, n * 2 * piece, piece))
            .collect();
        extents.push(extent(23 * piece, 46 * piece, (1 << 30) - 23 * piece));
        let shape = shape(1 << 30, &extents);
        assert_eq!((shape.extents, shape.least), (24, 8));
        assert_eq!(shape.dof(), Some(3.0));
    }

    #[test]
    fn a_contiguous_file_has_dof_1_however_it_is_reported() {
        for parts in [1, 2, 8, 1024] {
            let length = (1 << 30) / parts;
            let extents: Vec<_> = (0..parts)
                .map(|n| extent(n * length, MIB + n * length, length))
                .collect();
            let (shape, runs) = shape_with(1 << 30, EXT4, &extents);
            assert_eq!(
                (shape.extents, shape.least, shape.runs),
                (8, 8, 1),
                "{parts}"
            );
            assert_eq!(shape.dof(), Some(1.0));
            assert_eq!((runs[0].start, runs[0].end), (MIB, MIB + (1 << 30)));
        }
        // Without a limit, one extent is the least, and is what there is.
        let one = shape_with(1 << 30, None, &[extent(0, 0, 1 << 30)]).0;
        assert_eq!((one.extents, one.least), (1, 1));
    }

    #[test]
    fn neighbours_on_the_disk_in_another_order_are_fragments() {
        let shape = shape(12288, &[extent(0, 8192, 4096), extent(4096, 4096, 8192)]);
        assert_eq!((shape.extents, shape.least), (2, 1));
        assert_eq!(shape.levels, [2, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn preallocation_after_the_end_is_no_fragment() {
        let unwritten = |logical, physical, length| Extent {
            is_unwritten: true,
            ..extent(logical, physical, length)
        };
        let shape = shape(
            10_000,
            &[
                extent(0, 40960, 8192),
                // Reaches past the end: its first block counts.
                unwritten(8192, 49152, 65536),
                unwritten(73728, 900_000, 4096),
            ],
        );
        assert_eq!(
            (shape.extents, shape.runs, shape.mapped_bytes),
            (1, 1, 12288)
        );
        assert_eq!(shape.unwritten_bytes, 4096);
        assert_eq!(shape.dof(), Some(1.0));
    }

    #[test]
    fn holes_do_not_count() {
        // Two parts, each whole: no defragmentation could do better.
        let sparse = [extent(0, 0, 4096), extent(MIB, 5 * MIB, 4096)];
        assert_eq!(shape(MIB + 4096, &sparse).dof(), Some(1.0));
        // One part of the two lies in three pieces: 4 extents where 2 would do.
        let broken = [
            extent(0, 0, 4096),
            extent(MIB, 5 * MIB, 4096),
            extent(MIB + 4096, 7 * MIB, 4096),
            extent(MIB + 8192, 9 * MIB, 4096),
        ];
        let shape_of_broken = shape(2 * MIB, &broken);
        assert_eq!((shape_of_broken.extents, shape_of_broken.least), (4, 2));
        // The size of a hole is no reason for more extents.
        assert_eq!(shape(1 << 40, &sparse[..1]).dof(), Some(1.0));
        // A hole at the beginning.
        assert_eq!(shape(1 << 40, &sparse[1..]).dof(), Some(1.0));
        // Neither is a hole in a run that goes on after it on the disk one fragment.
        let dense = [extent(0, 0, 4096), extent(8192, 4096, 4096)];
        assert_eq!(
            (shape(12288, &dense).runs, shape(12288, &dense).least),
            (2, 2)
        );
    }

    #[test]
    fn files_without_blocks_and_inline_ones_have_no_fragments() {
        assert_eq!(shape(0, &[]).dof(), None);
        assert_eq!(shape(1 << 30, &[]).dof(), None);
        let inline = Extent {
            is_inline: true,
            ..extent(0, 285_736, 60)
        };
        let shape = shape(60, &[inline]);
        assert_eq!(
            (shape.dof(), shape.extents, shape.levels),
            (Some(1.0), 0, [0; 7])
        );
    }

    #[test]
    fn a_file_with_an_unplaced_part_has_no_dof() {
        let unplaced = Extent {
            is_unplaced: true,
            ..extent(4096, 0, 4096)
        };
        assert_eq!(shape(8192, &[extent(0, 4096, 4096), unplaced]).dof(), None);
    }

    #[test]
    fn compressed_neighbours_are_one_run() {
        let encoded = |logical, physical| Extent {
            is_encoded: true,
            ..extent(logical, physical, 128 << 10)
        };
        let follow = [
            encoded(0, MIB),
            encoded(128 << 10, MIB + (48 << 10)),
            encoded(256 << 10, MIB + (96 << 10)),
            extent(384 << 10, MIB + (100 << 10), 4096),
        ];
        let (shape, runs) = shape_with((384 << 10) + 4096, EXT4, &follow);
        assert_eq!((shape.runs, shape.dof()), (1, Some(1.0)));
        assert_eq!(runs[0].end, MIB + (104 << 10));
        let apart = [
            encoded(0, MIB),
            encoded(128 << 10, 2 * MIB),
            encoded(256 << 10, MIB),
        ];
        assert_eq!(shape_with(MIB, EXT4, &apart).0.dof(), Some(3.0));
    }

    #[test]
    fn extents_that_overlap_or_are_absurd_do_not_count_twice() {
        let shape_of = |extents: &[Extent]| shape(16384, extents);
        let twice = [extent(0, 4096, 8192), extent(4096, 8192, 8192)];
        assert_eq!(
            (shape_of(&twice).mapped_bytes, shape_of(&twice).runs),
            (12288, 1)
        );
        let backwards = [extent(8192, 0, 4096), extent(0, 8192, 4096)];
        assert_eq!(shape_of(&backwards).mapped_bytes, 4096);
        let absurd = [
            extent(0, u64::MAX - 1, u64::MAX),
            extent(u64::MAX, 0, u64::MAX),
        ];
        assert_eq!(shape_of(&absurd).mapped_bytes, 16384);
        assert_eq!(shape_of(&[extent(0, 0, 0)]).dof(), None);
        let all = Pieces::new(u64::MAX, 4096, Some(0));
        assert_eq!(all.end(), u64::MAX);
    }

    #[test]
    fn what_an_earlier_file_has_brought_adds_no_fragment() {
        let mut pieces = Pieces::new(8192, 4096, EXT4);
        let shared = Extent {
            is_shared: true,
            ..extent(0, 40960, 4096)
        };
        pieces.push(shared, false, &mut |_| {});
        pieces.push(extent(4096, 81920, 4096), true, &mut |_| {});
        let shape = pieces.finish(&mut |_| {});
        assert_eq!((shape.dof(), shape.levels[0]), (Some(2.0), 1));
        assert_eq!((shape.new_bytes, shape.shared_bytes), (4096, 4096));
    }
}
