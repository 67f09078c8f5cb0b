//! Opening a store: what the journal holds is merged, and served from memory like what a
//! live commit leaves; applying comes later. Only where an earlier apply had begun to move
//! names is it finished first, if the lower filesystem has room for that: `docs/DESIGN.md`,
//! "Why a store is served before its journal is applied".

mod copied;
pub(crate) mod inspect;
mod moved;
pub(crate) mod resume;
mod unapplied;
mod validate;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use mobifs_base::{
    DeviceNumber, NAME_BYTES_MAX, Name, ObjectId, PAGE_BYTES_U64, SYMLINK_BYTES_MAX,
};
use parking_lot::{Mutex, RwLock};

use crate::apply::Deleted;
use crate::apply::reserve::Reserve;
use crate::journal_store::{Counters, Directories, JournalOptions, JournalStore, Writer};
use crate::log::overflow;
use crate::log::record::Record;
use crate::log::{Log, LogOptions, Scanned};
use crate::lower::Lower;
use crate::lower::gate::Gate;
use crate::overlay::pending::Pending;
use crate::overlay::state::{State, Watched};
use crate::overlay::table::Table;
use crate::recovery::copied::Located;
use crate::recovery::validate::is_own;
use crate::{Capabilities, Saved, StoreError, Witness};

/// What opening a store found and did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// The store was closed properly (or is new): there was nothing to do.
    pub clean: bool,
    /// Committed transactions found in the journal.
    pub transactions: u64,
    /// Records in them.
    pub records: u64,
    /// Bytes of journal they take.
    pub bytes: u64,
    /// The transactions are in the tree already; else they are served from memory, and
    /// the next apply brings them there.
    pub applied: bool,
    /// Bytes of a transaction that was being written when the power went.
    pub discarded_tail_bytes: u64,
    /// The store is a copy of one whose transactions were not in the tree yet: what they
    /// belong to was looked for by its names.
    pub copied: bool,
    /// Names in `.mobifs/lost/`: directories that were deleted through the mount while
    /// somebody put something into them behind its back.
    pub lost: Vec<String>,
}

impl RecoveryReport {
    /// What a look at the journal alone tells.
    pub(crate) fn of(scanned: &Scanned) -> Self {
        Self {
            clean: scanned.clean && scanned.transactions.is_empty(),
            transactions: scanned.transactions.len() as u64,
            records: scanned
                .transactions
                .iter()
                .map(|(_, r)| r.len() as u64)
                .sum(),
            bytes: scanned.bytes,
            applied: false,
            discarded_tail_bytes: scanned.discarded_tail_bytes,
            copied: scanned.is_copied,
            lost: Vec::new(),
        }
    }
}

/// Ids above this one are not reached by counting, so a journal that has them is forged.
/// It is applied at once: nothing can be counted on from them.
const OBJECT_ID_MAX: u64 = 1 << 62;

/// How far an apply of this epoch has got with the names of the tree, at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moves {
    /// No name has moved.
    NotBegun,
    /// Some may have moved. Everything else is in its place, and nothing was committed
    /// since.
    OnlyNamesAreLeft,
    /// Some may have moved.
    MayHaveBegun,
}

/// A store as [`JournalStore::load`] leaves it.
pub(crate) struct Loaded<L: Lower> {
    pub(crate) store: JournalStore<L>,
    pub(crate) report: RecoveryReport,
    /// The tag of the saved intent, if it was carried out.
    pub(crate) committed: Option<u64>,
    /// Of a copied store: what its journal does not say yet.
    pub(crate) located: Option<Located>,
    /// The journal says what only a forged one does.
    is_doubtful: bool,
}

impl<L: Lower> JournalStore<L> {
    /// Opens the store at the root of `lower`, making it a store if it is none. What is
    /// read is its last committed state, wherever that lies.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`], [`StoreError::NewerFormat`] (nothing was changed
    /// then), [`StoreError::Unsuitable`], [`StoreError::Lower`].
    pub fn open(lower: L, options: &JournalOptions) -> Result<(Self, RecoveryReport), StoreError> {
        let Loaded {
            mut store,
            mut report,
            located,
            is_doubtful,
            ..
        } = Self::load(lower, options, None)?;
        store.recover(&mut report, located, is_doubtful)?;
        Ok((store, report))
    }

