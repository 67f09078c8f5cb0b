//! Pages that get content by sharing it, and wait for the log that says so.

use std::collections::BTreeMap;

use crate::ftl::Ns;

/// A page that waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    pub(super) from: u32,
    /// Number of barriers before the command.
    epoch: u64,
    /// Number of the write that it stands for.
    version: u64,
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

impl super::Model {
    /// Whether pages can share the content of others now: all of it is in the cells, nothing newer
    /// waits in the write cache, and neither range is part of the other.
    pub(crate) fn can_share(&self, from: u32, to: u32, count: u32) -> bool {
        let entries = self.config.remap.table_entries.value;
        let most = self.front_end.remap_pages_max.min(entries);
        from.abs_diff(to) >= count
            && count <= most
            && (0..count).all(|offset| {
                let (from, to) = (from + offset, to + offset);
                self.ftl.is_mapped(from)
                    && self.cache.mask(from) == 0
                    && self.cache.mask(to) == 0
                    && self.shares.source_of(from).is_none()
            })
    }

    /// Pages that wait for the log to say that they share content.
    pub fn shares_waiting(&self) -> usize {
        self.shares.len()
    }

    /// Takes a share: the data crosses the bus, and the device compares it with the source.
    pub(super) fn share(&mut self, from: u32, to: u32, count: u32, at: Ns) -> Ns {
        let is_known = (to..to + count).any(|lpn| self.shares.concerns(lpn));
        let entries = self.config.remap.table_entries.value;
        let most = self.front_end.remap_pages_max.min(entries) as usize;
        let mut done = at;
        if is_known || self.shares.len() + count as usize > most {
            done = self.commit_shares(at);
        }
        for offset in 0..count {
            let bytes = crate::address::PAGE_BYTES as u64;
            let received = self.move_over_bus(bytes, at);
            let (slot, ready) = self.ftl.locate(from + offset, at);
            let compared = slot.map_or(ready, |slot| self.ftl.read_run(slot, 1, ready));
            done = done.max(received).max(compared);
            let version = self.next_version;
            self.next_version += 1;
            self.shares
                .put(from + offset, to + offset, self.epoch, version);
        }
        done
    }

    /// Before pages change that give or get content.
    pub(super) fn commit_shares_of(&mut self, pages: core::ops::Range<u32>, at: Ns) -> Ns {
        let is_concerned = |lpn: u32| self.shares.concerns(lpn);
        if !self.shares.is_empty() && pages.into_iter().any(is_concerned) {
            self.commit_shares(at)
        } else {
            at
        }
    }

    /// Writes the log of all that wait; says when it is in the cells.
    pub(super) fn commit_shares(&mut self, at: Ns) -> Ns {
        if self.shares.is_empty() {
            return at;
        }
        let taken = self.shares.take();
        let pairs = taken.iter().map(|(&to, waiting)| (waiting.from, to));
        let pairs: Vec<(u32, u32)> = pairs.collect();
        let done = self.ftl.share(&pairs, at);
        self.shares_logged_at = self.shares_logged_at.max(done);
        for (lpn, Waiting { version, .. }) in taken {
            self.event(super::Event::Destaged {
                lpn,
                version,
                at: done,
            });
        }
        done
    }
}
