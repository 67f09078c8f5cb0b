//! Open transactions: what they have changed so far.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::ops::Deref;

use mobifs_base::{AppId, MonotonicNs, Name, ObjectId, TransactionId};

use crate::accounting::Charged;
use crate::persist::dirty_tracking::UnsavedKeys;
use crate::policy::transactioning::Closing;

/// Net effect on one directory entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DentryChange {
    /// What it named when the transaction opened.
    pub(crate) before: Option<ObjectId>,
    /// What it names now.
    pub(crate) now: Option<ObjectId>,
    /// Its number in the transaction.
    pub(crate) serial: u64,
}

/// An open transaction: the active section of the write log. The pages themselves are at their
/// inodes; this records which changes belong together.
#[derive(Debug)]
pub(crate) struct OpenTransaction {
    /// Apps whose changes it takes: one, or several joined by an operation across.
    pub(crate) apps: Vec<AppId>,
    /// The transaction changes an object that may have names in any app: all apps' changes go to it
    /// as long as it is open, and none is committed before it once it is closed.
    pub(crate) is_everywhere: bool,
    /// Moment of its first change.
    pub(crate) opened_at: MonotonicNs,
    /// Linked objects with a change.
    pub(crate) dirty: Members,
    /// Net effect on directory entries: what each named before, and names now.
    pub(crate) dentries: Dentries,
    /// Objects that lost their last link in it.
    pub(crate) orphaned: Members,
    /// Objects that must stay in memory until it is committed: all that it mentions.
    pub(crate) held: Members,
    /// What it has written, and when it closes.
    pub(crate) closing: Closing,
    /// Bytes that write calls brought.
    pub(crate) written_bytes: u64,
    /// The same, and the pages of objects that got a link in it: of the bytes of its pages, at most
    /// so many are what the app wrote in it.
    pub(crate) brought_bytes: u64,
    /// Memory that it takes, and room that it will need.
    pub(crate) charged: Charged,
}

impl OpenTransaction {
    /// Whether it holds in memory all objects that it changes.
    pub(crate) fn holds_all(&self) -> bool {
        self.dirty.is_subset(&self.held) && self.orphaned.is_subset(&self.held)
    }

    pub(crate) fn new(app: AppId, closing: Closing, now: MonotonicNs, is_tracked: bool) -> Self {
        Self {
            apps: alloc::vec![app],
            is_everywhere: false,
            opened_at: now,
            dirty: Members::new(is_tracked),
            dentries: Dentries::new(is_tracked),
            orphaned: Members::new(is_tracked),
            held: Members::new(is_tracked),
            closing,
            written_bytes: 0,
            brought_bytes: 0,
            charged: Charged::default(),
        }
    }
}

/// Objects that an open transaction mentions in some way.
#[derive(Debug)]
pub(crate) struct Members {
    set: BTreeSet<ObjectId>,
    pub(crate) unsaved: UnsavedKeys<ObjectId>,
}

impl Deref for Members {
    type Target = BTreeSet<ObjectId>;

    fn deref(&self) -> &Self::Target {
        &self.set
    }
}

impl Members {
    pub(crate) const fn new(is_tracked: bool) -> Self {
        Self {
            set: BTreeSet::new(),
            unsaved: UnsavedKeys::new(is_tracked),
        }
    }

    pub(crate) fn insert(&mut self, id: ObjectId) -> bool {
        let is_new = self.set.insert(id);
        if is_new {
            self.unsaved.mark(id);
        }
        is_new
    }

    pub(crate) fn remove(&mut self, id: &ObjectId) -> bool {
        let was_there = self.set.remove(id);
        if was_there {
            self.unsaved.mark(*id);
        }
        was_there
    }

    pub(crate) fn extend(&mut self, ids: impl IntoIterator<Item = ObjectId>) {
        for id in ids {
            self.insert(id);
        }
    }

    pub(crate) fn into_set(self) -> BTreeSet<ObjectId> {
        self.set
    }
}

/// Net effects of an open transaction on directory entries.
#[derive(Debug)]
pub(crate) struct Dentries {
    map: BTreeMap<(ObjectId, Name), DentryChange>,
    next_serial: u64,
    pub(crate) unsaved: UnsavedKeys<(ObjectId, Name)>,
}

impl Deref for Dentries {
    type Target = BTreeMap<(ObjectId, Name), DentryChange>;

    fn deref(&self) -> &Self::Target {
        &self.map
    }
}

impl Dentries {
    pub(crate) const fn new(is_tracked: bool) -> Self {
        Self {
            map: BTreeMap::new(),
            next_serial: 1,
            unsaved: UnsavedKeys::new(is_tracked),
        }
    }