    /// As [`JournalStore::open`]; `witness` hears of everything that a successor of this
    /// process needs for [`JournalStore::resume`].
    ///
    /// # Errors
    /// As [`JournalStore::open`]; the witness has heard nothing then.
    pub fn open_watched(
        lower: L,
        options: &JournalOptions,
        witness: Arc<dyn Witness>,
    ) -> Result<(Self, RecoveryReport), StoreError> {
        let (mut store, report) = Self::open(lower, options)?;
        store.state.watch(witness);
        Ok((store, report))
    }

    /// The store with what its journal holds and, of a killed process, what `saved` says;
    /// nothing of it is applied.
    pub(crate) fn load(
        lower: L,
        options: &JournalOptions,
        saved: Option<&Saved>,
    ) -> Result<Loaded<L>, StoreError> {
        let lower = Gate::new(lower);
        let root = lower
            .root()
            .map_err(StoreError::lower("opening the store"))?;
        let root_stat = lower
            .stat(&root)
            .map_err(StoreError::lower("stat of the store"))?;
        let own = Directories::open(&lower, options.read_only, true)?.ok_or_else(|| {
            StoreError::Unsuitable(
                "the directory is not a MobiFS store yet, and a read-only mount cannot make it \
                 one; mount it once without `ro`"
                    .to_owned(),
            )
        })?;
        let capabilities = find_capabilities(&lower, &own, options.read_only)?;
        let log_options = LogOptions {
            journal_bytes: options.journal_bytes,
            direct_bytes_max: options.direct_bytes_max,
            uuid_if_new: options.uuid_if_new,
            read_only: options.read_only,
            keeps_size: saved.is_some(),
        };
        let (log, mut scanned) = Reserve::open_with(&lower, &own, || {
            Log::open(&lower, &own.mobifs, &log_options)
        })?;
        let carried_file = log.carried().map_or(0, |carried| carried.file);
        let reserve = Reserve::find(&lower, &own, options.reserve_bytes)?;
        let next_overflow = overflow::expand(&lower, &own.stage, &mut scanned.transactions)?;
        let report = RecoveryReport::of(&scanned);
        let located = if scanned.is_copied {
            copied::locate(&lower, &mut scanned.transactions)?
        } else {
            None
        };
        let committed = saved
            .and_then(|saved| saved.intent)
            .filter(|intent| scanned.has(intent.epoch, intent.sequence))
            .map(|intent| intent.tag);
        let Replayed {
            mut state,
            recorded,
            moves,
            ids_max,
            is_doubtful,
        } = replay(scanned, root_stat.inode, log.tells_moves());
        state.table.begin_fresh_above(ids_max);
        if let Some(saved) = saved {
            state.take_over(saved);
        }
        let store = Self {
            device: root_stat.device,
            capabilities,
            read_only: options.read_only,
            held_bytes_max: options.held_bytes_max,
            ahead_pages_min: options.ahead_pages_min,
            writer: Mutex::new(Writer {
                log,
                recorded,
                next_ticket: 1,
                next_overflow,
                moves,
                // What was found is made durable before anything is done with it.
                has_unsynced_moves: false,
                carried: None,
                carried_bytes: 0,
                has_open_intent: false,
            }),
            content: Mutex::default(),
            tree: RwLock::new(()),
            state: Watched::new(state),
            counters: Counters::default(),
            reserve,
            first_new: first_above(ids_max),
            carried_file: AtomicU64::new(carried_file),
            journal_used_bytes: AtomicU64::new(0),
            journal_total_bytes: AtomicU64::new(0),
            own,
            lower,
        };
        Ok(Loaded {
            store,
            report,
            committed,
            located,
            is_doubtful,
        })
    }

