//! Opening a store: what the journal holds is merged and applied.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::AtomicU64;

use mobifs_types::Name;
use parking_lot::{Mutex, RwLock};

use super::gate::Gate;
use super::log::{Log, LogOptions, Scanned};
use super::lookup::Handles;
use super::pending::Pending;
use super::record::Record;
use super::table::Table;
use super::{Counters, Directories, JournalOptions, JournalStore, State, Writer, overflow};
use crate::StoreError;
use crate::lower::Lower;

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
        let lower = Gate::new(lower);
        let root = lower
            .root()
            .map_err(StoreError::lower("opening the store"))?;
        let root_stat = lower
            .stat(&root)
            .map_err(StoreError::lower("stat of the store"))?;
        let own = Directories::open(&lower, options.read_only)?.ok_or_else(|| {
            StoreError::Unsuitable(
                "the directory is not a MobiFS store yet, and a read-only mount cannot make it \
                 one; mount it once without `ro`"
                    .to_owned(),
            )
        })?;
        let mut capabilities = if options.read_only {
            read_only_capabilities()
        } else {
            let probed = lower.capabilities(&own.mobifs);
            probed.map_err(StoreError::lower("finding out what the filesystem can do"))?
        };
        capabilities.read_only |= options.read_only;
        let log_options = LogOptions {
            journal_bytes: options.journal_bytes,
            direct_bytes_max: options.direct_bytes_max,
            uuid_if_new: options.uuid_if_new,
            read_only: options.read_only,
        };
        let (log, mut scanned) = Log::open(&lower, &own.mobifs, &log_options)?;
        let next_overflow = overflow::expand(&lower, &own.stage, &mut scanned.transactions)?;
        let mut report = RecoveryReport::of(&scanned);
        let (pending, table, recorded) = replay(scanned, root_stat.inode);
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
            }),
            tree: RwLock::new(()),
            state: RwLock::new(State {
                pending,
                table,
                pinned: HashSet::new(),
                spilled: HashMap::new(),
            }),
            handles: Mutex::new(Handles::default()),
            counters: Counters::default(),
            journal_used_bytes: AtomicU64::new(0),
            journal_total_bytes: AtomicU64::new(0),
            own,
            lower,
        };
        store.finish_recovery(&mut report)?;
        Ok((store, report))
    }

    /// Applies what was found, and clears what an interrupted apply left.
    fn finish_recovery(&self, report: &mut RecoveryReport) -> Result<(), StoreError> {
        let mut writer = self.writer.lock();
        if !self.read_only {
            self.sweep_foreign_stage()?;
            self.apply_all(&mut writer)?;
            if report.discarded_tail_bytes > 0 {
                // What is left of the torn transaction must not become whole by a later
                // one that is torn in its place and has some of the same blocks.
                writer.log.reset(&self.lower, false)?;
            }
            let leftovers = self.lower.list(&self.own.limbo);
            for entry in leftovers.map_err(StoreError::lower("listing limbo"))? {
                self.delete_from_limbo(&entry.name)?;
            }
            self.sweep_stage();
            // The numbers in the journal were those of the mount before: the one that
            // begins now counts new objects from the start again.
            self.state.write().table.start_anew();
            *self.handles.lock() = Handles::default();
        }
        self.publish_log(&writer.log);
        let lost = self
            .lower
            .list(&self.own.lost)
            .map_err(StoreError::lower("listing lost"))?;
        report.lost = lost
            .iter()
            .map(|entry| entry.name.escape_ascii().to_string())
            .collect();
        Ok(())
    }
}

/// Merges the journal's transactions, in order.
fn replay(scanned: Scanned, root_inode: u64) -> (Pending, Table, HashSet<mobifs_types::ObjectId>) {
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
    (pending, table, recorded)
}

/// A read-only mount changes nothing, so no limit matters but this one.
fn read_only_capabilities() -> crate::Capabilities {
    crate::Capabilities {
        xattr_bytes_max: 64 << 10,
        file_bytes_max: i64::MAX as u64,
        links_max: u32::MAX,
        privileged: false,
        read_only: true,
    }
}
