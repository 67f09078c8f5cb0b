//! Opening a store: the journal's transactions are merged, and served from memory like those of a
//! live mount; the apply comes later. Only where an earlier apply had begun to move names is it
//! finished first, if the lower filesystem has room for that
//! (`docs/DESIGN.md#a-store-is-served-before-its-journal-is-applied`).

pub(crate) mod copied;
pub(crate) mod copies;
mod immutable;
pub(crate) mod inspect;
mod renamed;
pub(crate) mod report;
mod resume;
mod unapplied;
mod validate;

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use mobifs_base::{
    DeviceNumber, NAME_BYTES_MAX, Name, ObjectId, PAGE_BYTES_U64, SYMLINK_BYTES_MAX,
};

use crate::apply;
use crate::apply::deleted::Deleted;
use crate::apply::limbo::{self, Unnamed};
use crate::apply::preallocation::{self, Preallocations};
use crate::apply::reserve::{self, Reserve};
use crate::apply::work::Applier;
use crate::calibration::shared::Measuring;
use crate::calibration::{self, Calibration};
use crate::locks::Order;
use crate::log::epoch::{Epoch, RenameMark};
use crate::log::outstanding_copies::OutstandingCopies;
use crate::log::overflow;
use crate::log::record::Record;
use crate::log::{self, LogOptions, Scanned};
use crate::lower::Lower;
use crate::lower::directories::Directories;
use crate::lower::kept_handles::KeptHandles;
use crate::options::JournalOptions;
use crate::overlay::Overlay;
use crate::overlay::paths;
use crate::overlay::pending::Pending;
use crate::overlay::state::State;
use crate::overlay::table::Table;
use crate::recovery::copied::Located;
use crate::recovery::copies::{Followed, Places, Sources};
use crate::recovery::report::{RecoveryReport, Resumed};
use crate::recovery::validate::is_own;
use crate::{Capabilities, RestartSink, RestartState, StoreError};

/// Ids above this one are not reached by counting, so a journal that has them is forged. It is
/// applied at once: no higher ids could be given out.
const OBJECT_ID_MAX: u64 = 1 << 62;

/// The parts of an open store: [`crate::JournalStore`] puts them together.
pub(crate) struct Opened<L: Lower> {
    /// The lock order that all parts of this store share.
    pub(crate) order: Order,
    pub(crate) overlay: Overlay<L>,
    pub(crate) applier: Applier,
    pub(crate) epoch: Epoch<L::Handle>,
    pub(crate) capabilities: Capabilities,
    /// The value of [`crate::Store::first_new_object`].
    pub(crate) first_new: ObjectId,
    /// The device is still to be measured.
    pub(crate) is_unmeasured: bool,
}

/// The result of the scan, before anything is changed.
struct Found<L: Lower> {
    opened: Opened<L>,
    report: RecoveryReport,
    /// The tags of the saved intent, if it was carried out.
    committed: Vec<u64>,
    /// What the journal of a copied store does not record yet.
    located: Option<Located>,
    /// The journal has records that no mount writes.
    is_suspect: bool,
}

/// Opens the store at the root of `lower`; see [`crate::JournalStore::open`].
pub(crate) fn open<L: Lower>(
    lower: L,
    options: &JournalOptions,
) -> Result<(Opened<L>, RecoveryReport), StoreError> {
    let Found {
        mut opened,
        mut report,
        located,
        is_suspect,
        ..
    } = scan(lower, options, None)?;
    if !opened.overlay.is_read_only() {
        validate::check_possible(&opened.overlay)?;
        opened.make_found_durable(&report)?;
        if report.copied {
            copied::bind_copy(&opened.overlay, &mut opened.epoch, located)?;
        }
        limbo::sweep_foreign_stage(
            &opened.overlay,
            opened.applier.reserve(),
            opened.epoch.next_overflow(),
            |state, id| {
                let object = state.pending.object(id);
                object.is_some_and(|object| object.bound.is_some() || !object.direct.is_empty())
            },
        )?;
        report.applied = opened.apply_if_necessary(is_suspect)?;
        preallocation::adopt::adopt(&opened.overlay, &opened.applier, false);
        if report.applied {
            opened.begin_empty()?;
        } else if opened.epoch.rename_mark() == RenameMark::NotBegun {
            unapplied::clear_limbo_but_known(&opened.overlay)?;
        }
    } else {
        opened.check_read_only(&report, is_suspect)?;
    }
    opened.find_calibration(options, report.applied);
    report.lost = list_lost(&opened.overlay)?;
    Ok((opened, report))
}

