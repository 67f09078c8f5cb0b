//! Accepting a transaction: large new data to its place, the rest to the journal.

mod direct;
mod intent;

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::atomic::Ordering;

use mobifs_base::{
    ByteRange, Entry, Name, ObjectId, ObjectState, PAGE_BYTES, PAGE_BYTES_U64, Page, PageIndex,
    RangeSet,
};

use crate::commit::direct::DirectRun;
use crate::journal_store::{JournalStore, Writer};
use crate::log::Log;
use crate::log::overflow;
use crate::log::record::{Record, diff};
use crate::lower::Lower;
use crate::lower::gate::Gate;
use crate::overlay::lookup::missing;
use crate::overlay::pending::PendingPage;
use crate::overlay::table::Location;
use crate::recovery::Moves;
use crate::{StoreError, Ticket, Transaction};

/// Journal that every commit leaves free: apply records the inodes of new objects in one
/// more transaction, or in an overflow file and one block that mentions it.
pub(crate) const BIND_RESERVE_BYTES: u64 = 2 * PAGE_BYTES_U64;

/// A transaction sorted by what its entries are.
pub(crate) struct Sorted {
    pub(crate) states: Vec<ObjectState>,
    pub(crate) dentries: Vec<(ObjectId, Name, Option<ObjectId>)>,
    pub(crate) pages: BTreeMap<ObjectId, BTreeMap<PageIndex, Page>>,
}

/// Ranges whose content is in the lower files already.
type DirectRanges = Vec<(ObjectId, ByteRange)>;
/// Pages that the journal holds.
type KeptPages = Vec<(ObjectId, PageIndex, Page)>;

impl<L: Lower> Writer<L> {
    /// Whether the journal has the room that every commit leaves free.
    pub(crate) fn has_room_to_apply(&self) -> bool {
        self.log.free_bytes() >= BIND_RESERVE_BYTES
    }
}

impl<L: Lower> JournalStore<L> {
    pub(crate) fn commit(&self, transaction: Transaction) -> Result<Ticket, StoreError> {
        if self.read_only {
            let source = std::io::Error::from(std::io::ErrorKind::ReadOnlyFilesystem);
            return Err(StoreError::lower("committing")(source));
        }
        let tag = transaction.tag;
        let mut sorted = Sorted::new(transaction);
        let mut writer = self.writer.lock();
        self.make_room(&mut writer, &sorted)?;
        self.sync_moves(&mut writer)?;
        self.add_parents(&mut sorted)?;
        let _content = sorted.has_runs().then(|| self.content.lock());
        let _tree = self.tree.read();
        let runs = self.choose_direct(&mut writer, &sorted)?;
        let written_directly = self.with_reserve(|| self.write_direct(&runs, &sorted))?;
        let mut recorded = HashSet::new();
        let mut records = Vec::new();
        self.record_places(&writer, sorted.mentioned(), &mut recorded, &mut records)?;
        records.extend(sorted.states.iter().cloned().map(Record::Object));
        records.extend(
            sorted
                .dentries
                .iter()
                .map(|(parent, name, child)| Record::Dentry {
                    parent: *parent,
                    name: name.clone(),
                    child: *child,
                }),
        );
        let (direct, spilled) = self.direct_records(&runs, &sorted)?;
        let placed: BTreeMap<ObjectId, RangeSet> = ranges_by_object(&runs);
        let (page_records, kept) = self.page_records(&sorted, &placed)?;
        // Direct ranges come before pages, which lie on top of them.
        records.extend(
            direct
                .iter()
                .map(|&(object, range)| Record::Direct { object, range }),
        );
        records.extend(page_records);
        self.announce(&mut writer, tag);
        let written = self.append(&mut writer, records, BIND_RESERVE_BYTES);
        self.conclude(&mut writer, &written);
        let written = written?;
        self.publish_log(&writer.log);
        writer.recorded.extend(recorded);
        self.merge(sorted, &direct, &spilled, kept);
        self.note_whole(&written_directly.whole);
        let bytes = written + written_directly.bytes;
        self.counters
            .commit_written_bytes
            .fetch_add(bytes, Ordering::Relaxed);
        self.counters.commits.fetch_add(1, Ordering::Relaxed);
        let ticket = Ticket(writer.next_ticket);
        writer.next_ticket += 1;
        Ok(ticket)
    }

