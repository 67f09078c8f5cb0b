//! Applying committed state to the lower tree.
//!
//! Redo by state: every step examines the lower tree and changes it to the final state, so it may
//! be repeated after any partial earlier attempt. The order matters for crashes only at the
//! barriers:
//!
//! 0. The journal is made independent of what is overwritten ([`materialize`]).
//! 1. New objects are made in `stage/`, complete, unless their commit has done so.
//! 2. Content of existing files is brought up to date in place, except for what was written ahead,
//!    during commits ([`ahead`]). *Barrier*, then the journal records that renames begin, and the
//!    inodes of new objects: they can be recognised wherever they are.
//! 3. Every entry that does not name its final object is moved to `limbo/`, under its inode number.
//!    *Barrier*: no object is renamed over another one. Further names of moved objects are removed
//!    after it, with a barrier of their own.
//! 4. Every entry gets its final object, from `limbo/`, `stage/` or another name.
//!    Directories get their final attributes.
//! 5. *Barrier*, then the journal starts a new epoch. Only then `limbo/` is emptied: no inode
//!    number that the journal mentions is reused before.
//!
//! Until renames begin, the pending state over the lower tree is correct, however much of it was
//! applied: see `docs/DESIGN.md#a-store-is-served-before-its-journal-is-applied`.

pub(crate) mod ahead;
mod backoff;
mod carry;
pub(crate) mod content;
pub(crate) mod deleted;
pub(crate) mod externally_modified;
pub(crate) mod limbo;
pub(crate) mod materialize;
pub(crate) mod preallocation;
pub(crate) mod refused;
mod rename_steps;
pub(crate) mod reserve;
pub(crate) mod spare;
pub(crate) mod stage;
mod tree;
pub(crate) mod work;

use mobifs_base::ObjectId;

use crate::StoreError;
use crate::apply::deleted::Deleted;
use crate::apply::limbo::Unnamed;
use crate::apply::preallocation::give_back::{GivenBack, give_back};
use crate::apply::refused::Refused;
use crate::apply::rename_steps::RenameSteps;
use crate::apply::reserve::RoomSource;
use crate::apply::work::{Applier, Work};
use crate::log::epoch::{Epoch, RenameMark};
use crate::log::record::Record;
use crate::lower::Lower;
use crate::overlay::Overlay;

/// Applies everything pending and starts a new epoch of the journal, if there is room.
///
/// # Errors
/// [`StoreError::Unapplied`] if the new epoch has begun with the `refused` records.
pub(crate) fn apply_pending<L: Lower>(
    overlay: &Overlay<L>,
    applier: &Applier,
    epoch: &mut Epoch<L::Handle>,
    deleted: &Deleted,
    refused: &mut Refused,
) -> Result<(), StoreError> {
    let mut content = applier.content();
    content.begin_apply();
    let mut work = Work::take(overlay);
    if refused.continues() {
        work.rotate_entries(applier);
    }
    // Where only the new epoch failed, everything was applied and is durable. Another apply would
    // change files in place without the protection of a journal.
    if !epoch.log().is_epoch_unknown() {
        if work.is_empty() && epoch.log().is_empty() && epoch.log().carried().is_none() {
            return Ok(());
        }
        // A failed record of inodes may be found after a crash: it must be invalid before other
        // inodes replace them.
        epoch.invalidate_tail(overlay.lower(), overlay.sink())?;
        materialize::materialize(overlay, applier, epoch)?;
        // Steps that the journal records as done must not be repeated: a crash in the middle would
        // leave a state that recovery does not examine.
        if epoch.rename_mark() != RenameMark::ContentDone {
            bring_to_place(overlay, applier, epoch, &work, deleted, refused)?;
        }
        rename_all(overlay, epoch, &work, refused)?;
        if !refused.is_empty() {
            carry::carry_over(overlay, applier, epoch, &work, refused)?;
        }
    }
    begin_epoch(overlay, applier, epoch, &work, refused)
}

