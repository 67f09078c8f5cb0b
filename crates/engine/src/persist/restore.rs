//! Restoring: makes an engine of the restart image of one that was killed.

use alloc::vec::Vec;

use mobifs_base::{ObjectId, TransactionId};

use super::transaction::{self, DIRTY, HELD, ORPHANED, PageAt};
use super::{Key, Kind, RestartImageError, inode};
use crate::accounting::Accounting;
use crate::apps::{App, Apps, NO_APP};
use crate::inode::Inode;
use crate::namespace::Namespace;
use crate::transactions::Transactions;
use mobifs_base::codec::{Reader, page_index, within_bounds};

/// The parts of an engine that are in a restart image.
pub(crate) struct Parts<'a> {
    pub(crate) apps: &'a mut Apps,
    pub(crate) namespace: &'a mut Namespace,
    pub(crate) transactions: &'a mut Transactions,
    pub(crate) accounting: &'a mut Accounting,
}

/// Puts back what the records say of a new engine's parts; see [`crate::Engine::restore`].
pub(crate) fn restore(
    mut parts: Parts<'_>,
    records: &mut dyn Iterator<Item = (Key, &[u8])>,
    page_at: PageAt<'_>,
    spilled: &[ObjectId],
) -> Result<(), RestartImageError> {
    // In the order of kinds, so that the object that a record belongs to exists already.
    let mut records: Vec<_> = records.collect();
    records.sort_unstable_by_key(|(key, _)| *key);
    for &(key, value) in &records {
        parts.restore_record(key, value, page_at)?;
    }
    for (key, value) in records {
        if key.kind == Kind::Object
            && let Some(inode) = parts.namespace.get(&ObjectId(key.first))
        {
            inode::check_parts(inode, value)?;
        }
    }
    parts.count_again()?;
    spilled.iter().for_each(|&id| parts.reclaim_spilled(id));
    Ok(())
}

impl Parts<'_> {
    fn restore_record(
        &mut self,
        key: Key,
        value: &[u8],
        page_at: PageAt<'_>,
    ) -> Result<(), RestartImageError> {
        let from = &mut Reader::new(value);
        let transaction = TransactionId(key.first);
        match key.kind {
            Kind::Engine => {
                self.transactions.restore_next(from.count()?);
                let (next_object, app_epoch) = (from.count()?, from.count()?);
                self.namespace
                    .restore_counters(next_object, app_epoch, from.u64()?);
            }
            Kind::App => self.apps.restore(key.first, read_app(from)?)?,
            Kind::Object
            | Kind::Dentry
            | Kind::Page
            | Kind::Zeroed
            | Kind::Allocated
            | Kind::Xattrs => {
                restore_object_record(self.namespace, key, value, page_at)?;
            }
            Kind::Open => {
                let open = transaction::read_open(value, self.transactions.is_tracked())?;
                self.transactions.restore_open(transaction, open);
            }
            Kind::Member => {
                let open = self.transactions.open_mut(transaction);
                let open = open.ok_or(NO_TRANSACTION)?;
                let (flags, member) = (from.u8()?, ObjectId(key.second));
                let sets = [
                    (DIRTY, &mut open.dirty),
                    (ORPHANED, &mut open.orphaned),
                    (HELD, &mut open.held),
                ];
                for (flag, set) in sets {
                    if flags & flag != 0 {
                        set.insert(member);
                    }
                }
            }
            Kind::DentryChange => {
                let open = self.transactions.open_mut(transaction);
                let open = open.ok_or(NO_TRANSACTION)?;
                let serial = within_bounds(key.second)?;
                let (entry, change) = transaction::read_dentry_change(from, serial)?;
                open.dentries.restore(entry, change);
            }
            Kind::Closed => {
                let closed = transaction::read_closed(value, page_at)?;
                self.transactions.restore_closed(transaction, closed);
            }
        }
        Ok(())
    }

    /// Recomputes the values that are derived from the records: usage by transactions and children, memory and room.
    fn count_again(&mut self) -> Result<(), RestartImageError> {
        for charged in self.transactions.charged() {
            self.accounting.restore(charged)?;
        }
        for (id, open) in self.transactions.all_open() {
            if id.0 >= self.transactions.next() {
                return Err(NUMBERED_AGAIN);
            }
            if !open.dentries.is_whole() {
                return Err(RestartImageError("an entry of a transaction is missing"));
            }
            if !open.holds_all() {
                let error = "a transaction does not hold what it mentions";
                return Err(RestartImageError(error));
            }
            self.apps.restore_open(&open.apps, id)?;
        }
        for (id, closed) in self.transactions.all_closed() {
            if id.0.max(closed.order) >= self.transactions.next() {
                return Err(NUMBERED_AGAIN);
            }
        }
        let has_apps = |apps: &[_]| apps.iter().all(|app| self.apps.has(*app));
        let has_apps_of = |inode: &Inode| has_apps(&inode.linked_apps) && self.apps.has(inode.app);
        let mut objects = self.namespace.values();
        let mut closed = self.transactions.all_closed();
        let is_whole = objects.all(has_apps_of) && closed.all(|(_, closed)| has_apps(&closed.apps));
        drop((objects, closed));
        if !is_whole {
            return Err(NO_APP);
        }
        self.count_references()?;
        self.namespace.restore_several_names();
        self.hide_what_is_zeroed();
        let files = self.namespace.values();
        let orphan_bytes = files.map(|inode| inode.versions.orphan_bytes()).sum();
        self.accounting.restore_orphans(orphan_bytes)
    }

    /// Which objects transactions hold, and the home app of each object.
    fn count_references(&mut self) -> Result<(), RestartImageError> {
        let open = self.transactions.all_open();
        let open = open.flat_map(|(_, open)| open.held.iter());
        let closed = self.transactions.all_closed();
        let closed = closed.flat_map(|(_, closed)| closed.held.iter());
        let held: Vec<ObjectId> = open.chain(closed).copied().collect();
        for id in held {
            known(self.namespace, id)?.usage.hold();
        }
        let placed = self.namespace.iter();
        let placed = placed.filter(|(id, _)| **id != ObjectId::ROOT);
        let homes: Vec<ObjectId> = placed.map(|(_, inode)| inode.home).collect();
        for home in homes {
            known(self.namespace, home)?.usage.add_child();
        }
        Ok(())
    }

    /// Ranges that closed transactions zero hide the store's content until the commit.
    fn hide_what_is_zeroed(&mut self) {
        for (id, closed) in self.transactions.closed_in_order() {
            let states = closed.content.objects.iter();
            for state in states.filter(|state| !state.zeroed.is_empty()) {
                if let Some(inode) = self.namespace.get_mut(&state.id) {
                    inode.versions.hide_closed(id, state.zeroed.clone());
                }
            }
        }
    }

    /// The store has pages of this object that it took over. If the engine was killed before it
    /// learned that, it still has them itself: then the store's copies count as zeroed, so that
    /// they do not show when a page is dropped here.
    fn reclaim_spilled(&mut self, id: ObjectId) {
        let is_tracked = self.namespace.is_tracked();
        let Some(inode) = self.namespace.get_mut(&id) else {
            return;
        };
        if inode.versions.reclaim_spilled(is_tracked) {
            inode.pinned = true;
        }
    }
}

