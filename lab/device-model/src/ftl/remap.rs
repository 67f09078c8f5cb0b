//! The records of the log of remaps and discards, and the further owners of slots.

use std::collections::{BTreeMap, BTreeSet};

/// A change of the mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Record {
    /// The pages from `to` on are in `slots` (slot + 1, 0 for none), where those from `from` on
    /// were, which are now unmapped.
    Moved {
        seq: u64,
        from: u32,
        to: u32,
        slots: Vec<u32>,
    },
    /// The pages from `to` on are in `slots` (slot + 1) as well; what had them keeps them.
    Shared { seq: u64, to: u32, slots: Vec<u32> },
    /// `count` pages from `start` on are unmapped.
    Discarded { seq: u64, start: u32, count: u32 },
    /// An entry of `overrides` at a compaction.
    Override { slot: u32, lpn: u32 },
}

/// A page of the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LogPage {
    pub(super) slot: Option<u32>,
    /// Entries that its records take.
    pub(super) entries: u32,
    /// The records that are complete with this page.
    pub(super) records: Vec<Record>,
}

#[derive(Default)]
pub(super) struct RemapLog {
    pub(super) pages: BTreeMap<u32, LogPage>,
    /// The page that was written last.
    pub(super) tail: Option<u32>,
    /// Slots with the pages whose content they have, where the number in the cells differs.
    /// A slot that is shared has several, besides the page of that number if it is still here.
    pub(super) overrides: BTreeSet<(u32, u32)>,
}

impl RemapLog {
    pub(super) fn move_page(&mut self, number: u32, slot: u32) {
        if let Some(page) = self.pages.get_mut(&number) {
            page.slot = Some(slot);
        }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        let moved = |record: &Record| match record {
            Record::Moved { slots, .. } | Record::Shared { slots, .. } => slots.len() * 4,
            _ => 0,
        };
        let records = self.pages.values().flat_map(|page| &page.records);
        records
            .map(|record| size_of::<Record>() + moved(record))
            .sum::<usize>()
            + self.overrides.len() * 16
    }
}
