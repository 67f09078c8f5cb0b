//! Pages that get content by sharing it, and wait for the log that says so.

use std::collections::BTreeMap;

/// A page that waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    pub(super) from: u32,
    /// Number of barriers before the command.
    epoch: u64,
    /// Number of the write that it stands for.
    pub(super) version: u64,
}

/// One record of the log has room for very many pages; so they are collected until a flush.
#[derive(Default)]
pub(super) struct ShareQueue {
    /// By the page that gets the content.
    by_to: BTreeMap<u32, Waiting>,
    /// How many pages get theirs from each.
    from: BTreeMap<u32, u32>,
}

impl ShareQueue {
    pub(super) fn len(&self) -> usize {
        self.by_to.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_to.is_empty()
    }

    /// Where the content of a page is that waits.
    pub(super) fn source_of(&self, lpn: u32) -> Option<u32> {
        self.by_to.get(&lpn).map(|waiting| waiting.from)
    }

    /// Whether a page gives or gets content.
    pub(super) fn concerns(&self, lpn: u32) -> bool {
        self.by_to.contains_key(&lpn) || self.from.contains_key(&lpn)
    }

    /// Whether some wait that a barrier followed.
    pub(super) fn has_before(&self, epoch: u64) -> bool {
        self.by_to.values().any(|waiting| waiting.epoch < epoch)
    }

    pub(super) fn put(&mut self, from: u32, to: u32, epoch: u64, version: u64) {
        let waiting = Waiting {
            from,
            epoch,
            version,
        };
        self.by_to.insert(to, waiting);
        *self.from.entry(from).or_default() += 1;
    }

    /// Takes all, by the page that gets the content.
    pub(super) fn take(&mut self) -> BTreeMap<u32, Waiting> {
        core::mem::take(self).by_to
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}
