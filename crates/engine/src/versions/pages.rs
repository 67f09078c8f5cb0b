//! The table of a file's pages, which marks what changes as unsaved.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::ops::Deref;

use mobifs_base::{Page, PageIndex, TransactionId};

use crate::persist::dirty_tracking::UnsavedKeys;

/// The newest version of a page: the page reverse-mapping (S0 §4.2).
#[derive(Debug)]
pub(super) struct PageSlot {
    pub(super) page: Page,
    /// The transaction that this version belongs to, open or closed, or [`super::ORPHAN`].
    pub(super) transaction: TransactionId,
}

/// The dirty pages of one file.
#[derive(Debug)]
pub(super) struct Pages {
    slots: BTreeMap<PageIndex, PageSlot>,
    pub(super) unsaved: UnsavedKeys<PageIndex>,
}

impl Default for Pages {
    fn default() -> Self {
        Self {
            slots: BTreeMap::new(),
            unsaved: UnsavedKeys::new(false),
        }
    }
}

impl Deref for Pages {
    type Target = BTreeMap<PageIndex, PageSlot>;

    fn deref(&self) -> &Self::Target {
        &self.slots
    }
}

impl Pages {
    pub(super) fn get_mut(&mut self, index: &PageIndex) -> Option<&mut PageSlot> {
        let slot = self.slots.get_mut(index)?;
        self.unsaved.mark(*index);
        Some(slot)
    }

    /// Whether the page before this one is a version of the transaction.
    pub(super) fn follows_on(&self, index: PageIndex, transaction: TransactionId) -> bool {
        let before = index.0.checked_sub(1).map(PageIndex);
        let slot = before.and_then(|before| self.slots.get(&before));
        slot.is_some_and(|slot| slot.transaction == transaction)
    }

    /// Whether the page is a version of the transaction.
    pub(super) fn is_of(&self, index: PageIndex, transaction: TransactionId) -> bool {
        let slot = self.slots.get(&index);
        slot.is_some_and(|slot| slot.transaction == transaction)
    }

    /// Marks everything as unsaved.
    pub(super) fn mark_all_unsaved(&mut self) {
        let Self { slots, unsaved } = self;
        slots.keys().for_each(|index| unsaved.mark(*index));
    }

    /// Marks everything as unsaved, if changes are tracked.
    pub(super) fn track(&mut self, is_tracked: bool) {
        self.unsaved = UnsavedKeys::new(is_tracked);
        self.mark_all_unsaved();
    }

    /// For what saving does to a slot itself: where its content is kept.
    pub(super) fn get_mut_untracked(&mut self, index: &PageIndex) -> Option<&mut PageSlot> {
        self.slots.get_mut(index)
    }

    pub(super) fn insert(&mut self, index: PageIndex, slot: PageSlot) {
        self.unsaved.mark(index);
        self.slots.insert(index, slot);
    }

    pub(super) fn remove(&mut self, index: &PageIndex) -> Option<PageSlot> {
        self.unsaved.mark(*index);
        self.slots.remove(index)
    }

    /// Drops all slots that `keep` does not want.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(&PageSlot) -> bool) {
        let unsaved = &mut self.unsaved;
        self.slots.retain(|index, slot| {
            let stays = keep(slot);
            if !stays {
                unsaved.mark(*index);
            }
            stays
        });
    }

    /// Changes all slots of which `change` wants to.
    pub(super) fn change_each(&mut self, mut change: impl FnMut(&mut PageSlot) -> bool) {
        for (index, slot) in &mut self.slots {
            if change(slot) {
                self.unsaved.mark(*index);
            }
        }
    }

    /// Takes out the slots from `start` up to `end` (none: all after).
    pub(super) fn take_range(
        &mut self,
        start: PageIndex,
        end: Option<PageIndex>,
    ) -> BTreeMap<PageIndex, PageSlot> {
        let taken = match end {
            None => self.slots.split_off(&start),
            // What comes after may be much more than what goes.
            Some(end) => {
                let inside = self.slots.range(start..end.max(start));
                let inside: Vec<PageIndex> = inside.map(|(index, _)| *index).collect();
                let slots = inside.into_iter();
                slots
                    .filter_map(|index| self.slots.remove_entry(&index))
                    .collect()
            }
        };
        taken.keys().for_each(|index| self.unsaved.mark(*index));
        taken
    }

    /// The indexes of all slots.
    pub(super) fn into_indexes(self) -> impl Iterator<Item = PageIndex> {
        self.slots.into_keys()
    }
}
