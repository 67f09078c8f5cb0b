//! Restoring: makes an engine of the restart image of one that was killed.

use alloc::boxed::Box;
use alloc::vec::Vec;

use foldhash::fast::FixedState;
use mobifs_base::{AppId, ByteRange, ObjectId, ObjectInfo, TransactionId};

use crate::app::{App, Class};
use crate::engine::Room;
use crate::inode::{Change, ORPHAN, PageSlot};
use crate::persist::codec::{BEYOND, COUNT_MAX, Reader, page_index, within_bounds};
use crate::persist::transaction::{self, DIRTY, HELD, ORPHANED, PageAt};
use crate::persist::{Key, Kind, RestartImageError, inode};
use crate::transaction::DentryChange;
use crate::{Engine, EngineConfig};

impl Engine {
    /// Makes the engine whose records these are.
    ///
    /// `page_at` gives back the page that [`crate::persist::RestartImage::keep`] put at a place.
    /// `spilled` are the objects of which the store took over pages ([`Engine::spilled`]).
    ///
    /// # Errors
    /// [`RestartImageError`] if the records contradict each other.
    pub fn restore(
        config: EngineConfig,
        root: &ObjectInfo,
        records: &mut dyn Iterator<Item = (Key, &[u8])>,
        page_at: PageAt<'_>,
        spilled: &[ObjectId],
    ) -> Result<Self, RestartImageError> {
        let mut engine = Self::new(config, root);
        // In the order of kinds, so that what a record belongs to is there already.
        let mut records: Vec<_> = records.collect();
        records.sort_unstable_by_key(|(key, _)| *key);
        for &(key, value) in &records {
            engine.restore_record(key, value, page_at)?;
        }
        for (key, value) in records {
            if key.kind == Kind::Object
                && let Some(inode) = engine.inodes.get(&ObjectId(key.first))
            {
                inode::check_ranges(inode, value)?;
            }
        }
        engine.count_again()?;
        spilled.iter().for_each(|&id| engine.take_back_spilled(id));
        Ok(engine)
    }

    fn restore_record(
        &mut self,
        key: Key,
        value: &[u8],
        page_at: PageAt<'_>,
    ) -> Result<(), RestartImageError> {
        let mut from = Reader::new(value);
        let from = &mut from;
        let id = ObjectId(key.first);
        let transaction = TransactionId(key.first);
        match key.kind {
            Kind::Engine => {
                self.next_transaction = from.count()?;
                self.next_object = from.count()?;
                self.app_epoch = from.count()?;
                // Listings go on where they were.
                self.hash_seed = from.u64()?;
                self.hasher = FixedState::with_seed(self.hash_seed);
            }
            Kind::App => self.restore_app(key.first, from)?,
            Kind::Object => {
                let inode = inode::read(value, &self.hasher, self.inodes.is_tracked())?;
                self.inodes.insert(id, inode);
            }
            Kind::Dentry => {
                let (child, kind, name) = (from.id()?, from.kind()?, from.name()?);
                let mut restored = Err(RestartImageError("an entry is in no directory"));
                self.inodes.edit_entries(id, |directory| {
                    restored = directory.restore(name, child, kind, key.second);
                });
                restored?;
            }
            Kind::Page => {
                let inode = self.inodes.get_mut(&id);
                let inode = inode.ok_or(RestartImageError("a page is of no file"))?;
                let of = from.transaction()?;
                let page = transaction::read_page(from, page_at)?;
                let index = page_index(key.second)?;
                inode.pages.insert(
                    index,
                    PageSlot {
                        page,
                        transaction: of,
                    },
                );
                if let Some(change) = &mut inode.change
                    && change.transaction == of
                {
                    change.log.push(index);
                }
            }
            Kind::Open => {
                let open = transaction::read_open(value, self.open.is_tracked())?;
                self.open.insert(transaction, open);
            }
            Kind::Member => {
                let open = self.open.get_mut(&transaction).ok_or(NO_TRANSACTION)?;
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
                let open = self.open.get_mut(&transaction).ok_or(NO_TRANSACTION)?;
                let entry = (from.id()?, from.name()?);
                let (before, now) = (from.option(Reader::id)?, from.option(Reader::id)?);
                let serial = within_bounds(key.second)?;
                open.dentries.restore(
                    entry,
                    DentryChange {
                        before,
                        now,
                        serial,
                    },
                );
            }
            Kind::Closed => {
                let closed = transaction::read_closed(value, page_at)?;
                self.closed.insert(transaction, closed);
            }
            Kind::Zeroed | Kind::Allocated => {
                let inode = self.inodes.get_mut(&id);
                let inode = inode.ok_or(RestartImageError("a range is of no file"))?;
                inode::restore_range(inode, key, from)?;
            }
        }
        Ok(())
    }

