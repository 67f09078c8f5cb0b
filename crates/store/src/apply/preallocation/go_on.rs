//! Files that go on where they end, on a filesystem that moves content ([`Lower::moves_content`]).
//!
//! Allocating ahead (`fallocate`) takes the first free run of its size that ext4 finds, wherever that is. Only a
//! write begins at the block behind the last one, if that is free, and then reserves more for the file, from which
//! `fallocate` takes first. So a file that grows is given a page of zeros, written out, where it goes on, and then
//! what ext4 has reserved.
//!
//! Where others have what follows, all of the file moves to a place with room for about as much again. The copies are
//! as many bytes as the file has in the end, because each place is twice as large as the one before, and never more
//! than what applies write besides.
//!
//! The pages of zeros are overwritten by the apply: they lie where the journal has pages of the file, and no file gets
//! larger than the apply makes it. So a cut leaves what an apply leaves that was interrupted, and moved content is as
//! it was wherever it is found.

use std::io;
use std::sync::Arc;

use mobifs_base::{ByteRange, PAGE_BYTES, PAGE_BYTES_U64, SpaceInfo};

use crate::StoreError;
use crate::apply::preallocation::list::block_end;
use crate::apply::preallocation::step::reserved_end;
use crate::apply::preallocation::{METADATA_BYTES, short_bytes};
use crate::apply::work::Applier;
use crate::lower::Lower;
use crate::overlay::Overlay;

/// Larger files stay where they are.
pub(super) const MOVED_FILE_BYTES_MAX: u64 = 8 << 20;
/// Bytes that may be moved before applies have written as much.
const MOVED_BYTES_FREE: u64 = 4 << 20;
const ZEROS: [u8; PAGE_BYTES] = [0; PAGE_BYTES];

/// How a file goes on that an apply makes grow, before its content is written.
#[derive(Clone, Copy, Debug)]
pub(super) struct GoOn {
    /// Its size once the apply is complete.
    pub(super) size: u64,
    /// What is allocated, as far as the list has blocks of the store in it.
    pub(super) range: ByteRange,
    /// The apply keeps content beyond the present size; otherwise it begins by cutting that off.
    pub(super) extends: bool,
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
    for (file, how) in files {
        let given = if how.extends {
            extend(overlay.lower(), file, how)
        } else {
            overlay.lower().preallocate(file, how.range)
        };
        match given.and_then(|()| move_away(overlay, applier, file, how)) {
            Ok(true) => moved.push((file, how)),
            Ok(false) => {}
            Err(error) => tracing::debug!(%error, "a file that grows stays as it is"),
        }
    }
    // The room behind what has moved is free when the filesystem's own journal says so.
    for (file, _) in &moved {
        let synced = overlay.lower().sync(file);
        synced.map_err(StoreError::lower("making what has moved durable"))?;
    }
    for (file, how) in moved {
        if let Err(error) = extend(overlay.lower(), file, how) {
            tracing::debug!(%error, "what has moved is not extended");
        }
    }
    Ok(())
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

/// Moves a file that lies in several pieces, if that is worth it; whether it has moved.
fn move_away<L: Lower>(
    overlay: &Overlay<L>,
    applier: &Applier,
    file: &L::Handle,
    how: &GoOn,
) -> io::Result<bool> {
    let lower = overlay.lower();
    let size = lower.stat(file)?.size;
    let room_bytes = reserved_end(how.size.max(size));
    let may_move = size <= MOVED_FILE_BYTES_MAX
        && may_write(applier, size)
        && room_bytes <= free_bytes(overlay, &lower.space()?);
    if !may_move || !lower.is_scattered(file)? {
        return Ok(false);
    }
    let moved = lower.move_content(overlay.mobifs(), file, room_bytes)?;
    if moved == 0 {
        return Ok(false);
    }
    applier.counters().add_moved(moved);
    // What it had beyond its end is elsewhere. The apply sets its times.
    lower.truncate(file, size)?;
    Ok(true)
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
