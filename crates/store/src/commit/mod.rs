//! Accepting a transaction: large new data to its place, the rest to the journal.

mod base;
mod copies;
pub(crate) mod counters;
mod database_logs;
mod direct;
mod shape;

use std::collections::{BTreeMap, BTreeSet, HashSet};

use mobifs_base::{ByteRange, ObjectId, ObjectState, Page, PageIndex, RangeSet, Room};

use crate::apply;
use crate::apply::materialize;
use crate::apply::preallocation::give_back;
use crate::apply::reserve;
use crate::apply::spare;
use crate::apply::work::Applier;
use crate::commit::base::{Base, BasePage};
use crate::commit::copies::Copier;
use crate::commit::counters::{CommitCounters, WrittenPages};
use crate::commit::direct::DirectRun;
use crate::log::epoch::Epoch;
use crate::log::record::{Record, diff};
use crate::lower::Lower;
use crate::overlay::Overlay;
use crate::overlay::lookup;
use crate::overlay::paths;
use crate::overlay::pending::PendingPage;
use crate::overlay::places;
use crate::overlay::read;
use crate::placement;
use crate::{StoreError, Transaction};

/// Ranges whose content is in the lower files already.
type DirectRanges = Vec<(ObjectId, ByteRange)>;
/// Pages that the journal holds.
type KeptPages = Vec<(ObjectId, PageIndex, Page)>;

/// Commits one transaction. Its order is the crash argument
/// (`docs/DESIGN.md#a-commit-is-one-sequential-write`):
///
/// 1. The tail of a write that failed is invalidated, and room is made, by an apply if need be.
/// 2. Renames of an apply that failed are made durable: the journal may rely on them from here on.
/// 3. Data that goes directly to its place is written and made durable, only where the journal
///    durably says that nothing is there. A crash before step 4 leaves no trace of it. Where an earlier
///    transaction has copied from there, that is [materialized](materialize) first.
/// 4. The journal's write is the commit: after a crash the transaction is found if, and only if, it
///    is whole.
/// 5. The overlay takes it over, so that readers see it only when it is durable.
pub(crate) fn commit<L: Lower>(
    overlay: &Overlay<L>,
    applier: &Applier,
    counters: &CommitCounters,
    epoch: &mut Epoch<L::Handle>,
    transaction: Transaction,
) -> Result<(), StoreError> {
    if overlay.is_read_only() {
        let source = std::io::Error::from(std::io::ErrorKind::ReadOnlyFilesystem);
        return Err(StoreError::lower("committing")(source));
    }
    let mut transaction = transaction;
    debug_assert!(
        shape::is_complete(&transaction),
        "every object with pages has a state, and only one"
    );
    let room_max = cfg!(debug_assertions).then(|| Room::of_transaction(&transaction));
    make_room(overlay, applier, epoch, &transaction)?;
    let needed_bytes = Room::of_transaction(&transaction).bytes();
    give_back::make_way(overlay, applier, epoch, needed_bytes);
    epoch.sync_renames(overlay.lower())?;
    add_parents(overlay, &mut transaction)?;
    let _content = placement::may_place(&transaction).then(|| applier.content());
    let _tree = overlay.hold_names();
    let runs = direct::choose_direct(overlay, applier, counters, epoch, &transaction)?;
    let outstanding = epoch.outstanding_copies();
    if runs
        .iter()
        .any(|run| outstanding.is_source(run.object, run.range))
    {
        materialize::materialize(overlay, applier, epoch)?;
    }
    let written_directly = reserve::with_reserve(overlay, applier.reserve(), || {
        direct::write_direct(overlay, applier, &runs, &transaction)
    })?;
    let (direct, spilled) = direct_records(overlay, &runs, &transaction)?;
    let placed: BTreeMap<ObjectId, RangeSet> = ranges_by_object(&runs);
    let mut copier = Copier::new(overlay, counters, epoch, &transaction);
    let (page_records, kept, pages) =
        page_records(overlay, counters, &transaction, &placed, copier.as_mut())?;
    let sources = copier.map_or_else(BTreeSet::new, Copier::into_sources);
    let (mut records, recorded) = records_of(overlay, epoch.recorded(), &transaction, &sources);
    // Direct ranges come before pages, which are newer.
    records.extend(
        direct
            .iter()
            .map(|&(object, range)| Record::Direct { object, range }),
    );
    records.extend(page_records);
    epoch.add_copies(&records);
    spare::take_for(overlay, epoch, &records, epoch.kept_bytes());
    let files = (overlay.lower(), overlay.stage().as_ref());
    let written = epoch.commit(files, overlay.sink(), &transaction.tags, &records, recorded)?;
    let reserved = merge(overlay, transaction, &direct, &spilled, kept);
    debug_assert!(
        room_max.is_none_or(|max| max.covers(reserved)),
        "{reserved:?} is reserved for what may take {room_max:?}"
    );
    direct::mark_whole(overlay, &written_directly.whole);
    counters.add_written(written_directly.bytes);
    let is_flushed = written > epoch.log().direct_bytes_max();
    counters.add_commit(written, is_flushed, &records, pages);
    Ok(())
}

