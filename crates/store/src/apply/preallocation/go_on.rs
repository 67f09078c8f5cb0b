//! Files that go on where they end, on a filesystem that moves content ([`Lower::moves_content`]).
//!
//! Allocating ahead (`fallocate`) takes the first free run of its size that ext4 finds, wherever that is. Only a
//! write begins at the block after the last one, if that is free, and then reserves more for the file, from which
//! `fallocate` takes first. So a file that grows is given a page of zeros, written out, where it goes on, and then
//! what ext4 has reserved.
//!
//! Where others have what follows, all of the file moves to a place with room for about as much again. The copies are
//! at most twice what the file has in the end, because each place is twice as large as the one before, and never more
//! than what applies write besides.
//!
//! The pages of zeros are overwritten by the apply: they lie where the journal has pages of the file, and no file gets
//! larger than the apply makes it. So a cut leaves what an apply leaves that was interrupted, and moved content is as
//! it was wherever it is found.
//!
//! A device that does not write the new place must not take what it had in the old one: the journal of the store has
//! only what has changed. So the new place has the content before the blocks are exchanged, and those of before are
//! kept until it is durable, and get the content back where it does not become that.

use std::io;
use std::sync::Arc;

use mobifs_base::{ByteRange, ObjectId, PAGE_BYTES, PAGE_BYTES_U64, SpaceInfo};

use crate::StoreError;
use crate::apply::preallocation::list::block_end;
use crate::apply::preallocation::step::reserved_end;
use crate::apply::preallocation::{METADATA_BYTES, find, short_bytes};
use crate::apply::work::Applier;
use crate::lower::Lower;
use crate::overlay::Overlay;

/// Larger files stay where they are.
pub(super) const MOVED_FILE_BYTES_MAX: u64 = 8 << 20;
/// Bytes that may be moved before applies have written as much.
const MOVED_BYTES_FREE: u64 = 4 << 20;
/// Content in memory, and open files, from which on what has moved is made durable.
const KEPT_BYTES: usize = 4 << 20;
const DONORS_MAX: usize = 8;
const ZEROS: [u8; PAGE_BYTES] = [0; PAGE_BYTES];

/// How a file goes on that an apply makes grow, before its content is written.
#[derive(Clone, Copy, Debug)]
pub(super) struct GoOn {
    pub(super) id: ObjectId,
    /// Its size once the apply is complete.
    pub(super) size: u64,
    /// What is allocated, as far as the list has blocks of the store in it.
    pub(super) range: ByteRange,
    /// The apply keeps content beyond the present size; otherwise it begins by cutting that off.
    pub(super) extends: bool,
}

/// A file whose content has a new place, and may not be durable there.
struct Moved<'a, H> {
    file: &'a H,
    how: &'a GoOn,
    /// Has the blocks of before.
    donor: H,
    /// What the file had.
    content: Vec<u8>,
}

/// Gives files blocks where they end, or in another place all of them. What fails leaves a file as it is.
///
/// # Errors
/// What has moved may not be durable.
pub(super) fn go_on<L: Lower>(
    overlay: &Overlay<L>,
    applier: &Applier,
    files: &[(Arc<L::Handle>, GoOn)],
) -> Result<(), StoreError> {
    let mut moved = Vec::new();
    let mut kept_bytes = 0;
    for (file, how) in files {
        let given = if how.extends {
            extend(overlay.lower(), file, how)
        } else {
            overlay.lower().preallocate(file, how.range)
        };
        match given.and_then(|()| move_away(overlay, applier, file, how)) {
            Ok(Some(it)) => {
                kept_bytes += it.content.len();
                moved.push(it);
            }
            Ok(None) => {}
            Err(error) => tracing::debug!(%error, "a file that grows stays as it is"),
        }
        if kept_bytes >= KEPT_BYTES || moved.len() >= DONORS_MAX {
            make_durable(overlay, applier, std::mem::take(&mut moved))?;
            kept_bytes = 0;
        }
    }
    make_durable(overlay, applier, moved)
}