/// Opens the store that a killed process had open; see [`crate::JournalStore::resume`].
pub(crate) fn resume<L: Lower>(
    lower: L,
    options: &JournalOptions,
    sink: Arc<dyn RestartSink>,
    saved: RestartState,
) -> Result<(Opened<L>, Resumed), StoreError> {
    let Found {
        mut opened,
        mut report,
        committed,
        ..
    } = scan(lower, options, Some(&saved))?;
    if report.copied {
        return Err(StoreError::Copied);
    }
    if committed.is_empty() && saved.intent.is_some() {
        // Before a new epoch begins, which would make it look committed.
        sink.intent(None);
    }
    drop(saved);
    opened.overlay.watch(sink);
    if !opened.overlay.is_read_only() {
        validate::check_possible(&opened.overlay)?;
        opened.make_found_durable(&report)?;
        limbo::sweep_foreign_stage(
            &opened.overlay,
            opened.applier.reserve(),
            opened.epoch.next_overflow(),
            resume::is_staged_by_us,
        )?;
        renamed::find_renamed(&opened.overlay, &mut opened.epoch)?;
        if opened.epoch.rename_mark() != RenameMark::NotBegun {
            opened.apply_if_possible()?;
        }
        report.applied = opened.is_applied();
        preallocation::adopt::adopt(&opened.overlay, &opened.applier, true);
        if report.applied {
            let empty = opened.epoch.empty();
            limbo::empty_limbo(&opened.overlay, &empty, Unnamed::PinnedOrLinked);
            limbo::sweep_stage(&opened.overlay, &empty, opened.applier.reserve());
        }
    }
    opened.find_calibration(options, false);
    report.lost = list_lost(&opened.overlay)?;
    Ok((opened, Resumed { report, committed }))
}

/// The store with its journal's transactions and, after a killed process, the `saved` state;
/// nothing is applied.
fn scan<L: Lower>(
    lower: L,
    options: &JournalOptions,
    saved: Option<&RestartState>,
) -> Result<Found<L>, StoreError> {
    let order = Order::new();
    let lower = KeptHandles::new(order, lower);
    let root = lower
        .root()
        .map_err(StoreError::lower("opening the store"))?;
    let root_stat = lower
        .stat(&root)
        .map_err(StoreError::lower("stat of the store"))?;
    let own = open_directories(&lower, options.read_only)?;
    let capabilities = find_capabilities(&lower, &own, options.read_only)?;
    let log_options = log_options(options, saved.is_some());
    let (log, mut scanned) = Reserve::open_with(&lower, &own, || {
        log::open::open(&lower, own.mobifs(), &log_options)
    })?;
    let reserve = Reserve::find(&lower, &own, options.reserve_bytes)?;
    let preallocated = preallocation::list::read(&lower, &own, log.uuid())?;
    let preallocations =
        Preallocations::new(order, options.preallocation, log.uuid(), preallocated);
    let next_overflow = overflow::expand(&lower, own.stage(), &mut scanned.transactions)?;
    let report = RecoveryReport::of(&scanned);
    let located = if scanned.is_copied {
        copied::locate(&lower, &mut scanned.transactions)?
    } else {
        None
    };
    let committed = committed_tags(&scanned, saved);
    let replayed = replay_over(&lower, &own, &log, scanned, root_stat.inode)?;
    let followed = replayed.followed;
    let mut state = replayed.state;
    state.table.begin_fresh_above(replayed.ids_max);
    // Some are sources of copies, also of those that were materialized.
    state.keep_copied_from(replayed.recorded.iter().copied());
    if let Some(saved) = saved {
        state.take_over(saved);
    }
    let opened = Opened {
        order,
        epoch: Epoch::found(
            log,
            replayed.recorded,
            next_overflow,
            replayed.rename_mark,
            followed.outstanding,
        ),
        overlay: Overlay::new(
            order,
            lower,
            own,
            root_stat.device,
            options.read_only,
            state,
        ),
        applier: Applier::new(
            order,
            reserve,
            preallocations,
            options.held_bytes_max,
            options.ahead_pages_min,
        ),
        capabilities,
        first_new: first_above(replayed.ids_max),
        is_unmeasured: false,
    };
    report_incomplete(&opened.overlay, &followed.incomplete);
    Ok(Found {
        opened,
        report,
        committed,
        located,
        is_suspect: replayed.is_suspect,
    })
}