/// Records of places that the epoch does not have yet, of objects and of names; and the objects
/// whose places are among them.
fn records_of<L: Lower>(
    overlay: &Overlay<L>,
    known: &HashSet<ObjectId>,
    transaction: &Transaction,
    sources: &BTreeSet<ObjectId>,
) -> (Vec<Record>, HashSet<ObjectId>) {
    let mut recorded = HashSet::new();
    let mut records = Vec::new();
    let mentioned = shape::mentioned(transaction).chain(sources.iter().copied());
    places::record_places(overlay, known, mentioned, &mut recorded, &mut records);
    let objects = transaction.objects.iter().cloned().map(Record::Object);
    let names = transaction
        .dentries
        .iter()
        .map(|(parent, name, child)| Record::Dentry {
            parent: *parent,
            name: name.clone(),
            child: *child,
        });
    records.extend(objects.chain(names));
    (records, recorded)
}

/// Adds the attributes that are committed of directories whose entries the transaction changes
/// without them: their own change belongs to another app, and is committed with it. Applying the
/// entry would change their times in the lower filesystem, to a state that never existed; so the
/// epoch has to record them.
fn add_parents<L: Lower>(
    overlay: &Overlay<L>,
    transaction: &mut Transaction,
) -> Result<(), StoreError> {
    for id in shape::parents_without_state(transaction) {
        let is_pending = {
            let state = overlay.state();
            let object = state.pending.object(id);
            object.is_some_and(|object| object.attributes.is_some())
        };
        if is_pending {
            continue;
        }
        let attributes = match read::object(overlay, id) {
            Ok(info) => info.attributes,
            // It is deleted: then the entry is, too.
            Err(StoreError::Unknown(_)) => continue,
            Err(error) => {
                return Err(paths::failed_to_commit(overlay, id, &transaction.dentries)(
                    error,
                ));
            }
        };
        transaction
            .objects
            .push(ObjectState::of_attributes(id, attributes));
    }
    Ok(())
}

/// Applies what is pending if the transaction might not fit after it; and repairs a transaction or
/// a new epoch that failed, before anything is written in place that relies on the journal's
/// content.
fn make_room<L: Lower>(
    overlay: &Overlay<L>,
    applier: &Applier,
    epoch: &mut Epoch<L::Handle>,
    transaction: &Transaction,
) -> Result<(), StoreError> {
    epoch.invalidate_tail(overlay.lower(), overlay.sink())?;
    let held_bytes = overlay.state().pending.held_bytes();
    let held_bytes = held_bytes.saturating_sub(epoch.carried_bytes());
    let needed = shape::journal_bytes_max(transaction);
    let is_full = !epoch.log().is_empty() && needed > epoch.free_bytes();
    if epoch.log().is_epoch_unknown() || is_full || held_bytes > applier.held_bytes_max() {
        apply::apply_what_is_possible(overlay, applier, epoch)?;
    }
    Ok(())
}

