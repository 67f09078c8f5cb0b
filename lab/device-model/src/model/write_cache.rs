//! Which pages the volatile write cache holds, in the order in which they came.

use std::collections::VecDeque;

use hashbrown::HashMap;

use crate::address::{Piece, SectorMask};
use crate::ftl::Ns;

/// A page that waits for its way into the cells.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dirty {
    pub(super) lpn: u32,
    pub(super) mask: SectorMask,
    /// Number of barriers before the write.
    pub(super) epoch: u64,
    /// Number of the last write to it.
    pub(super) version: u64,
}

/// First in, first out. A write to a page that waits is put to it, unless a barrier lies
/// between; so the order of epochs is the order of the queue.
#[derive(Default)]
pub(super) struct WriteCache {
    queue: VecDeque<Option<Dirty>>,
    /// Number of the queue's first place.
    first: u64,
    /// The last place of each page.
    places: HashMap<u32, u64, foldhash::fast::FixedState>,
    waiting: u64,
    /// Pages whose programs end at a time: they take room until then.
    leaving: VecDeque<(Ns, u64)>,
    leaving_pages: u64,
}

impl WriteCache {
    /// Pages that wait.
    pub(super) const fn waiting(&self) -> u64 {
        self.waiting
    }

    /// Pages that take room.
    pub(super) const fn occupied(&self) -> u64 {
        self.waiting + self.leaving_pages
    }

    fn get(&self, lpn: u32) -> Option<&Dirty> {
        let place = *self.places.get(&lpn)?;
        self.queue.get((place - self.first) as usize)?.as_ref()
    }

    /// Whether a write of this epoch finds its page here.
    pub(super) fn takes(&self, lpn: u32, epoch: u64) -> bool {
        self.get(lpn).is_some_and(|dirty| dirty.epoch == epoch)
    }

    /// Sectors of a page that the cache has.
    pub(super) fn mask(&self, lpn: u32) -> SectorMask {
        self.get(lpn).map_or(0, |dirty| dirty.mask)
    }

    /// Puts a piece of a write into the cache.
    pub(super) fn put(&mut self, piece: Piece, epoch: u64, version: u64) {
        let Piece { lpn, mask } = piece;
        if let Some(&place) = self.places.get(&lpn)
            && let Some(Some(dirty)) = self.queue.get_mut((place - self.first) as usize)
            && dirty.epoch == epoch
        {
            dirty.mask |= mask;
            dirty.version = version;
            return;
        }
        self.places
            .insert(lpn, self.first + self.queue.len() as u64);
        self.queue.push_back(Some(Dirty {
            lpn,
            mask,
            epoch,
            version,
        }));
        self.waiting += 1;
    }

    /// Takes a page of this epoch out; none if it is not here.
    pub(super) fn remove(&mut self, lpn: u32, epoch: u64) -> Option<Dirty> {
        if !self.takes(lpn, epoch) {
            return None;
        }
        let place = self.places.remove(&lpn)?;
        let dirty = self.queue.get_mut((place - self.first) as usize)?.take();
        self.waiting -= u64::from(dirty.is_some());
        self.drop_holes();
        dirty
    }

    fn drop_holes(&mut self) {
        while let Some(None) = self.queue.front() {
            self.queue.pop_front();
            self.first += 1;
        }
    }

    /// The epoch of the page that has waited longest.
    pub(super) fn oldest_epoch(&self) -> Option<u64> {
        self.queue.iter().flatten().next().map(|dirty| dirty.epoch)
    }

    /// Takes up to `count` pages off the front, all of one epoch.
    pub(super) fn take_oldest(&mut self, count: usize, taken: &mut Vec<Dirty>) {
        taken.clear();
        while taken.len() < count {
            self.drop_holes();
            let Some(Some(dirty)) = self.queue.front().copied() else {
                return;
            };
            if taken
                .first()
                .is_some_and(|first| first.epoch != dirty.epoch)
            {
                return;
            }
            self.queue.pop_front();
            if self.places.get(&dirty.lpn) == Some(&self.first) {
                self.places.remove(&dirty.lpn);
            }
            self.first += 1;
            self.waiting -= 1;
            taken.push(dirty);
        }
    }

    /// Pages leave at `done`.
    pub(super) fn leave(&mut self, pages: u64, done: Ns) {
        self.leaving.push_back((done, pages));
        self.leaving_pages += pages;
    }

    /// Frees the room of what has left by `now`.
    pub(super) fn free_written(&mut self, now: Ns) {
        self.leaving.retain(|&(done, pages)| {
            let left = done <= now;
            self.leaving_pages -= if left { pages } else { 0 };
            !left
        });
    }

    /// When the next pages leave.
    pub(super) fn next_leave(&self) -> Option<Ns> {
        self.leaving.iter().map(|&(done, _)| done).min()
    }

    /// When all that are leaving have left.
    pub(super) fn last_leave(&self) -> Option<Ns> {
        self.leaving.iter().map(|&(done, _)| done).max()
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}
