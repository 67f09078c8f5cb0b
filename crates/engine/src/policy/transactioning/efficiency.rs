//! The energy efficiency ratio e = o / s.

/// Fixed-point scale of e: 2^20 to a percent.
pub(super) const SCALE_BITS: u32 = 20;
/// e of a transaction that only overwrites.
const WHOLE: u64 = 100 << SCALE_BITS;

/// What a transaction has written, and how much of it need never reach the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Efficiency {
    /// Staleness s: pages and entries written, overwritten ones included.
    written_pages: u64,
    /// o: those of them that were overwritten, or dropped by delete or truncate.
    overwritten_pages: u64,
}

impl Efficiency {
    /// Counts that were kept.
    pub(crate) const fn new(written_pages: u64, overwritten_pages: u64) -> Self {
        Self {
            written_pages,
            overwritten_pages,
        }
    }

    /// One page or entry was written; `overwritten` if the transaction had it.
    pub fn page_written(&mut self, overwritten: bool) {
        self.written_pages += 1;
        self.overwritten_pages += u64::from(overwritten);
    }

    /// Pages of the transaction were dropped by delete or truncate.
    pub fn pages_dropped(&mut self, count: u64) {
        // What is dropped was written here before, so e stays at most 1.
        self.overwritten_pages = (self.overwritten_pages + count).min(self.written_pages);
    }

    /// Takes over what another transaction wrote, when two become one.
    pub const fn absorb(&mut self, other: &Self) {
        self.written_pages += other.written_pages;
        self.overwritten_pages += other.overwritten_pages;
    }

    /// Staleness s, in pages.
    pub const fn written_pages(&self) -> u64 {
        self.written_pages
    }

    /// Overwritten pages o.
    pub const fn overwritten_pages(&self) -> u64 {
        self.overwritten_pages
    }

    /// e in percent, times 2^20, rounded down; 0 before the first write.
    pub(super) fn ratio(&self) -> i64 {
        let written = self.written_pages.max(1);
        let scaled = match self.overwritten_pages.checked_mul(WHOLE) {
            // A division of 128 bits is many times slower, and hardly ever needed.
            Some(product) => product / written,
            None => {
                let product = u128::from(self.overwritten_pages) * u128::from(WHOLE);
                (product / u128::from(written)) as u64
            }
        };
        scaled.min(WHOLE) as i64
    }
}