const fn log_options(options: &JournalOptions, keeps_size: bool) -> LogOptions {
    LogOptions {
        journal_bytes: options.journal_bytes,
        direct_bytes_max: options.direct_bytes_max,
        direct_bytes_max_if_new: match options.measuring {
            Measuring::AtOpening => None,
            Measuring::Deferred { .. } => Some(Calibration::UNMEASURED_BYTES_MAX),
        },
        uuid_if_new: options.uuid_if_new,
        read_only: options.read_only,
        keeps_size,
    }
}

/// The tags of the saved intent, if it was carried out.
fn committed_tags(scanned: &Scanned, saved: Option<&RestartState>) -> Vec<u64> {
    saved
        .and_then(|saved| saved.intent.as_ref())
        .filter(|intent| scanned.has(intent.epoch, intent.sequence))
        .map(|intent| intent.tags.clone())
        .unwrap_or_default()
}

/// Some of their content is not what was committed.
fn report_incomplete<L: Lower>(overlay: &Overlay<L>, files: &BTreeSet<ObjectId>) {
    let state = overlay.state();
    for &id in files {
        let path = paths::path_of(&state, id);
        tracing::error!(
            %id, path,
            "another program changed or removed a database whose content the journal has in this file, \
             which is damaged now"
        );
    }
}

fn open_directories<L: Lower>(
    lower: &L,
    read_only: bool,
) -> Result<Directories<L::Handle>, StoreError> {
    let own = Directories::open(lower, read_only, true)?.ok_or_else(no_store)?;
    if !read_only {
        let inner = [own.stage(), own.limbo()].map(|directory| Some(&**directory));
        immutable::check_none(lower, own.mobifs(), inner)?;
    }
    Ok(own)
}

fn no_store() -> StoreError {
    StoreError::Unsuitable(
        "the directory is not a MobiFS store yet, and a read-only mount cannot make it \
         one; mount it once without `ro`, where its filesystem can be written to"
            .to_owned(),
    )
}

impl<L: Lower> Opened<L> {
    /// The process that wrote the journal may have been killed before its last writes were durable.
    /// They are relied on from now on, and the next steps assume that a power cut does not undo
    /// them. The rest of a torn transaction is invalidated.
    fn make_found_durable(&mut self, report: &RecoveryReport) -> Result<(), StoreError> {
        let Self {
            overlay,
            applier,
            epoch,
            ..
        } = self;
        if report.transactions > 0 {
            let synced = overlay.lower().sync_all();
            synced.map_err(StoreError::lower("making durable what is there"))?;
        }
        // Where blocks are never overwritten this takes room.
        reserve::with_reserve(overlay, applier.reserve(), || {
            epoch.make_durable(overlay.lower())
        })
    }

    /// Applies the journal, unless that can wait; returns whether all of it is applied. Changes
    /// that the lower filesystem refuses have to wait in any case: a full disk must not keep a
    /// store from being served, or nothing could be deleted from it.
    fn apply_if_necessary(&mut self, is_suspect: bool) -> Result<bool, StoreError> {
        let is_binding_valid = renamed::find_renamed(&self.overlay, &mut self.epoch)?;
        let has_begun = self.epoch.rename_mark() != RenameMark::NotBegun;
        // A later apply would have no room for its rename mark; commits leave that room.
        let is_stuck = !has_begun && self.epoch.log().free_bytes() < PAGE_BYTES_U64;
        let is_suspect = is_suspect || !is_binding_valid || is_stuck;
        let may_be_served = |opened: &Self| {
            let Self {
                overlay,
                capabilities,
                ..
            } = opened;
            Ok::<bool, StoreError>(
                !is_suspect
                    && validate::is_valid(overlay, capabilities)
                    && unapplied::check_found(overlay)?,
            )
        };
        let may_wait = !has_begun && self.epoch.has_room_to_apply();
        // Once: a second look would not see what the first one has dropped.
        let may_be_served = may_be_served(self)?;
        if !may_wait || !may_be_served {
            if may_be_served {
                self.apply_if_possible()?;
            } else {
                let Self {
                    overlay,
                    applier,
                    epoch,
                    ..
                } = self;
                apply::apply_everything(overlay, applier, epoch, &mut Deleted::new())?;
            }
        }
        Ok(self.is_applied())
    }