/// Ranges that are (or, of spilled objects, already were) written to their place,
/// and the spilled objects among them.
fn direct_records<L: Lower>(
    overlay: &Overlay<L>,
    runs: &[DirectRun],
    transaction: &Transaction,
) -> Result<(DirectRanges, Vec<ObjectId>), StoreError> {
    let mut direct: Vec<_> = runs.iter().map(|run| (run.object, run.range)).collect();
    let mut spilled = Vec::new();
    for state in transaction.objects.iter().filter(|state| state.created) {
        let Some(mut ranges) = overlay.state().spilled(state.id).cloned() else {
            continue;
        };
        state.zeroed.iter().for_each(|&range| ranges.remove(range));
        sync_spilled(overlay, state.id).map_err(paths::failed_to_commit(
            overlay,
            state.id,
            &transaction.dentries,
        ))?;
        direct.extend(ranges.iter().map(|range| (state.id, range)));
        spilled.push(state.id);
    }
    Ok((direct, spilled))
}

fn sync_spilled<L: Lower>(overlay: &Overlay<L>, id: ObjectId) -> Result<(), StoreError> {
    let handle = lookup::require_handle(overlay, id)?;
    let synced = overlay.lower().sync(&handle);
    synced
        .and_then(|()| overlay.lower().sync(overlay.stage()))
        .map_err(StoreError::lower(format!(
            "making spilled data of {id} durable"
        )))
}

/// Records of the pages that are not written to their place: the bytes that
/// changed. Also returns the pages that really changed, and their figures.
fn page_records<L: Lower>(
    overlay: &Overlay<L>,
    counters: &CommitCounters,
    transaction: &Transaction,
    placed: &BTreeMap<ObjectId, RangeSet>,
    mut copier: Option<&mut Copier<'_, L>>,
) -> Result<(Vec<Record>, KeptPages, WrittenPages), StoreError> {
    let mut records = Vec::new();
    let mut figures = WrittenPages::default();
    let mut kept = Vec::new();
    for state in &transaction.objects {
        let Some(pages) = transaction.pages.get(&state.id) else {
            continue;
        };
        let failed = || paths::failed_to_commit(overlay, state.id, &transaction.dentries);
        let base = Base::new(overlay, state).map_err(failed())?;
        let placed = placed.get(&state.id);
        let log = copier.as_mut().and_then(|copier| copier.log(state.id));
        for (&index, page) in pages {
            if placed.is_some_and(|ranges| ranges.contains(index.offset())) {
                continue;
            }
            let base = base.of(overlay, counters.base_reads(), index);
            let base = base.map_err(failed())?;
            let (fresh, runs) = match &base {
                BasePage::Unknown | BasePage::Zero => (true, diff(None, page)),
                BasePage::Known(base) | BasePage::FromDevice(base) => {
                    (false, diff(Some(base), page))
                }
            };
            // Nothing changed: what is committed stays. Zeros in a hole are a change: the program
            // gets the blocks that it has written, or else the room that they were promised would
            // be free again after each commit, and a full disk would never refuse zeros.
            if runs.is_empty() && !fresh {
                continue;
            }
            figures.pages += 1;
            figures.whole += u64::from(matches!(base, BasePage::Unknown));
            if base.is_from_device() {
                counters.base_reads().found(&runs);
            }
            let literal = Record::Bytes {
                object: state.id,
                index,
                fresh,
                runs,
            };
            records.push(match (copier.as_mut(), &log) {
                (Some(copier), Some(log)) => copier.record(log, index, page, &base, literal),
                _ => literal,
            });
            kept.push((state.id, index, page.clone()));
        }
        if let (Some(copier), Some(log)) = (copier.as_mut(), &log) {
            copier.learn(log);
        }
    }
    Ok((records, kept, figures))
}

/// Lets reads see the transaction; returns the room that is reserved for it.
fn merge<L: Lower>(
    overlay: &Overlay<L>,
    transaction: Transaction,
    direct: &[(ObjectId, ByteRange)],
    spilled: &[ObjectId],
    kept: KeptPages,
) -> Room {
    let mut state = overlay.state_mut();
    let before = state.pending.reserved();
    transaction
        .objects
        .iter()
        .for_each(|object| state.pending.merge_state(object));
    for (parent, name, child) in transaction.dentries {
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
    state.pending.reserved().saturating_sub(before)
}

fn ranges_by_object(runs: &[DirectRun]) -> BTreeMap<ObjectId, RangeSet> {
    let mut by_object: BTreeMap<ObjectId, RangeSet> = BTreeMap::new();
    for run in runs {
        by_object.entry(run.object).or_default().insert(run.range);
    }
    by_object
}