fn read_app(from: &mut Reader<'_>) -> Result<App, RestartImageError> {
    Ok(App {
        path: from.bytes()?.to_vec(),
        written_bytes: from.count()?,
        committed_bytes: from.count()?,
        committed_transactions: from.count()?,
        committed_written_pages: from.count()?,
        committed_overwritten_pages: from.count()?,
        ..App::default()
    })
}

fn restore_object_record(
    namespace: &mut Namespace,
    key: Key,
    value: &[u8],
    page_at: PageAt<'_>,
) -> Result<(), RestartImageError> {
    let from = &mut Reader::new(value);
    let id = ObjectId(key.first);
    match key.kind {
        Kind::Dentry => {
            let (child, kind, name) = (from.id()?, from.kind()?, from.name()?);
            let mut restored = Err(RestartImageError("an entry is in no directory"));
            namespace.edit_listing(id, |directory| {
                restored = directory.restore(name, child, kind, key.second);
            });
            restored?;
        }
        Kind::Page => {
            let inode = namespace.get_mut(&id);
            let inode = inode.ok_or(RestartImageError("a page is of no file"))?;
            let transaction = from.transaction()?;
            let page = transaction::read_page(from, page_at)?;
            let index = page_index(key.second)?;
            inode.versions.restore_page(transaction, index, page);
        }
        Kind::Zeroed | Kind::Allocated => {
            let inode = namespace.get_mut(&id);
            let inode = inode.ok_or(RestartImageError("a range is of no file"))?;
            inode::restore_range(inode, key, from)?;
        }
        Kind::Xattrs => {
            let inode = namespace.get_mut(&id);
            let inode = inode.ok_or(RestartImageError("extended attributes are of no object"))?;
            inode::restore_xattrs(inode, from)?;
        }
        _ => {
            let inode = inode::read(value, namespace.hasher(), namespace.is_tracked())?;
            namespace.restore(id, inode);
        }
    }
    Ok(())
}

fn known(namespace: &mut Namespace, id: ObjectId) -> Result<&mut Inode, RestartImageError> {
    let inode = namespace.get_mut(&id);
    inode.ok_or(RestartImageError(
        "an item refers to an object that does not exist",
    ))
}

const NUMBERED_AGAIN: RestartImageError =
    RestartImageError("a transaction has a number that is given again");
const NO_TRANSACTION: RestartImageError =
    RestartImageError("an item refers to a transaction that does not exist");

#[cfg(test)]
mod tests {
    use mobifs_base::{AppId, Attributes, FileKind, MonotonicNs, ObjectInfo, Page, Timestamp};

    use super::*;
    use crate::accounting::{Charge, Charged};
    use crate::policy::transactioning::Closing;
    use crate::transactions::OpenTransaction;
    use crate::versions::ORPHAN;
    use crate::{Engine, EngineConfig};
    use mobifs_base::codec::{COUNT_MAX, CodecError, Writer};