    /// What can be checked without writing. A journal that has to be applied before it is served is refused.
    /// Where an apply has begun, or the store is a copy, objects are where only a mount that may write finds them.
    fn check_read_only(&self, report: &RecoveryReport, is_suspect: bool) -> Result<(), StoreError> {
        validate::check_possible(&self.overlay)?;
        let may_be_elsewhere = self.epoch.rename_mark() != RenameMark::NotBegun || report.copied;
        let may_be_served = !is_suspect
            && validate::is_valid(&self.overlay, &self.capabilities)
            && (may_be_elsewhere || unapplied::check_found(&self.overlay)?);
        if may_be_served {
            return Ok(());
        }
        Err(StoreError::Unsuitable(
            "its journal has to be applied before it can be read: open it once for writing".into(),
        ))
    }

    /// Applies the journal, as far as the lower filesystem does not refuse it.
    fn apply_if_possible(&mut self) -> Result<(), StoreError> {
        match apply::apply_all(&self.overlay, &self.applier, &mut self.epoch) {
            Err(error) if error.is_refusal() || matches!(error, StoreError::Unapplied { .. }) => {
                tracing::error!(%error, "cannot apply the journal; the store is served over it");
                Ok(())
            }
            applied => applied,
        }
    }

    /// Whether everything committed is applied.
    fn is_applied(&self) -> bool {
        self.epoch.log().is_empty() && self.overlay.state().pending.is_empty()
    }

    /// Finds what was measured of the device. If the store is on another device, measures again, at once if
    /// everything is applied, or later; not if the threshold is configured.
    fn find_calibration(&mut self, options: &JournalOptions, is_applied: bool) {
        let may_measure = is_applied && self.is_applied() && self.epoch.log().carried().is_none();
        let Self { overlay, epoch, .. } = self;
        self.is_unmeasured = calibration::measure::at_open(overlay, epoch, may_measure, options);
    }

    /// Everything is applied: deletes what an earlier mount left, and counts ids anew.
    fn begin_empty(&mut self) -> Result<(), StoreError> {
        limbo::clear_limbo(&self.overlay)?;
        apply::keep_own_files(&self.overlay, &self.applier);
        // The numbers in the journal were those of the mount before: this mount counts new objects
        // from the start again, unless a file that could not be deleted from `stage/` would be
        // taken for one of them.
        let empty = self.epoch.empty();
        if limbo::sweep_stage(&self.overlay, &empty, self.applier.reserve()) {
            self.overlay.state_mut().table.start_anew();
            self.overlay.lower().handles().clear();
            self.first_new = ObjectId::FIRST_NEW;
        }
        Ok(())
    }
}

fn list_lost<L: Lower>(overlay: &Overlay<L>) -> Result<Vec<String>, StoreError> {
    let lost = overlay.lower().list(overlay.lost());
    let lost = lost.map_err(StoreError::lower("listing lost"))?;
    let names = lost.iter().map(|entry| entry.name.escape_ascii());
    Ok(names.map(|name| name.to_string()).collect())
}

/// The merged transactions of the journal.
struct Replayed {
    state: State,
    /// Objects whose places the journal records.
    recorded: HashSet<ObjectId>,
    rename_mark: RenameMark,
    /// The highest id in the journal.
    ids_max: u64,
    /// There are records that no mount writes.
    is_suspect: bool,
    followed: Followed,
}

