//! The file of the list in `.mobifs`: making it, and writing the list to it.

use std::io;

use mobifs_base::FileKind;

use crate::apply::preallocation::Preallocations;
use crate::apply::preallocation::list::{FILES_MAX, NAME, SLOT_BYTES, encode};
use crate::lower::{Create, Lower, found};
use crate::overlay::Overlay;
use crate::own_file::is_ours;

/// Makes the file of the list, unless it is there; without it nothing is preallocated.
pub(in crate::apply) fn keep<L: Lower>(overlay: &Overlay<L>, preallocations: &Preallocations) {
    if preallocations.is_ready() {
        return;
    }
    if preallocations.is_off() || !overlay.lower().keeps_preallocation() {
        return;
    }
    match make(overlay) {
        Ok(()) => preallocations.set_ready(true),
        Err(error) => tracing::debug!(%error, "nothing is preallocated: no list of it can be kept"),
    }
}

fn make<L: Lower>(overlay: &Overlay<L>) -> io::Result<()> {
    let (lower, own) = (overlay.lower(), overlay.mobifs());
    match found(lower.stat_at(own, NAME.as_bytes()))? {
        Some(stat) if is_ours(&stat) => return Ok(()),
        Some(stat) if stat.kind == FileKind::Directory => {
            return Err(io::Error::other("a directory has its name"));
        }
        Some(_) => lower.unlink(own, NAME.as_bytes())?,
        None => {}
    }
    lower.create(own, NAME.as_bytes(), Create::Regular)?;
    lower.sync(own)
}

/// Writes the list if it has changed, durably. After a failure nothing may be preallocated.
pub(super) fn write<L: Lower>(
    overlay: &Overlay<L>,
    preallocations: &Preallocations,
) -> io::Result<()> {
    let (slot, sequence) = {
        let files = preallocations.files();
        if !files.is_dirty {
            return Ok(());
        }
        let sequence = files.sequence + 1;
        (
            encode(preallocations.uuid, sequence, files.by_inode.values()),
            sequence,
        )
    };
    assert!(
        slot.len() <= SLOT_BYTES,
        "{FILES_MAX} files fit into a slot"
    );
    let (lower, own) = (overlay.lower(), overlay.mobifs());
    let file = lower.open(own, NAME.as_bytes(), true)?;
    if !is_ours(&lower.stat(&file)?) {
        preallocations.set_ready(false);
        return Err(io::Error::other(
            "the list of preallocated files was replaced",
        ));
    }
    let offset = (sequence % 2) * SLOT_BYTES as u64;
    lower.write_at(&file, &slot, offset)?;
    lower.sync(&file)?;
    let mut files = preallocations.files();
    files.sequence = sequence;
    files.is_dirty = false;
    Ok(())
}
