//! What the flash did, and why.

use serde::{Deserialize, Serialize};

/// Why the flash works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    Host = 0,
    Collection = 1,
    Folding = 2,
    Levelling = 3,
    Mapping = 4,
    Log = 5,
    Recovery = 6,
}

/// Operations for one cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CauseCounters {
    /// Read operations of a die (one may cover several planes).
    pub reads: u64,
    /// Flash pages read.
    pub pages_read: u64,
    /// Program operations of a die (one may cover several planes).
    pub programs: u64,
    /// Flash pages programmed.
    pub pages_programmed: u64,
    /// 4 KiB units of content in them; the rest is padding.
    pub slots_programmed: u64,
    /// Erases of a block in all planes of a die.
    pub erases: u64,
}

/// What the flash did since the statistics were reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlashCounters {
    /// Host data on its first way into the cells, and host reads.
    pub host: CauseCounters,
    /// Garbage collection.
    pub collection: CauseCounters,
    /// From the SLC cache to multi-bit cells.
    pub folding: CauseCounters,
    /// Static wear levelling.
    pub levelling: CauseCounters,
    /// Mapping pages: misses, evictions, checkpoints.
    pub mapping: CauseCounters,
    /// The log of remaps and discards.
    pub log: CauseCounters,
    /// The scan at power-on.
    pub recovery: CauseCounters,
    /// Lookups whose mapping page was in the cache.
    pub mapping_hits: u64,
    /// Lookups whose mapping page had to be brought in.
    pub mapping_misses: u64,
    /// Changed mapping pages that a miss pushed out.
    pub mapping_dirty_evictions: u64,
    /// Times that the log was full and was written anew.
    pub log_compactions: u64,
}

impl FlashCounters {
    pub(crate) const fn of_mut(&mut self, cause: Cause) -> &mut CauseCounters {
        match cause {
            Cause::Host => &mut self.host,
            Cause::Collection => &mut self.collection,
            Cause::Folding => &mut self.folding,
            Cause::Levelling => &mut self.levelling,
            Cause::Mapping => &mut self.mapping,
            Cause::Log => &mut self.log,
            Cause::Recovery => &mut self.recovery,
        }
    }

    /// All causes together.
    pub fn total(&self) -> CauseCounters {
        let mut total = CauseCounters::default();
        for part in [
            self.host,
            self.collection,
            self.folding,
            self.levelling,
            self.mapping,
            self.log,
            self.recovery,
        ] {
            total.reads += part.reads;
            total.pages_read += part.pages_read;
            total.programs += part.programs;
            total.pages_programmed += part.pages_programmed;
            total.slots_programmed += part.slots_programmed;
            total.erases += part.erases;
        }
        total
    }
}