    fn restore_app(&mut self, number: u64, from: &mut Reader<'_>) -> Result<(), RestartImageError> {
        let path = from.bytes()?.to_vec();
        let mut app = App::new(path.clone(), self.rules.policy(&path));
        self.has_durable_apps |= app.policy.class == Class::Durable;
        app.written_bytes = from.count()?;
        app.committed_bytes = from.count()?;
        app.committed_transactions = from.count()?;
        app.committed_written_pages = from.count()?;
        app.committed_overwritten_pages = from.count()?;
        let id = AppId(u32::try_from(number).map_err(|_| NO_APP)?);
        if let Some(known) = self.apps.get_mut(id.0 as usize) {
            // The root's app is always there.
            *known = app;
        } else if self.apps.len() as u64 == number {
            self.apps.push(app);
        } else {
            return Err(NO_APP);
        }
        self.app_ids.insert(path, id);
        Ok(())
    }

    /// Recomputes what follows from the records: holds, residents, memory and room.
    fn count_again(&mut self) -> Result<(), RestartImageError> {
        for (transaction, open) in self.open.iter() {
            for app in &open.apps {
                let app = self.apps.get_mut(app.0 as usize).ok_or(NO_APP)?;
                app.open = Some(*transaction);
            }
            if open.is_everywhere {
                self.everywhere = Some(*transaction);
            }
            if !open.dentries.is_whole() {
                return Err(RestartImageError("an entry of a transaction is missing"));
            }
            let (bytes, inodes) = (open.reserved_bytes, open.reserved_inodes);
            self.room.count(open.bytes, bytes, inodes)?;
        }
        self.refresh_policies();
        let apps = self.apps.len();
        let is_known = |app: &AppId| (app.0 as usize) < apps;
        let inodes = self.inodes.values();
        if !inodes
            .map(|inode| inode.linked_apps.iter().chain([&inode.app]))
            .all(|mut of| of.all(is_known))
        {
            return Err(NO_APP);
        }
        for closed in self.closed.values() {
            if !closed.apps.iter().all(is_known) {
                return Err(NO_APP);
            }
            let (bytes, inodes) = (closed.reserved_bytes, closed.reserved_inodes);
            self.room.count(closed.bytes, bytes, inodes)?;
        }
        let open = self.open.values().flat_map(|open| open.held.iter());
        let closed = self.closed.values().flat_map(|closed| closed.held.iter());
        let held: Vec<ObjectId> = open.chain(closed).copied().collect();
        for id in held {
            self.known(id)?.holds += 1;
        }
        let several = self.inodes.iter().filter(|(_, i)| i.had_several_names);
        self.several_names = several.map(|(&id, _)| id).collect();
        self.hide_what_is_zeroed();
        let homes = self.inodes.iter().filter(|(id, _)| **id != ObjectId::ROOT);
        let homes: Vec<ObjectId> = homes.map(|(_, inode)| inode.home).collect();
        for home in homes {
            self.known(home)?.residents += 1;
        }
        let orphan_pages = self.inodes.values().flat_map(|inode| inode.pages.values());
        let orphan_bytes: u64 = orphan_pages
            .filter(|slot| slot.transaction == ORPHAN)
            .map(|slot| slot.page.stored_bytes() as u64)
            .sum();
        self.room.orphan_bytes = orphan_bytes;
        self.room.count(orphan_bytes, 0, 0)
    }

