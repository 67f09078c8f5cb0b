//! Opening a store: what the journal holds is merged and applied.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use mobifs_types::{Name, ObjectId};
use parking_lot::{Mutex, RwLock};

use super::gate::Gate;
use super::log::{Log, LogOptions, Scanned};
use super::lookup::Handles;
use super::pending::Pending;
use super::record::Record;
use super::state::{State, Watched};
use super::table::Table;
use super::{Counters, Directories, JournalOptions, JournalStore, Writer, overflow};
use crate::lower::Lower;
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
    /// Bytes of a transaction that was being written when the power went.
    pub discarded_tail_bytes: u64,
    /// Names in `.mobifs/lost/`: directories that were deleted through the mount while
    /// somebody put something into them behind its back.
    pub lost: Vec<String>,
}

impl RecoveryReport {
    /// What a look at the journal alone tells.
    pub(super) fn of(scanned: &Scanned) -> Self {
        Self {
            clean: scanned.clean && scanned.transactions.is_empty(),
            transactions: scanned.transactions.len() as u64,
            records: scanned
                .transactions
                .iter()
                .map(|(_, r)| r.len() as u64)
                .sum(),
            bytes: scanned.bytes,
            discarded_tail_bytes: scanned.discarded_tail_bytes,
            lost: Vec::new(),
        }
    }
}

impl<L: Lower> JournalStore<L> {
    /// Opens the store at the root of `lower`, making it a store if it is none, and
    /// brings it to its last committed state.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`], [`StoreError::NewerFormat`] (nothing was changed
    /// then), [`StoreError::Unsuitable`], [`StoreError::Lower`].
    pub fn open(lower: L, options: &JournalOptions) -> Result<(Self, RecoveryReport), StoreError> {
        let (store, mut report, _) = Self::load(lower, options, None)?;
        store.recover(&mut report)?;
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
    /// nothing of it is applied. Also the tag of the saved intent, if it was carried out.
    pub(super) fn load(
        lower: L,
        options: &JournalOptions,
        saved: Option<&Saved>,
    ) -> Result<(Self, RecoveryReport, Option<u64>), StoreError> {
        let lower = Gate::new(lower);
        let root = lower
            .root()
            .map_err(StoreError::lower("opening the store"))?;
        let root_stat = lower
            .stat(&root)
            .map_err(StoreError::lower("stat of the store"))?;
        // What a journal says is done with the daemon's rights, and root's are all.
        let owner = rustix::process::geteuid();
        let owner = owner.is_root().then(|| owner.as_raw());
        let own = Directories::open(&lower, options.read_only, owner)?.ok_or_else(|| {
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
        let (log, mut scanned) = Log::open(&lower, &own.mobifs, &log_options)?;
        let next_overflow = overflow::expand(&lower, &own.stage, &mut scanned.transactions)?;
        let report = RecoveryReport::of(&scanned);
        let committed = saved
            .and_then(|saved| saved.intent)
            .filter(|intent| scanned.has(intent.epoch, intent.sequence))
            .map(|intent| intent.tag);
        let (mut state, recorded) = replay(scanned, root_stat.inode);
        if let Some(saved) = saved {
            state.take_over(saved);
        }
        let store = Self {
            device: root_stat.device,
            capabilities,
            read_only: options.read_only,
            held_bytes_max: options.held_bytes_max,
            writer: Mutex::new(Writer {
                log,
                recorded,
                next_ticket: 1,
                next_overflow,
                has_open_intent: false,
            }),
            tree: RwLock::new(()),
            state: Watched::new(state),
            handles: Mutex::new(Handles::default()),
            counters: Counters::default(),
            journal_used_bytes: AtomicU64::new(0),
            journal_total_bytes: AtomicU64::new(0),
            own,
            lower,
        };
        Ok((store, report, committed))
    }

    /// Applies what was found, and clears what an interrupted apply left.
    fn recover(&self, report: &mut RecoveryReport) -> Result<(), StoreError> {
        let mut writer = self.writer.lock();
        if !self.read_only {
            self.settle_lower(report)?;
            self.sweep_foreign_stage(|state, id| {
                let object = state.pending.object(id);
                object.is_some_and(|object| object.bound.is_some() || !object.direct.is_empty())
            })?;
            self.apply_found(&mut writer, report)?;
            self.clear_limbo()?;
            self.sweep_stage();
            // The numbers in the journal were those of the mount before: the one that
            // begins now counts new objects from the start again.
            self.state.write().table.start_anew();
            *self.handles.lock() = Handles::default();
        }
        self.publish_log(&writer.log);
        report.lost = self.list_lost()?;
        Ok(())
    }

    /// Whoever wrote what is found now may have been killed before it was durable. It is
    /// relied on from now on, and what is done next assumes that a power cut does not
    /// take it back.
    pub(super) fn settle_lower(&self, report: &RecoveryReport) -> Result<(), StoreError> {
        if report.transactions == 0 {
            return Ok(());
        }
        self.lower
            .sync_all()
            .map_err(StoreError::lower("making durable what is there"))
    }

    /// Applies what the journal held, and voids what is left of a torn transaction.
    pub(super) fn apply_found(
        &self,
        writer: &mut Writer<L>,
        report: &RecoveryReport,
    ) -> Result<(), StoreError> {
        self.apply_all(writer)?;
        if report.discarded_tail_bytes > 0 {
            // What is left of it must not become whole by a later one that is torn in its
            // place and has some of the same blocks.
            writer.log.reset(&self.lower, false)?;
        }
        Ok(())
    }

    pub(super) fn list_lost(&self) -> Result<Vec<String>, StoreError> {
        let lost = self
            .lower
            .list(&self.own.lost)
            .map_err(StoreError::lower("listing lost"))?;
        let names = lost.iter().map(|entry| entry.name.escape_ascii());
        Ok(names.map(|name| name.to_string()).collect())
    }
}

/// Merges the journal's transactions, in order; also says which objects' places it records.
fn replay(scanned: Scanned, root_inode: u64) -> (State, HashSet<ObjectId>) {
    let mut pending = Pending::default();
    let mut table = Table::new(root_inode);
    let mut recorded = HashSet::new();
    let mut known = Vec::new();
    for (_, records) in scanned.transactions {
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
                    table.insert(id, inode, kind);
                    known.push((id, parent, name));
                }
                other => pending.merge_record(other),
            }
        }
    }
    for (id, parent, name) in known {
        // Without a name it waits in limbo, where it is looked for anyway.
        if let Ok(name) = Name::new(&name) {
            table.add_name(id, parent, &name);
        }
    }
    (State::new(pending, table), recorded)
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
        links_max: u32::MAX,
        privileged: false,
        read_only: true,
    }
}