    /// Makes what was found ready to be served, and clears what an earlier mount left.
    fn recover(
        &mut self,
        report: &mut RecoveryReport,
        located: Option<Located>,
        is_doubtful: bool,
    ) -> Result<(), StoreError> {
        if !self.read_only {
            self.check_possible()?;
            self.settle_found(report)?;
            if report.copied {
                self.settle_copy(located)?;
            }
            self.sweep_foreign_stage(|state, id| {
                let object = state.pending.object(id);
                object.is_some_and(|object| object.bound.is_some() || !object.direct.is_empty())
            })?;
            self.apply_if_necessary(report, is_doubtful)?;
            if report.applied {
                self.clear_limbo()?;
                self.keep_reserve();
                // The numbers in the journal were those of the mount before: the one
                // that begins now counts new objects from the start again, unless one
                // that could not be deleted from `stage/` would be taken for its own.
                if self.sweep_stage() {
                    self.state.write().table.start_anew();
                    self.lower.handles().clear();
                    self.first_new = ObjectId::FIRST_NEW;
                }
            } else if self.writer.lock().moves == Moves::NotBegun {
                self.clear_limbo_but_known()?;
            }
        }
        self.publish_log(&self.writer.lock().log);
        report.lost = self.list_lost()?;
        Ok(())
    }

    /// Applies what was found, unless that can wait. What the lower filesystem refuses has to
    /// wait in any case: a full disk must not keep a store from being served, or nothing could be
    /// deleted from it.
    fn apply_if_necessary(
        &self,
        report: &mut RecoveryReport,
        is_doubtful: bool,
    ) -> Result<(), StoreError> {
        let mut writer = self.writer.lock();
        let is_bound_soundly = self.find_what_moved(&mut writer)?;
        // An apply could never say that names move; commits leave it the room.
        let is_stuck = writer.moves == Moves::NotBegun && writer.log.free_bytes() < PAGE_BYTES_U64;
        let is_doubtful = is_doubtful || !is_bound_soundly || is_stuck;
        let may_be_served = || Ok(!is_doubtful && self.is_sound() && self.check_found()?);
        let may_wait = writer.moves == Moves::NotBegun && writer.has_room_to_apply();
        if !may_wait || !may_be_served()? {
            if may_be_served()? {
                self.apply_if_possible(&mut writer)?;
            } else {
                self.apply_everything(&mut writer, &mut Deleted::new())?;
            }
        }
        report.applied = self.is_applied(&writer);
        Ok(())
    }

    /// Applies what was found, as far as the lower filesystem does not refuse it.
    pub(crate) fn apply_if_possible(&self, writer: &mut Writer<L>) -> Result<(), StoreError> {
        match self.apply_all(writer) {
            Err(error) if error.is_refusal() || matches!(error, StoreError::Unapplied { .. }) => {
                tracing::error!(%error, "the store is served as it is");
                Ok(())
            }
            applied => applied,
        }
    }

    /// Whether nothing that is committed lacks its place.
    pub(crate) fn is_applied(&self, writer: &Writer<L>) -> bool {
        writer.log.is_empty() && self.state.read().pending.is_empty()
    }

    /// Whoever wrote what is found now may have been killed before it was durable. It is
    /// relied on from now on, and what is done next assumes that a power cut does not
    /// take it back. What is left of a torn transaction is made void.
    pub(crate) fn settle_found(&self, report: &RecoveryReport) -> Result<(), StoreError> {
        if report.transactions > 0 {
            self.lower
                .sync_all()
                .map_err(StoreError::lower("making durable what is there"))?;
        }
        let mut writer = self.writer.lock();
        // Where blocks are never overwritten this takes room.
        self.with_reserve(|| writer.log.settle(&self.lower))
    }

    pub(crate) fn list_lost(&self) -> Result<Vec<String>, StoreError> {
        let lost = self
            .lower
            .list(&self.own.lost)
            .map_err(StoreError::lower("listing lost"))?;
        let names = lost.iter().map(|entry| entry.name.escape_ascii());
        Ok(names.map(|name| name.to_string()).collect())
    }
}

