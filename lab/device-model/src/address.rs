//! Sectors, logical pages, and how a range of sectors falls into pages.

/// Bytes of a sector, the unit of every command's address and length.
pub const SECTOR_BYTES: usize = 512;
/// Sectors of a logical page.
pub const SECTORS_PER_PAGE: u32 = 8;
/// Bytes of a logical page, the unit of the FTL's mapping (S4 §5.3.3: 4 KiB).
pub const PAGE_BYTES: usize = SECTOR_BYTES * SECTORS_PER_PAGE as usize;

/// A bit for each sector of a logical page.
pub(crate) type SectorMask = u8;
/// All sectors of a page.
pub(crate) const WHOLE_PAGE: SectorMask = SectorMask::MAX;

/// Address of a 512-byte sector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sector(pub u64);

/// Number of a logical page of 4 KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lpn(pub u32);

impl Lpn {
    /// The first sector of the page.
    pub const fn first_sector(self) -> Sector {
        Sector(self.0 as u64 * SECTORS_PER_PAGE as u64)
    }
}

impl Sector {
    /// The page that holds the sector. Meaningful for sectors of an existing device,
    /// whose page numbers fit.
    pub const fn page(self) -> Lpn {
        Lpn((self.0 / SECTORS_PER_PAGE as u64) as u32)
    }

    /// Whether the sector is the first of a page.
    pub const fn starts_page(self) -> bool {
        self.0.is_multiple_of(SECTORS_PER_PAGE as u64)
    }
}

/// The part of a command that falls into one logical page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) lpn: u32,
    pub(crate) mask: SectorMask,
}

/// The pieces of `sectors` sectors from `start`, ascending.
pub(crate) fn pieces(start: Sector, sectors: u32) -> impl Iterator<Item = Piece> {
    let per_page = u64::from(SECTORS_PER_PAGE);
    let end = start.0 + u64::from(sectors);
    (start.0 / per_page..end.div_ceil(per_page)).map(move |page| {
        let first = start.0.saturating_sub(page * per_page).min(per_page) as u32;
        let end_in_page = (end - page * per_page).min(per_page) as u32;
        let ones = |count: u32| ((1_u16 << count) - 1) as SectorMask;
        Piece {
            lpn: page as u32,
            mask: ones(end_in_page) & !ones(first),
        }
    })
}

/// The pages of which `sectors` sectors from `start` have a part.
pub(crate) fn pages_of(start: Sector, sectors: u32) -> core::ops::Range<u32> {
    let per_page = u64::from(SECTORS_PER_PAGE);
    let end = (start.0 + u64::from(sectors)).div_ceil(per_page);
    (start.0 / per_page) as u32..end as u32
}

/// The pages that lie wholly inside `sectors` sectors from `start`.
pub(crate) fn whole_pages(start: Sector, sectors: u32) -> core::ops::Range<u32> {
    let per_page = u64::from(SECTORS_PER_PAGE);
    let first = start.0.div_ceil(per_page) as u32;
    let end = ((start.0 + u64::from(sectors)) / per_page) as u32;
    first..end.max(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_exactly_the_sectors() {
        for start in 0..20_u64 {
            for sectors in 0..30_u32 {
                let mut covered = Vec::new();
                for piece in pieces(Sector(start), sectors) {
                    for bit in 0..8 {
                        if piece.mask & (1 << bit) != 0 {
                            covered.push(u64::from(piece.lpn) * 8 + bit);
                        }
                    }
                }
                assert_eq!(
                    covered,
                    (start..start + u64::from(sectors)).collect::<Vec<_>>()
                );
                let whole: Vec<u32> = pieces(Sector(start), sectors)
                    .filter(|piece| piece.mask == WHOLE_PAGE)
                    .map(|piece| piece.lpn)
                    .collect();
                assert_eq!(
                    whole,
                    whole_pages(Sector(start), sectors).collect::<Vec<_>>()
                );
            }
        }
    }
}