/// Begins an epoch: all of the journal is applied and durable, or carried over.
fn begin_epoch<L: Lower>(
    overlay: &Overlay<L>,
    applier: &Applier,
    epoch: &mut Epoch<L::Handle>,
    work: &Work,
    refused: &mut Refused,
) -> Result<(), StoreError> {
    let (empty, carried) = epoch.begin_next(overlay.lower())?;
    overlay.state_mut().release_copied_from();
    let (records, outcome) = match carried {
        Some(carried) => (carried.records, Err(carried.error)),
        None => (Vec::new(), Ok(())),
    };
    {
        let _names = overlay.lock_names();
        finish(overlay, work, records);
    }
    epoch.set_carried_bytes(overlay.state().pending.held_bytes());
    preallocation::plan::conclude(overlay, applier, work);
    if limbo::empty_limbo(overlay, &empty, Unnamed::PinnedOrLinked) {
        refused.mark_freed();
    }
    limbo::sweep_stage(overlay, &empty, applier.reserve());
    carry::keep_room_to_carry_again(overlay, applier, epoch);
    outcome
}

/// Applies everything but names, durably, before the first rename.
fn bring_to_place<L: Lower>(
    overlay: &Overlay<L>,
    applier: &Applier,
    epoch: &mut Epoch<L::Handle>,
    work: &Work,
    deleted: &Deleted,
    refused: &mut Refused,
) -> Result<(), StoreError> {
    let _tree = overlay.hold_names();
    preallocation::plan::preallocate(overlay, applier, work, deleted)?;
    let mut bindings = stage::stage_new_objects(overlay, applier, work, refused)?;
    content::apply_contents(overlay, applier, work, deleted, refused)?;
    if !refused.is_empty() {
        bindings = carry::keep_room_to_carry(overlay, applier, epoch, work, refused, bindings)?;
    }
    if work.dentries.is_empty() {
        return Ok(());
    }
    stage::write_rename_mark(overlay, epoch, bindings, refused.is_empty())
}

/// Applies names, and what changes with them; everything applied is durable on return.
fn rename_all<L: Lower>(
    overlay: &Overlay<L>,
    epoch: &mut Epoch<L::Handle>,
    work: &Work,
    refused: &mut Refused,
) -> Result<(), StoreError> {
    {
        let mut renames = RenameSteps::begin(overlay.names());
        assert!(
            work.dentries.is_empty() || epoch.rename_mark() != RenameMark::NotBegun,
            "the journal records renames before the first one"
        );
        epoch.begin_renames();
        tree::rearrange(overlay, work, refused, &mut renames)?;
        content::apply_directory_attributes(overlay, work, refused, &mut renames)?;
        carry::park_nameless(overlay, refused, &mut renames)?;
    }
    epoch.sync_renames(overlay.lower())
}

/// The applied state is that of the lower tree: only carried records are pending any more, and
/// staged objects are ordinary ones.
fn finish<L: Lower>(overlay: &Overlay<L>, work: &Work, carried: Vec<Record>) {
    let mut state = overlay.state_mut();
    state.pending.clear();
    for record in carried {
        state.pending.merge_record(record);
    }
    let gone: Vec<ObjectId> = work
        .objects
        .iter()
        .filter(|(id, object)| {
            let is_known = state.table.get(**id).is_some() || state.pending.mentions(**id);
            object.created && !is_known
        })
        .map(|(&id, _)| id)
        .collect();
    drop(state);
    let mut handles = overlay.lower().handles();
    gone.into_iter().for_each(|id| handles.remove(id));
}

/// Applies everything that the lower filesystem does not refuse; then the journal is empty.
pub(crate) fn apply_what_is_possible<L: Lower>(
    overlay: &Overlay<L>,
    applier: &Applier,
    epoch: &mut Epoch<L::Handle>,
) -> Result<(), StoreError> {
    match apply_all(overlay, applier, epoch) {
        Err(error @ StoreError::Unapplied { .. }) => {
            tracing::error!(%error, "the store cannot restore its reserve; it goes on without it");
            Ok(())
        }
        applied => applied,
    }
}

/// Applies everything pending and starts a new epoch of the journal. The new epoch begins with the
/// refused records, where there is room to write them. Changes that were refused for lack of room
/// are tried again at once, in an epoch of their own, as long as the epoch before has deleted
/// something: inodes and blocks of deleted objects are freed only when their epoch has ended.
///
/// # Errors
/// [`StoreError::Unapplied`]: everything else is applied.
pub(crate) fn apply_all<L: Lower>(
    overlay: &Overlay<L>,
    applier: &Applier,
    epoch: &mut Epoch<L::Handle>,
) -> Result<(), StoreError> {
    let mut before = None;
    let is_short = preallocation::give_back::is_short(overlay, applier, 0);
    let which = if is_short {
        GivenBack::Everything
    } else {
        GivenBack::Due
    };
    give_back(overlay, applier, epoch, which);
    loop {
        let mut refused = Refused::collecting();
        let error = match apply_or_carry(overlay, applier, epoch, &mut refused) {
            Err(error @ StoreError::Unapplied { .. }) => error,
            // Everything else is still applied, as the epoch before has left it.
            Err(error) if error.is_refusal() && epoch.is_new() => {
                return Err(before.unwrap_or(error));
            }
            applied => return applied,
        };
        if !(error.is_full() && refused.has_freed()) {
            return Err(error);
        }
        tracing::info!(%error, "trying again with the room of what was deleted");
        // Its blocks are free when the filesystem's own journal says so.
        let freed = overlay.lower().sync_all();
        freed.map_err(StoreError::lower("making deletions durable"))?;
        before = Some(error);
    }
}

