//! Content that a power cut may take: versions of pages that nothing has made durable.

use std::collections::BTreeMap;

use crate::address::{PAGE_BYTES, SECTOR_BYTES, SECTORS_PER_PAGE, SectorMask};
use crate::model::WriteKind;

/// Versions of a page in one epoch beyond which a further write joins the last: keeps
/// the memory for a page that is written over and over bounded.
const VERSIONS_MAX: usize = 4;

/// What one write gave one page.
#[derive(Clone, Debug)]
pub(super) struct Version {
    pub(super) number: u64,
    /// Barriers before the write.
    pub(super) epoch: u64,
    pub(super) kind: WriteKind,
    pub(super) mask: SectorMask,
    /// Whether the cells have it.
    pub(super) destaged: bool,
    content: Box<[u8; PAGE_BYTES]>,
}

impl Version {
    /// Puts the sectors of `mask` that this version has over `page`.
    pub(super) fn lay_over(&self, mask: SectorMask, page: &mut [u8; PAGE_BYTES]) {
        for sector in 0..SECTORS_PER_PAGE as usize {
            if self.mask & mask & (1 << sector) != 0 {
                let range = sector * SECTOR_BYTES..(sector + 1) * SECTOR_BYTES;
                page[range.clone()].copy_from_slice(&self.content[range]);
            }
        }
    }

    /// The runs of sectors that it has: offset in the page and content.
    pub(super) fn runs(&self) -> impl Iterator<Item = (usize, &[u8])> {
        let has = |sector: usize| sector < 8 && self.mask & (1 << sector) != 0;
        (0..SECTORS_PER_PAGE as usize)
            .filter(move |&sector| has(sector) && (sector == 0 || !has(sector - 1)))
            .map(move |first| {
                let end = (first..8).find(|&sector| !has(sector)).unwrap_or(8);
                let (start, end) = (first * SECTOR_BYTES, end * SECTOR_BYTES);
                (start, &self.content[start..end])
            })
    }
}

/// The versions of all pages that have some, oldest first in each page.
#[derive(Default)]
pub(super) struct VolatileSet {
    pages: BTreeMap<u32, Vec<Version>>,
    versions: usize,
}

impl VolatileSet {
    /// Number of versions of all pages.
    pub(super) const fn len(&self) -> usize {
        self.versions
    }

    /// Adds what a write gives a page: `content` are the sectors of `mask`, in order,
    /// which are adjacent.
    pub(super) fn add(
        &mut self,
        lpn: u32,
        (number, epoch): (u64, u64),
        kind: WriteKind,
        mask: SectorMask,
        content: &[u8],
    ) {
        let start = mask.trailing_zeros() as usize * SECTOR_BYTES;
        let versions = self.pages.entry(lpn).or_default();
        let joins = versions.len() >= VERSIONS_MAX && kind == WriteKind::Plain;
        if joins
            && let Some(last) = versions.last_mut()
            && last.epoch == epoch
            && !last.destaged
            && last.kind == WriteKind::Plain
        {
            last.number = number;
            last.mask |= mask;
            last.content[start..start + content.len()].copy_from_slice(content);
            return;
        }
        let mut page = Box::new([0; PAGE_BYTES]);
        page[start..start + content.len()].copy_from_slice(content);
        versions.push(Version {
            number,
            epoch,
            kind,
            mask,
            destaged: false,
            content: page,
        });
        self.versions += 1;
    }

    /// What a page has by this version is in the cells.
    pub(super) fn destaged(&mut self, lpn: u32, through: u64) {
        for version in self.pages.get_mut(&lpn).into_iter().flatten() {
            version.destaged |= version.number <= through;
        }
    }

    /// Takes a page's versions up to a number out, oldest first.
    pub(super) fn take(&mut self, lpn: u32, through: u64) -> Vec<Version> {
        let Some(versions) = self.pages.get_mut(&lpn) else {
            return Vec::new();
        };
        let count = versions.partition_point(|version| version.number <= through);
        let taken: Vec<Version> = versions.drain(..count).collect();
        if versions.is_empty() {
            self.pages.remove(&lpn);
        }
        self.versions -= taken.len();
        taken
    }

    /// Pages that have versions.
    pub(super) fn pages(&self) -> Vec<u32> {
        self.pages.keys().copied().collect()
    }

    /// Those of them in a range.
    pub(super) fn pages_in(&self, range: core::ops::Range<u32>) -> Vec<u32> {
        self.pages.range(range).map(|(&lpn, _)| lpn).collect()
    }

    /// A page's versions, oldest first.
    pub(super) fn versions(&self, lpn: u32) -> &[Version] {
        self.pages.get(&lpn).map_or(&[], Vec::as_slice)
    }

    /// The epochs that occur, ascending.
    pub(super) fn epochs(&self) -> Vec<u64> {
        let mut epochs: Vec<u64> = self
            .pages
            .values()
            .flatten()
            .map(|version| version.epoch)
            .collect();
        epochs.sort_unstable();
        epochs.dedup();
        epochs
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}