/// Makes what has moved durable, in its new place or in the one before, and has it go on there.
fn make_durable<L: Lower>(
    overlay: &Overlay<L>,
    applier: &Applier,
    moved: Vec<Moved<'_, L::Handle>>,
) -> Result<(), StoreError> {
    let lower = overlay.lower();
    let mut result = Ok(());
    let mut durable = Vec::with_capacity(moved.len());
    for it in moved {
        // The room after what has moved is free when the filesystem's own journal says so.
        let Err(error) = lower.sync(it.file) else {
            durable.push((it.file, it.how));
            continue;
        };
        applier.preallocations().set_moves_nothing();
        let path = {
            let state = overlay.state();
            find::path_of(&state, it.how.id)
        };
        let path = path.escape_ascii().to_string();
        tracing::warn!(%error, path, "a file goes back to where it was, and no other moves: writing it failed");
        if let Err(error) = bring_back(lower, &it) {
            let action = format!("making {path} durable, which has moved,");
            result = result.and(Err(StoreError::lower(action)(error)));
        }
    }
    for (file, how) in durable {
        if let Err(error) = extend(lower, file, how) {
            tracing::debug!(%error, "what has moved is not extended");
        }
    }
    result
}

/// Writes a file where it was before it moved. Pages that could not be written are clean, so that memory may have
/// dropped them: what is missing is written anew.
fn bring_back<L: Lower>(lower: &L, moved: &Moved<'_, L::Handle>) -> io::Result<()> {
    let is_back = lower.move_back(moved.file, &moved.donor);
    if let Err(error) = &is_back {
        tracing::warn!(%error, "the file stays where it is, and is written there once more");
    }
    let mut found = [0; PAGE_BYTES];
    let offsets = (0..).step_by(PAGE_BYTES);
    for (offset, page) in offsets.zip(moved.content.chunks(PAGE_BYTES)) {
        let read = lower.read_at(moved.file, &mut found[..page.len()], offset);
        let is_there = read.is_ok_and(|length| found[..length] == *page);
        if is_back.is_err() || !is_there {
            lower.write_at(moved.file, page, offset)?;
        }
    }
    lower.sync(moved.file)
}

/// Gives a file blocks for what it grows by, and up to the end that the list has.
fn extend<L: Lower>(lower: &L, file: &L::Handle, how: &GoOn) -> io::Result<()> {
    let mut at = block_end(lower.stat(file)?.size);
    while how.extends && at < how.size.min(how.range.end) {
        let length = (how.size - at).min(PAGE_BYTES_U64) as usize;
        lower.write_at(file, &ZEROS[..length], at)?;
        // Looking gives it a block.
        lower.is_scattered(file)?;
        let written = at + PAGE_BYTES_U64;
        at = reserved_end(written).min(how.range.end).max(written);
        if at > written {
            let reserved = ByteRange::new(written, at);
            lower.preallocate(file, reserved)?;
        }
    }
    Ok(())
}

/// Moves a file that lies in several pieces, if that is worth it.
fn move_away<'a, L: Lower>(
    overlay: &Overlay<L>,
    applier: &Applier,
    file: &'a L::Handle,
    how: &'a GoOn,
) -> io::Result<Option<Moved<'a, L::Handle>>> {
    let lower = overlay.lower();
    let size = lower.stat(file)?.size;
    let room_bytes = reserved_end(how.size.max(size));
    let may_move = size <= MOVED_FILE_BYTES_MAX
        && !applier.preallocations().moves_nothing()
        && may_write(applier, size)
        && room_bytes <= free_bytes(overlay, &lower.space()?);
    if !may_move || !lower.is_scattered(file)? {
        return Ok(None);
    }
    let mut content = vec![0; size as usize];
    if lower.read_at(file, &mut content, 0)? < content.len() {
        return Ok(None);
    }
    let Some(donor) = lower.move_content(overlay.mobifs(), file, &content, room_bytes)? else {
        return Ok(None);
    };
    applier.counters().add_moved(size);
    // What it had beyond its end is elsewhere. The apply sets its times.
    if let Err(error) = lower.truncate(file, size) {
        tracing::debug!(%error, "what has moved keeps blocks beyond its end");
    }
    Ok(Some(Moved {
        file,
        how,
        donor,
        content,
    }))
}

/// Whether what was moved, and this, is not more than what applies have written besides.
fn may_write(applier: &Applier, bytes: u64) -> bool {
    let counters = applier.counters();
    let moved = counters.moved_bytes();
    let written = counters.written_bytes().saturating_sub(moved);
    moved.saturating_add(bytes) <= written.saturating_add(MOVED_BYTES_FREE)
}

/// Room that is neither reserved nor kept free.
pub(super) fn free_bytes<L: Lower>(overlay: &Overlay<L>, space: &SpaceInfo) -> u64 {
    let reserved_bytes = overlay.state().pending.reserved().bytes();
    let kept_bytes = reserved_bytes.saturating_add(short_bytes(space));
    let kept_bytes = kept_bytes.saturating_add(METADATA_BYTES);
    space.available_bytes.saturating_sub(kept_bytes)
}