    /// An entry names `now`; `before`, if this is its first change here. What it named before this
    /// change, if it was changed here before.
    pub(crate) fn record(
        &mut self,
        key: (ObjectId, Name),
        before: Option<ObjectId>,
        now: Option<ObjectId>,
    ) -> Option<Option<ObjectId>> {
        if self.unsaved.is_on() {
            self.unsaved.mark(key.clone());
        }
        if let Some(change) = self.map.get_mut(&key) {
            return Some(core::mem::replace(&mut change.now, now));
        }
        let serial = self.next_serial;
        self.next_serial += 1;
        let change = DentryChange {
            before,
            now,
            serial,
        };
        self.map.insert(key, change);
        None
    }

    /// Whether all entries are there: their numbers leave nothing out.
    pub(crate) fn is_whole(&self) -> bool {
        self.map.len() as u64 + 1 == self.next_serial
    }

    /// Puts back what was saved.
    pub(crate) fn restore(&mut self, key: (ObjectId, Name), change: DentryChange) {
        self.next_serial = self.next_serial.max(change.serial + 1);
        if self.unsaved.is_on() {
            self.unsaved.mark(key.clone());
        }
        self.map.insert(key, change);
    }

    /// Takes over what another transaction changed, replacing the changes here.
    pub(crate) fn absorb(&mut self, other: Self) {
        for (key, change) in other.map {
            let serial = self
                .map
                .get(&key)
                .map_or(self.next_serial, |change| change.serial);
            self.next_serial = self.next_serial.max(serial + 1);
            if self.unsaved.is_on() {
                self.unsaved.mark(key.clone());
            }
            self.map.insert(key, DentryChange { serial, ..change });
        }
    }
}

/// The open transactions.
#[derive(Debug)]
pub(crate) struct Open {
    map: BTreeMap<TransactionId, OpenTransaction>,
    is_tracked: bool,
    pub(crate) unsaved: UnsavedKeys<TransactionId>,
    pub(crate) gone_members: Vec<(TransactionId, ObjectId)>,
    /// Entries, by their serial numbers.
    pub(crate) gone_dentries: Vec<(TransactionId, u64)>,
}

impl Deref for Open {
    type Target = BTreeMap<TransactionId, OpenTransaction>;

    fn deref(&self) -> &Self::Target {
        &self.map
    }
}

impl Open {
    pub(crate) const fn new(is_tracked: bool) -> Self {
        Self {
            map: BTreeMap::new(),
            is_tracked,
            unsaved: UnsavedKeys::new(is_tracked),
            gone_members: Vec::new(),
            gone_dentries: Vec::new(),
        }
    }

    pub(crate) const fn is_tracked(&self) -> bool {
        self.is_tracked
    }

    /// Marks everything as unsaved.
    pub(crate) fn mark_all_unsaved(&mut self) {
        for (transaction, open) in &mut self.map {
            self.unsaved.mark(*transaction);
            for members in [&mut open.dirty, &mut open.orphaned, &mut open.held] {
                members.set.iter().for_each(|id| members.unsaved.mark(*id));
            }
            let dentries = &mut open.dentries;
            for entry in dentries.map.keys() {
                dentries.unsaved.mark(entry.clone());
            }
        }
    }

    pub(crate) fn get_mut(&mut self, transaction: &TransactionId) -> Option<&mut OpenTransaction> {
        let open = self.map.get_mut(transaction)?;
        self.unsaved.mark(*transaction);
        Some(open)
    }

    pub(crate) fn get_mut_untracked(
        &mut self,
        transaction: &TransactionId,
    ) -> Option<&mut OpenTransaction> {
        self.map.get_mut(transaction)
    }

    pub(crate) fn insert(&mut self, transaction: TransactionId, open: OpenTransaction) {
        self.unsaved.mark(transaction);
        self.map.insert(transaction, open);
    }

    pub(crate) fn remove(&mut self, transaction: &TransactionId) -> Option<OpenTransaction> {
        let mut open = self.map.remove(transaction)?;
        self.unsaved.mark(*transaction);
        if self.is_tracked {
            for members in [&mut open.dirty, &mut open.orphaned, &mut open.held] {
                let marked = members.unsaved.take();
                let all = members.iter().copied().chain(marked);
                self.gone_members.extend(all.map(|id| (*transaction, id)));
            }
            let serials = 1..open.dentries.next_serial;
            self.gone_dentries
                .extend(serials.map(|serial| (*transaction, serial)));
        }
        Some(open)
    }
}