    /// Adds the attributes that are committed of directories whose entries the transaction
    /// changes without them: their own change belongs to another app, and is committed with it.
    /// Applying the entry would change their times in the lower filesystem, to a state that never
    /// existed; so the epoch has to say what they are.
    fn add_parents(&self, sorted: &mut Sorted) -> Result<(), StoreError> {
        for id in sorted.parents_without_state() {
            let is_pending = {
                let state = self.state.read();
                let object = state.pending.object(id);
                object.is_some_and(|object| object.attributes.is_some())
            };
            if is_pending {
                continue;
            }
            let attributes = match self.read_object(id) {
                Ok(info) => info.attributes,
                // It is deleted: then the entry is, too.
                Err(StoreError::Unknown(_)) => continue,
                Err(error) => return Err(self.failed_to_commit(id, &sorted.dentries)(error)),
            };
            sorted.states.push(ObjectState {
                id,
                created: false,
                attributes,
                symlink_target: None,
                zeroed: Vec::new(),
                allocated: Vec::new(),
                xattrs: Vec::new(),
            });
        }
        Ok(())
    }

    /// Applies what is pending if the transaction might not fit behind it; and makes good
    /// a transaction or a new epoch that failed, before anything is written to its place
    /// that relies on what the journal says.
    fn make_room(&self, writer: &mut Writer<L>, sorted: &Sorted) -> Result<(), StoreError> {
        self.take_back(writer)?;
        let held_bytes = self.state.read().pending.held_bytes();
        let held_bytes = held_bytes.saturating_sub(writer.carried_bytes);
        let needed = sorted.journal_bytes_max() + BIND_RESERVE_BYTES;
        let is_full = !writer.log.is_empty() && needed > writer.log.free_bytes();
        if writer.log.is_unsettled() || is_full || held_bytes > self.held_bytes_max {
            self.apply_what_is_possible(writer)?;
        }
        Ok(())
    }

    /// Applies what the lower filesystem does not refuse; the journal is empty then.
    pub(crate) fn apply_what_is_possible(&self, writer: &mut Writer<L>) -> Result<(), StoreError> {
        match self.apply_all(writer) {
            Err(error @ StoreError::Unapplied { .. }) => {
                tracing::error!(%error, "going on without it");
                Ok(())
            }
            applied => applied,
        }
    }

    /// Writes one transaction, durably, leaving some room behind it; returns the bytes
    /// written. What the journal has no room for goes to an overflow file.
    pub(crate) fn append(
        &self,
        writer: &mut Writer<L>,
        records: Vec<Record>,
        reserve_bytes: u64,
    ) -> Result<u64, StoreError> {
        let room = writer.log.free_bytes().saturating_sub(reserve_bytes);
        let written = if Log::<Gate<L>>::transaction_bytes(&records) <= room {
            writer.log.append(&self.lower, &records)?
        } else {
            let file = writer.next_overflow;
            writer.next_overflow += 1;
            let (written, bytes) = overflow::write(&self.lower, &self.own.stage, file, &records)?;
            bytes + writer.log.append(&self.lower, &[written.into()])?
        };
        if writer.moves == Moves::OnlyNamesAreLeft {
            // Not of what this transaction says.
            writer.moves = Moves::MayHaveBegun;
        }
        Ok(written)
    }

    /// Ranges that are (or, of spilled objects, already were) written to their place,
    /// and the spilled objects among them.
    fn direct_records(
        &self,
        runs: &[DirectRun],
        sorted: &Sorted,
    ) -> Result<(DirectRanges, Vec<ObjectId>), StoreError> {
        let mut direct: Vec<_> = runs.iter().map(|run| (run.object, run.range)).collect();
        let mut spilled = Vec::new();
        for state in sorted.states.iter().filter(|state| state.created) {
            let Some(mut ranges) = self.state.read().spilled(state.id).cloned() else {
                continue;
            };
            state.zeroed.iter().for_each(|&range| ranges.remove(range));
            self.sync_spilled(state.id)
                .map_err(self.failed_to_commit(state.id, &sorted.dentries))?;
            direct.extend(ranges.iter().map(|range| (state.id, range)));
            spilled.push(state.id);
        }
        Ok((direct, spilled))
    }

    fn sync_spilled(&self, id: ObjectId) -> Result<(), StoreError> {
        let handle = self.require_handle(id)?;
        let synced = self.lower.sync(&handle);
        synced
            .and_then(|()| self.lower.sync(&self.own.stage))
            .map_err(StoreError::lower(format!(
                "making spilled data of {id} durable"
            )))
    }