/// Applies everything, or what is not `refused`, and begins one new epoch.
fn apply_or_carry<L: Lower>(
    overlay: &Overlay<L>,
    applier: &Applier,
    epoch: &mut Epoch<L::Handle>,
    refused: &mut Refused,
) -> Result<(), StoreError> {
    let mut deleted = Deleted::new();
    let may_go_on =
        |error: &StoreError, epoch: &Epoch<L::Handle>| error.is_refusal() && epoch.may_carry();
    match apply_everything(overlay, applier, epoch, &mut deleted) {
        Err(error) if may_go_on(&error, epoch) => {
            match apply_pending(overlay, applier, epoch, &deleted, refused) {
                Err(again) if may_go_on(&again, epoch) => {
                    tracing::debug!(
                        error = %again,
                        "the store cannot keep the transaction beside the journal either"
                    );
                    Err(error)
                }
                applied => applied,
            }
        }
        applied => applied,
    }
}

/// Applies everything or fails; where there is no other room, with that of new objects that are not
/// needed any more, with the reserve, and with that of deleted files.
pub(crate) fn apply_everything<L: Lower>(
    overlay: &Overlay<L>,
    applier: &Applier,
    epoch: &mut Epoch<L::Handle>,
    deleted: &mut Deleted,
) -> Result<(), StoreError> {
    let mut applied = apply_pending(overlay, applier, epoch, deleted, &mut Refused::failing());
    for source in [
        RoomSource::Preallocated,
        RoomSource::ObsoleteStaged,
        RoomSource::Reserve,
        RoomSource::DeletedFiles,
    ] {
        match &applied {
            Err(error) if error.has_no_room() => {
                if !gain_room(overlay, applier, source, epoch, deleted)? {
                    continue;
                }
                tracing::info!(
                    %error,
                    "the disk is full: the store goes on with the room of {source}"
                );
                applied = apply_pending(overlay, applier, epoch, deleted, &mut Refused::failing());
            }
            _ => break,
        }
    }
    applied?;
    keep_own_files(overlay, applier);
    Ok(())
}

/// Makes the store's own files that later applies need: spare files, the reserve, and the list of
/// preallocated files. Not while changes are pending: a file might get an inode that the journal
/// mentions, of an object that a power cut has removed.
pub(crate) fn keep_own_files<L: Lower>(overlay: &Overlay<L>, applier: &Applier) {
    let is_pending = !overlay.state().pending.is_empty();
    if overlay.is_read_only() || is_pending {
        return;
    }
    spare::make_spares(overlay, applier.reserve());
    reserve::keep_reserve(overlay, applier.reserve());
    preallocation::list_file::keep(overlay, applier.preallocations());
}

/// Returns whether there is any.
pub(crate) fn gain_room<L: Lower>(
    overlay: &Overlay<L>,
    applier: &Applier,
    source: RoomSource,
    epoch: &mut Epoch<L::Handle>,
    deleted: &mut Deleted,
) -> Result<bool, StoreError> {
    // Then everything is applied, and only the new epoch has no room.
    let is_applied = epoch.log().is_epoch_unknown();
    match source {
        RoomSource::Preallocated => Ok(give_back(overlay, applier, epoch, GivenBack::Everything)),
        RoomSource::Reserve => Ok(reserve::spend_reserve(overlay, applier.reserve())),
        _ if is_applied => Ok(false),
        // The journal may have copies of what is in them.
        RoomSource::DeletedFiles if !epoch.outstanding_copies().is_empty() => Ok(false),
        RoomSource::ObsoleteStaged => limbo::free_staged(overlay),
        RoomSource::DeletedFiles => {
            let (found, had_blocks) = deleted::free_deleted(overlay)?;
            let has_any = had_blocks || !found.is_empty();
            *deleted = found;
            Ok(has_any)
        }
    }
}
