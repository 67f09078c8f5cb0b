//! Commands that give pages their content by sharing it.

use super::shares::Waiting;
use super::{Event, Model};
use crate::ftl::Ns;

impl Model {
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
            self.event(Event::Destaged {
                lpn,
                version,
                at: done,
            });
        }
        done
    }
}