    /// Where objects of the lower tree are, for those that the epoch has not recorded
    /// yet, parents included.
    pub(crate) fn record_places(
        &self,
        writer: &Writer<L>,
        ids: impl Iterator<Item = ObjectId>,
        recorded: &mut HashSet<ObjectId>,
        records: &mut Vec<Record>,
    ) -> Result<(), StoreError> {
        let state = self.state.read();
        let mut waiting: Vec<ObjectId> = ids.collect();
        while let Some(id) = waiting.pop() {
            if id == ObjectId::ROOT || writer.recorded.contains(&id) || !recorded.insert(id) {
                continue;
            }
            let is_staged = |location: &&Location| location.in_stage && location.names.is_empty();
            let location = state.table.get(id);
            let Some(location) = location.filter(|location| !is_staged(location)) else {
                // Created in this epoch: the transactions say all there is.
                continue;
            };
            let (parent, name) = match location.names.first() {
                Some((parent, name)) => (*parent, name.as_bytes().to_vec()),
                // It waits in limbo, under its inode number.
                None => (ObjectId::ROOT, Vec::new()),
            };
            waiting.push(parent);
            records.push(Record::Known {
                id,
                inode: location.inode,
                kind: location.kind,
                parent,
                name,
            });
        }
        Ok(())
    }

    /// Records of the pages that are not written to their place: the bytes that
    /// changed. Also returns the pages that really changed.
    fn page_records(
        &self,
        sorted: &Sorted,
        placed: &BTreeMap<ObjectId, RangeSet>,
    ) -> Result<(Vec<Record>, KeptPages), StoreError> {
        let mut records = Vec::new();
        let mut kept = Vec::new();
        for state in &sorted.states {
            let Some(pages) = sorted.pages.get(&state.id) else {
                continue;
            };
            let failed = || self.failed_to_commit(state.id, &sorted.dentries);
            let base = Base::new(self, state).map_err(failed())?;
            let placed = placed.get(&state.id);
            for (&index, page) in pages {
                if placed.is_some_and(|ranges| ranges.contains(index.offset())) {
                    continue;
                }
                let base = base.of(self, index).map_err(failed())?;
                let (fresh, runs) = match &base {
                    BasePage::Unknown | BasePage::Zero => (true, diff(None, page)),
                    BasePage::Known(base) => (false, diff(Some(base), page)),
                };
                // Nothing changed: what is committed stays.
                if runs.is_empty() && !matches!(base, BasePage::Unknown) {
                    continue;
                }
                records.push(Record::Bytes {
                    object: state.id,
                    index,
                    fresh,
                    runs,
                });
                kept.push((state.id, index, page.clone()));
            }
        }
        Ok((records, kept))
    }

    /// Lets reads see the transaction.
    fn merge(
        &self,
        sorted: Sorted,
        direct: &[(ObjectId, ByteRange)],
        spilled: &[ObjectId],
        kept: KeptPages,
    ) {
        let mut state = self.state.write();
        sorted
            .states
            .iter()
            .for_each(|object| state.pending.merge_state(object));
        for (parent, name, child) in sorted.dentries {
            state.pending.merge_dentry(parent, name, child);
        }
        for &(id, range) in direct {
            state.pending.merge_direct(id, range);
        }
        for (id, index, page) in kept {
            state
                .pending
                .merge_page(id, index, PendingPage::Whole(page));
        }
        spilled.iter().for_each(|&id| state.take_spilled(id));
    }
}

/// What is committed of a page, to see what changed.
enum BasePage {
    Zero,
    Known(Page),
    /// It would have to be read from the device: the whole page goes to the journal.
    Unknown,
}

/// Where the committed pages of one object come from.
struct Base<'a, L: Lower> {
    state: &'a ObjectState,
    pending: Option<std::sync::Arc<crate::overlay::pending::PendingObject>>,
    /// Of a new object: ranges that its stage file holds already.
    spilled: Option<RangeSet>,
    /// The object below, as soon as somebody asks for it.
    lower: OnceCell<LowerBase<L>>,
}

/// An open object of the lower filesystem and its size; none if it has none.
type LowerBase<L> = Option<(std::sync::Arc<<L as Lower>::Handle>, u64)>;

impl<'a, L: Lower> Base<'a, L> {
    fn new(store: &JournalStore<L>, state: &'a ObjectState) -> Result<Self, StoreError> {
        let (pending, spilled) = {
            let known = store.state.read();
            let pending = known.pending.objects.get(&state.id).cloned();
            (pending, known.spilled(state.id).cloned())
        };
        let base = Self {
            state,
            pending,
            spilled,
            lower: OnceCell::new(),
        };
        if base.pending.is_none() {
            // It must be there, whether a page of it is needed or not.
            base.lower(store)?;
        }
        Ok(base)
    }

    fn lower(&self, store: &JournalStore<L>) -> Result<&LowerBase<L>, StoreError> {
        if let Some(known) = self.lower.get() {
            return Ok(known);
        }
        let id = self.state.id;
        let found = if self.state.created {
            None
        } else {
            match store.handle(id)? {
                Some(handle) => {
                    let stat = store.lower.stat(&handle);
                    let size = stat
                        .map_err(StoreError::lower(format!("stat of {id}")))?
                        .size;
                    Some((handle, size))
                }
                // Created in this epoch, and not staged.
                None if self.pending.is_some() => None,
                None => return Err(missing(id)),
            }
        };
        Ok(self.lower.get_or_init(|| found))
    }