    /// What closed transactions zero hides what the store has, until they are committed.
    fn hide_what_is_zeroed(&mut self) {
        let mut closed: Vec<_> = self.closed.iter().collect();
        closed.sort_unstable_by_key(|(_, closed)| closed.order);
        for (transaction, closed) in closed {
            let states = closed.content.objects.iter();
            for state in states.filter(|state| !state.zeroed.is_empty()) {
                if let Some(inode) = self.inodes.get_mut(&state.id) {
                    inode
                        .closed_zeroed
                        .push((*transaction, state.zeroed.clone()));
                }
            }
        }
    }

    fn known(&mut self, id: ObjectId) -> Result<&mut crate::inode::Inode, RestartImageError> {
        let inode = self.inodes.get_mut(&id);
        inode.ok_or(RestartImageError(
            "something refers to an object that is not there",
        ))
    }

    /// Whether the store keeps the content of this object for us.
    pub fn has_pinned(&self, id: ObjectId) -> bool {
        self.inodes.get(&id).is_some_and(|inode| inode.pinned)
    }

    /// Whether the listing of this directory is in memory.
    pub fn has_listing(&self, id: ObjectId) -> bool {
        let inode = self.inodes.get(&id);
        inode.is_some_and(|inode| inode.directory().is_some())
    }

    /// The store has pages of this object that it took over. If the engine was killed
    /// before it heard so, it still has them itself: then what the store has counts as
    /// gone, so that it does not show when a page is dropped here.
    fn take_back_spilled(&mut self, id: ObjectId) {
        let is_tracked = self.inodes.is_tracked();
        let Some(inode) = self.inodes.get_mut(&id) else {
            return;
        };
        if inode.known_to_store {
            return;
        }
        inode.known_to_store = true;
        inode.pinned = true;
        let change = inode
            .change
            .get_or_insert_with(|| Box::new(Change::new(ORPHAN, is_tracked)));
        change.zeroed.insert(ByteRange::from(0));
    }
}

impl Room {
    /// Counts what a transaction takes, and will need.
    fn count(
        &mut self,
        bytes: u64,
        reserved_bytes: u64,
        inodes: u64,
    ) -> Result<(), RestartImageError> {
        let Self {
            dirty_bytes,
            reserved_bytes: promised_bytes,
            reserved_inodes,
            ..
        } = self;
        for (sum, more) in [
            (dirty_bytes, bytes),
            (promised_bytes, reserved_bytes),
            (reserved_inodes, inodes),
        ] {
            let counted = sum.checked_add(more).filter(|sum| *sum <= COUNT_MAX);
            *sum = counted.ok_or(BEYOND)?;
        }
        Ok(())
    }
}

const NO_TRANSACTION: RestartImageError =
    RestartImageError("something is of a transaction that is not there");
const NO_APP: RestartImageError = RestartImageError("something is of an app that is not there");

#[cfg(test)]
mod tests {
    use mobifs_base::{Attributes, FileKind, MonotonicNs, Page, Timestamp};

    use super::*;
    use crate::inode::Inode;
    use crate::persist::codec::Writer;
    use crate::policy::transactioning::Closing;
    use crate::transaction::OpenTransaction;

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
        out.bytes
    }

    fn open_transaction(bytes: u64) -> Vec<u8> {
        let mut open = OpenTransaction::new(AppId(0), Closing::default(), MonotonicNs(0), false);
        open.bytes = bytes;
        written(|out| transaction::write_open(out, &open))
    }

    fn refusal(records: &[(Key, Vec<u8>)]) -> Option<RestartImageError> {
        let config = EngineConfig {
            rules: alloc::boxed::Box::new(crate::TopLevelApps::default()),
            limits: crate::Limits::default(),
            hash_seed: 1,
            is_saved: true,
        };
        let mut records = records.iter().map(|(key, value)| (*key, &value[..]));
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
        assert_eq!(refusal(&[open(3, COUNT_MAX + 1)]), Some(BEYOND));
        assert_eq!(refusal(&[open(3, COUNT_MAX), open(4, 1)]), Some(BEYOND));
        let counters = written(|out| (0..3).for_each(|_| out.u64(u64::MAX)));
        let counters = (Key::new(Kind::Engine, 0, 0), counters);
        assert_eq!(refusal(&[counters]), Some(BEYOND));
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
        assert_eq!(refusal(&at(COUNT_MAX / 4096 + 1)), Some(BEYOND));
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
}