/// Merges the journal's transactions, in order, with what they copy from the lower filesystem.
fn replay_over<L: Lower>(
    lower: &L,
    own: &Directories<L::Handle>,
    log: &log::Log<L::Handle>,
    scanned: Scanned,
    root_inode: u64,
) -> Result<Replayed, StoreError> {
    let in_copy = copied::inodes(&scanned.transactions);
    let places = Places::of(&scanned.transactions, &in_copy);
    let limbo: &L::Handle = own.limbo();
    let mut open = |id| places.open(lower, limbo, id);
    let outstanding = OutstandingCopies::of_new_epoch(log.may_copy() && log.is_empty());
    let sources = Sources::new(lower, &mut open, &scanned.transactions, outstanding);
    replay(scanned, root_inode, log.has_rename_mark(), sources)
}

/// Merges the journal's transactions, in order.
fn replay<L: Lower>(
    scanned: Scanned,
    root_inode: u64,
    has_rename_mark: bool,
    mut sources: Sources<'_, L>,
) -> Result<Replayed, StoreError> {
    let mut pending = Pending::default();
    let mut table = Table::new(root_inode);
    let mut recorded = HashSet::new();
    let mut known = Vec::new();
    let mut rename_mark = RenameMark::NotBegun;
    // Set for places and inodes that only a forged journal has. Such a journal is applied before
    // anything is served.
    let mut is_suspect = false;
    let mut is_bound = false;
    let in_copy = copied::inodes(&scanned.transactions);
    for (sequence, mut records) in scanned.transactions {
        sources.resolve(&pending, sequence, &mut records)?;
        // More was committed after an apply that failed while names moved.
        if rename_mark != RenameMark::NotBegun || !has_rename_mark {
            rename_mark = RenameMark::Unknown;
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
                    // Inode numbers of the original are invalid here, and may be those of other
                    // objects.
                    let Some(inode) = in_copy.get(&id).copied().unwrap_or(Some(inode)) else {
                        continue;
                    };
                    is_suspect |= !table.agrees(id, inode, kind);
                    table.insert(id, inode, kind);
                    known.push((id, parent, name));
                }
                Record::RenameMark if has_rename_mark => rename_mark = RenameMark::ContentDone,
                Record::RenameMarkInPart => rename_mark = RenameMark::Unknown,
                other => {
                    is_bound |= matches!(other, Record::Bind { .. });
                    pending.merge_record(other);
                }
            }
        }
    }
    // Without a name it waits in limbo, which is searched anyway.
    let known = known.into_iter().filter_map(|(id, parent, name)| {
        let name = Name::new(&name).ok()?;
        is_suspect |= is_own(parent, &name);
        Some((id, parent, name))
    });
    table.add_names(known);
    // Only a journal with a rename mark has inodes of new objects.
    is_suspect |= is_bound && rename_mark == RenameMark::NotBegun;
    if is_suspect && rename_mark == RenameMark::NotBegun {
        rename_mark = RenameMark::Unknown;
    }
    for id in pending.ids() {
        if pending.object(id).is_none_or(|object| !object.created) {
            table.reserve(id);
        }
    }
    let ids_max = pending.ids().chain(table.ids()).max();
    let mut ids_max = ids_max.unwrap_or(ObjectId::ROOT).0;
    if ids_max > OBJECT_ID_MAX {
        (rename_mark, ids_max, is_suspect) = (RenameMark::Unknown, ObjectId::ROOT.0, true);
    }
    Ok(Replayed {
        state: State::new(pending, table),
        recorded,
        rename_mark,
        ids_max,
        is_suspect,
        followed: sources.finish(),
    })
}

/// The first id for a new object where no id in use is above `id`.
fn first_above(id: u64) -> ObjectId {
    // The engine gives out the even ids (the store's own, above `FIRST_NEW`, are odd), so the id after
    // `id` is rounded up to an even one.
    let first = ObjectId(((id + 2) & !1).max(ObjectId::FIRST_NEW.0));
    debug_assert!(first.0 > id, "{first} is above all that are in use");
    first
}

fn find_capabilities<L: Lower>(
    lower: &L,
    own: &Directories<L::Handle>,
    read_only: bool,
) -> Result<Capabilities, StoreError> {
    if read_only {
        return Ok(read_only_capabilities());
    }
    lower
        .capabilities(own.mobifs())
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
