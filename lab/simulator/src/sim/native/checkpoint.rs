//! The journal of ext4 with `data=journal`: pages that are safe in it, and go to their place later.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::Range;

use super::super::device::{FlushShape, JOURNAL_PAGES};
use super::super::dirty::Dirty;
use super::super::stream::ObjectNumber;

/// The kernel writes a file back that has been dirty for so long (`vm.dirty_expire_centisecs`), in
/// nanoseconds.
const EXPIRE_NS: u64 = 30_000_000_000;
/// The kernel looks for such files this often (`vm.dirty_writeback_centisecs`), in nanoseconds.
const FLUSHER_NS: u64 = 5_000_000_000;

/// The most blocks of one transaction: the kernel commits before it becomes larger.
pub(super) const TRANSACTION_BLOCKS_MAX: u64 = JOURNAL_PAGES / 3;

/// A transaction in the journal.
#[derive(Debug)]
struct Logged {
    blocks: u64,
    /// Pages of which no later transaction has a newer version, and which are not in their place.
    live: u64,
}

/// What is in the journal, and how long each file has been dirty.
#[derive(Debug, Default)]
pub(super) struct Checkpoint {
    /// Pages that are not in their place, and the transaction that has the newest version.
    files: HashMap<ObjectNumber, BTreeMap<u64, u64>>,
    /// The oldest first. They are numbered in this order.
    journal: VecDeque<Logged>,
    /// The number of the oldest.
    first: u64,
    used_blocks: u64,
    /// Files with dirty pages, in the running transaction or in the journal, and since when.
    dirty_since_ns: HashMap<ObjectNumber, u64>,
    by_age: BTreeSet<(u64, ObjectNumber)>,
}

impl Checkpoint {
    /// Whether the page is in the journal, and not in its place.
    pub(super) fn has(&self, object: ObjectNumber, page: u64) -> bool {
        let file = self.files.get(&object);
        file.is_some_and(|file| file.contains_key(&page))
    }

    /// Pages of a file have become dirty.
    pub(super) fn became_dirty(&mut self, now_ns: u64, object: ObjectNumber) {
        if let Entry::Vacant(clean) = self.dirty_since_ns.entry(object) {
            clean.insert(now_ns);
            self.by_age.insert((now_ns, object));
        }
    }

    /// The content of these pages is gone.
    pub(super) fn drop_pages(&mut self, object: ObjectNumber, pages: Range<u64>) {
        let Some(file) = self.files.get_mut(&object) else {
            return;
        };
        let dropped: Vec<(u64, u64)> = file.range(pages).map(|(&p, &t)| (p, t)).collect();
        for (page, transaction) in dropped {
            file.remove(&page);
            self.journal[(transaction - self.first) as usize].live -= 1;
        }
        if file.is_empty() {
            self.files.remove(&object);
        }
        self.release();
    }

    /// A transaction has been written to the journal.
    pub(super) fn logged(&mut self, pages: &[(ObjectNumber, u64)]) {
        let number = self.first + self.journal.len() as u64;
        let live = pages.len() as u64;
        let blocks = FlushShape::journaled_blocks(live);
        self.journal.push_back(Logged { blocks, live });
        self.used_blocks += blocks;
        for &(object, page) in pages {
            let file = self.files.entry(object).or_default();
            if let Some(before) = file.insert(page, number) {
                self.journal[(before - self.first) as usize].live -= 1;
            }
        }
        self.release();
    }

    /// When the kernel writes something back, in nanoseconds.
    pub(super) fn next_write_back_ns(&self) -> Option<u64> {
        let (since_ns, _) = self.by_age.first()?;
        let due_ns = since_ns.saturating_add(EXPIRE_NS);
        Some(due_ns.div_ceil(FLUSHER_NS).saturating_mul(FLUSHER_NS))
    }

    /// Takes out what the kernel writes back now: files that have been dirty for long enough, but
    /// for pages that the running transaction has.
    pub(super) fn take_expired(
        &mut self,
        now_ns: u64,
        running: &Dirty<'_>,
    ) -> Vec<(ObjectNumber, u64)> {
        let mut taken = Vec::new();
        while let Some(&(since_ns, object)) = self.by_age.first()
            && since_ns.saturating_add(EXPIRE_NS) <= now_ns
        {
            self.by_age.pop_first();
            self.dirty_since_ns.remove(&object);
            taken.append(&mut self.take_file(object, running));
            if self.is_dirty(object, running) {
                // The kernel tries again when it would be as old once more.
                self.became_dirty(now_ns, object);
            }
        }
        taken
    }

    /// Takes out the pages of one file, but for those that the running transaction has.
    pub(super) fn take_file(
        &mut self,
        object: ObjectNumber,
        running: &Dirty<'_>,
    ) -> Vec<(ObjectNumber, u64)> {
        let Some(file) = self.files.get_mut(&object) else {
            return Vec::new();
        };
        let written: Vec<(u64, u64)> = file
            .iter()
            .filter(|&(&page, _)| !running.has(object, page))
            .map(|(&page, &transaction)| (page, transaction))
            .collect();
        for &(page, transaction) in &written {
            file.remove(&page);
            self.journal[(transaction - self.first) as usize].live -= 1;
        }
        if file.is_empty() {
            self.files.remove(&object);
        }
        self.release();
        let pages = written.into_iter();
        pages.map(|(page, _)| (object, page)).collect()
    }

    /// Takes out everything, while nothing is in a running transaction.
    pub(super) fn take_all(&mut self) -> Vec<(ObjectNumber, u64)> {
        let mut pages: Vec<(ObjectNumber, u64)> = self
            .files
            .drain()
            .flat_map(|(object, file)| file.into_keys().map(move |page| (object, page)))
            .collect();
        pages.sort_unstable();
        self.first += self.journal.len() as u64;
        self.journal.clear();
        self.used_blocks = 0;
        self.dirty_since_ns.clear();
        self.by_age.clear();
        pages
    }

    /// Takes out what has to go to its place before the journal has room for another transaction:
    /// that of the oldest ones.
    pub(super) fn take_for_room(&mut self) -> Vec<(ObjectNumber, u64)> {
        let mut last = None;
        let mut used_blocks = self.used_blocks;
        for (index, logged) in self.journal.iter().enumerate() {
            if used_blocks + TRANSACTION_BLOCKS_MAX <= JOURNAL_PAGES {
                break;
            }
            used_blocks -= logged.blocks;
            last = Some(self.first + index as u64);
        }
        let Some(last) = last else {
            return Vec::new();
        };
        let mut taken = Vec::new();
        for (&object, file) in &mut self.files {
            file.retain(|&page, &mut transaction| {
                let stays = transaction > last;
                if !stays {
                    taken.push((object, page));
                    self.journal[(transaction - self.first) as usize].live -= 1;
                }
                stays
            });
        }
        self.files.retain(|_, file| !file.is_empty());
        taken.sort_unstable();
        self.release();
        taken
    }

    fn is_dirty(&self, object: ObjectNumber, running: &Dirty<'_>) -> bool {
        self.files.contains_key(&object) || running.has_file(object)
    }

    /// The oldest transactions give back their room when all that they have is elsewhere.
    fn release(&mut self) {
        while let Some(oldest) = self.journal.front()
            && oldest.live == 0
        {
            self.used_blocks -= oldest.blocks;
            self.first += 1;
            self.journal.pop_front();
        }
    }
}