    fn root() -> ObjectInfo {
        ObjectInfo {
            attributes: Attributes {
                kind: FileKind::Directory,
                mode: 0o755,
                uid: 0,
                gid: 0,
                rdev: mobifs_base::DeviceNumber(0),
                size: 0,
                nlink: 2,
                atime: Timestamp::default(),
                mtime: Timestamp::default(),
                ctime: Timestamp::default(),
            },
            allocated_bytes: 0,
            foreign: false,
            immutable: false,
        }
    }

    fn written(write: impl FnOnce(&mut Writer)) -> Vec<u8> {
        let mut out = Writer::default();
        write(&mut out);
        out.into_bytes()
    }

    fn open_transaction(bytes: u64) -> Vec<u8> {
        let mut open = OpenTransaction::new(AppId(0), Closing::default(), MonotonicNs(0), false);
        open.charged = Charged::restored(Charge::memory(bytes));
        written(|out| transaction::write_open(out, &open))
    }

    fn refusal(records: &[(Key, Vec<u8>)]) -> Option<RestartImageError> {
        let config = EngineConfig {
            rules: alloc::boxed::Box::new(crate::TopLevelApps::default()),
            limits: crate::Limits::default(),
            hash_seed: 1,
            is_saved: true,
        };
        let counters = written(|out| [9, 1 << 48, 1, 1].into_iter().for_each(|n| out.u64(n)));
        let counters = (Key::new(Kind::Engine, 0, 0), counters);
        let has_counters = records.iter().any(|(key, _)| key.kind == Kind::Engine);
        let counters = (!has_counters).then_some(&counters);
        let records = counters.into_iter().chain(records);
        let mut records = records.map(|(key, value)| (*key, &value[..]));
        let mut page_at = |_: u64, length: usize| Some(Page::new(&alloc::vec![1; length]));
        Engine::restore(config, &root(), &mut records, &mut page_at, &[]).err()
    }

    #[test]
    fn numbers_that_cannot_be_counted_on_from_are_refused() {
        // Found by the fuzzer of saved engines: two transactions that take more than there are
        // numbers overflowed when they were counted together.
        let open = |number: u64, bytes: u64| {
            let key = Key::new(Kind::Open, number, 0);
            (key, open_transaction(bytes))
        };
        assert_eq!(refusal(&[open(3, COUNT_MAX)]), None);
        assert_eq!(
            refusal(&[open(3, COUNT_MAX + 1)]),
            Some(CodecError::Beyond.into())
        );
        assert_eq!(
            refusal(&[open(3, COUNT_MAX), open(4, 1)]),
            Some(CodecError::Beyond.into())
        );
        let counters = written(|out| (0..3).for_each(|_| out.u64(u64::MAX)));
        let counters = (Key::new(Kind::Engine, 0, 0), counters);
        assert_eq!(refusal(&[counters]), Some(CodecError::Beyond.into()));
        let file = Inode::from_store(&root(), ObjectId::ROOT, None);
        let file = written(|out| inode::write(out, &file));
        let page = written(|out| {
            out.u64(ORPHAN.0);
            transaction::write_page(out, &Page::zero());
        });
        let at = |index: u64| {
            let file = (Key::new(Kind::Object, 8, 0), file.clone());
            [file, (Key::new(Kind::Page, 8, index), page.clone())]
        };
        assert_eq!(refusal(&at(COUNT_MAX / 4096)), None);
        assert_eq!(
            refusal(&at(COUNT_MAX / 4096 + 1)),
            Some(CodecError::Beyond.into())
        );
    }

    #[test]
    fn entries_of_a_transaction_are_all_there_or_it_is_refused() {
        let entry = |serial: u64, name: &[u8]| {
            let value = written(|out| {
                out.u64(ObjectId::ROOT.0);
                out.bytes(name);
                out.flag(false);
                out.flag(false);
            });
            (Key::new(Kind::DentryChange, 3, serial), value)
        };
        let open = (Key::new(Kind::Open, 3, 0), open_transaction(0));
        let both = [open.clone(), entry(1, b"a"), entry(2, b"b")];
        assert_eq!(refusal(&both), None);
        for entries in [
            [entry(1, b"a"), entry(3, b"b")],
            [entry(1, b"a"), entry(2, b"a")],
            [entry(1, b"a"), entry(u64::MAX, b"b")],
        ] {
            let [first, second] = entries;
            assert!(refusal(&[open.clone(), first, second]).is_some());
        }
    }

    #[test]
    fn a_number_of_a_transaction_is_never_given_again() {
        let open = |number: u64| (Key::new(Kind::Open, number, 0), open_transaction(0));
        assert_eq!(refusal(&[open(8)]), None);
        assert_eq!(refusal(&[open(9)]), Some(NUMBERED_AGAIN));
        // And an app changes only one at a time.
        assert!(refusal(&[open(7), open(8)]).is_some());
    }
}