    fn of(&self, store: &JournalStore<L>, index: PageIndex) -> Result<BasePage, StoreError> {
        let offset = index.offset();
        if self
            .state
            .zeroed
            .iter()
            .any(|range| range.start <= offset && offset < range.end)
        {
            return Ok(BasePage::Zero);
        }
        if let Some(pending) = &self.pending {
            match pending.pages.get(&index) {
                Some(PendingPage::Whole(page)) => return Ok(BasePage::Known(page.clone())),
                Some(_) => return Ok(BasePage::Unknown),
                None if pending.hides_lower(index) => return Ok(BasePage::Zero),
                None => {}
            }
        }
        let is_spilled = |ranges: &RangeSet| ranges.contains(offset);
        if self.spilled.as_ref().is_some_and(is_spilled) {
            return Ok(BasePage::Unknown);
        }
        let Some((handle, size)) = self.lower(store)? else {
            return Ok(BasePage::Zero);
        };
        if offset >= *size {
            return Ok(BasePage::Zero);
        }
        let mut content = [0; PAGE_BYTES];
        match store.lower.read_cached(handle, &mut content, offset) {
            Ok(length) if length == PAGE_BYTES || offset + length as u64 >= *size => {
                Ok(BasePage::Known(Page::new(&content)))
            }
            // Not in memory, or only in part; or the filesystem cannot tell.
            _ => Ok(BasePage::Unknown),
        }
    }
}

impl Sorted {
    fn new(transaction: Transaction) -> Self {
        let mut sorted = Self {
            states: Vec::new(),
            dentries: Vec::new(),
            pages: BTreeMap::new(),
        };
        for entry in transaction.entries {
            match entry {
                Entry::Object(state) => sorted.states.push(state),
                Entry::Dentry {
                    parent,
                    name,
                    child,
                } => {
                    sorted.dentries.push((parent, name, child));
                }
                Entry::Page {
                    object,
                    index,
                    page,
                } => {
                    sorted.pages.entry(object).or_default().insert(index, page);
                }
            }
        }
        sorted
    }

    fn mentioned(&self) -> impl Iterator<Item = ObjectId> + '_ {
        let states = self.states.iter().map(|state| state.id);
        let dentries = self
            .dentries
            .iter()
            .flat_map(|(parent, _, child)| [Some(*parent), *child]);
        states.chain(dentries.flatten())
    }

    /// Directories of which the transaction has entries, and no state.
    fn parents_without_state(&self) -> BTreeSet<ObjectId> {
        let stated: HashSet<ObjectId> = self.states.iter().map(|state| state.id).collect();
        let parents = self.dentries.iter().map(|(parent, ..)| *parent);
        parents.filter(|parent| !stated.contains(parent)).collect()
    }

    /// What new files hold, zeros at the ends of pages not counted.
    pub(crate) fn created_bytes(&self) -> u64 {
        let created = self.states.iter().filter(|state| state.created);
        let pages = created.filter_map(|state| self.pages.get(&state.id));
        let stored = pages.flat_map(BTreeMap::values).map(Page::stored_bytes);
        stored.sum::<usize>() as u64
    }

    /// What the transaction takes in the journal at most, if no page goes elsewhere.
    fn journal_bytes_max(&self) -> u64 {
        let states: usize = self
            .states
            .iter()
            .map(|state| {
                let xattrs: usize = state
                    .xattrs
                    .iter()
                    .map(|(name, value)| name.len() + value.as_ref().map_or(0, |v| v.len()) + 16)
                    .sum();
                let target = state
                    .symlink_target
                    .as_ref()
                    .map_or(0, |target| target.len());
                // The state and a guard for it, and where it and its parents are.
                768 + xattrs + target + 20 * (state.zeroed.len() + state.allocated.len())
            })
            .sum();
        // An entry, and the state of a directory that comes without ([`JournalStore::add_parents`]).
        let dentries = self.dentries.len() * (640 + 256);
        let pages: usize = self
            .pages
            .values()
            .flatten()
            .map(|(_, p)| p.stored_bytes() + 64)
            .sum();
        (states + dentries + pages + 2 * PAGE_BYTES) as u64
    }
}

fn ranges_by_object(runs: &[DirectRun]) -> BTreeMap<ObjectId, RangeSet> {
    let mut by_object: BTreeMap<ObjectId, RangeSet> = BTreeMap::new();
    for run in runs {
        by_object.entry(run.object).or_default().insert(run.range);
    }
    by_object
}