/// What the journal's transactions say together.
struct Replayed {
    state: State,
    /// Objects whose places the journal records.
    recorded: HashSet<ObjectId>,
    moves: Moves,
    /// The highest id in the journal.
    ids_max: u64,
    /// Something is said that no mount writes.
    is_doubtful: bool,
}

/// Merges the journal's transactions, in order.
fn replay(scanned: Scanned, root_inode: u64, tells_moves: bool) -> Replayed {
    let mut pending = Pending::default();
    let mut table = Table::new(root_inode);
    let mut recorded = HashSet::new();
    let mut known = Vec::new();
    let mut moves = Moves::NotBegun;
    // What only a forged journal says of places and inodes. It is tried out before anything is
    // served.
    let mut is_doubtful = false;
    let mut is_bound = false;
    let in_copy = copied::inodes(&scanned.transactions);
    for (_, records) in scanned.transactions {
        // More was committed after an apply that failed while names moved.
        if moves != Moves::NotBegun || !tells_moves {
            moves = Moves::MayHaveBegun;
        }
        for record in records {
            match record {
                Record::Known {
                    id,
                    inode,
                    kind,
                    parent,
                    name,
                } => {
                    recorded.insert(id);
                    // Numbers of the original mean nothing here, and may be those of others.
                    let Some(inode) = in_copy.get(&id).copied().unwrap_or(Some(inode)) else {
                        continue;
                    };
                    is_doubtful |= !table.agrees(id, inode, kind);
                    table.insert(id, inode, kind);
                    known.push((id, parent, name));
                }
                Record::Moving if tells_moves => moves = Moves::OnlyNamesAreLeft,
                Record::MovingInPart => moves = Moves::MayHaveBegun,
                other => {
                    is_bound |= matches!(other, Record::Bind { .. });
                    pending.merge_record(other);
                }
            }
        }
    }
    // Without a name it waits in limbo, where it is looked for anyway.
    let known = known.into_iter().filter_map(|(id, parent, name)| {
        let name = Name::new(&name).ok()?;
        is_doubtful |= is_own(parent, &name);
        Some((id, parent, name))
    });
    table.add_names(known);
    // Only a journal that says that names move tells inodes of new objects.
    is_doubtful |= is_bound && moves == Moves::NotBegun;
    if is_doubtful && moves == Moves::NotBegun {
        moves = Moves::MayHaveBegun;
    }
    for id in pending.ids() {
        if pending.object(id).is_none_or(|object| !object.created) {
            table.reserve(id);
        }
    }
    let ids_max = pending.ids().chain(table.ids()).max();
    let mut ids_max = ids_max.unwrap_or(ObjectId::ROOT).0;
    if ids_max > OBJECT_ID_MAX {
        (moves, ids_max, is_doubtful) = (Moves::MayHaveBegun, ObjectId::ROOT.0, true);
    }
    Replayed {
        state: State::new(pending, table),
        recorded,
        moves,
        ids_max,
        is_doubtful,
    }
}

/// The first id for a new object where no id in use is above `id`.
fn first_above(id: u64) -> ObjectId {
    // Even offsets are the engine's.
    ObjectId(((id + 2) & !1).max(ObjectId::FIRST_NEW.0))
}

fn find_capabilities<L: Lower>(
    lower: &Gate<L>,
    own: &Directories<Gate<L>>,
    read_only: bool,
) -> Result<Capabilities, StoreError> {
    if read_only {
        return Ok(read_only_capabilities());
    }
    lower
        .capabilities(&own.mobifs)
        .map_err(StoreError::lower("finding out what the filesystem can do"))
}

/// A read-only mount changes nothing, so no limit matters but this one.
fn read_only_capabilities() -> Capabilities {
    Capabilities {
        xattr_bytes_max: 64 << 10,
        file_bytes_max: i64::MAX as u64,
        name_bytes_max: NAME_BYTES_MAX,
        symlink_bytes_max: SYMLINK_BYTES_MAX,
        directory_bytes_max: u64::MAX,
        links_max: u32::MAX,
        device_max: DeviceNumber::MAX,
        privileged: false,
        owner_uid: 0,
        read_only: true,
    }
}
