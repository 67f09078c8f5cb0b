//! Spare files: inodes that are kept for the overflow files of an apply.
//!
//! Records that cannot be applied are written to an overflow file ([`carry`](super::carry)), and
//! that of the present epoch is valid until the next one has begun with another. Where other
//! programs have taken the last inode, an apply without such a file would fail as a whole, and not
//! even deletions, which free inodes, would be applied. So the store's own directory has a few
//! empty files that become overflow files, and overflow files that are not valid any more become
//! spare again. They are renamed, never deleted and made again: no other program gets their inodes
//! in between.

use crate::StoreError;
use crate::apply::reserve::Reserve;
use crate::log::epoch::Epoch;
use crate::log::overflow::{self, Overflow, file_name};
use crate::log::record::Record;
use crate::lower::{Create, Lower};
use crate::overlay::Overlay;
use crate::own_file;

/// Names of spare files in the store's own directory: one for the file that the present epoch has
/// begun with, one for that of the next, one for the inodes of new objects, one that tries whether
/// directories can grow, and one for a transaction that is larger than the journal. Before such a
/// transaction everything is applied, so an epoch has one of them at most.
pub const NAMES: [&str; 5] = ["spare-0", "spare-1", "spare-2", "spare-3", "spare-4"];

/// Names without a file; none if no spare files are kept.
fn missing<L: Lower>(overlay: &Overlay<L>, reserve: &Reserve) -> Vec<&'static str> {
    let is_missing = |name: &&str| {
        let there = overlay.stat_at(overlay.mobifs(), name.as_bytes());
        matches!(there, Ok(None))
    };
    let names = NAMES.into_iter().filter(|_| reserve.is_wanted());
    names.filter(is_missing).collect()
}

fn is_ours<L: Lower>(overlay: &Overlay<L>, directory: &L::Handle, name: &str) -> bool {
    let there = overlay.stat_at(directory, name.as_bytes());
    there.is_ok_and(|stat| stat.as_ref().is_some_and(own_file::is_ours))
}

/// Makes the missing files, as far as there are inodes.
pub(super) fn make_spares<L: Lower>(overlay: &Overlay<L>, reserve: &Reserve) {
    for name in missing(overlay, reserve) {
        let (lower, own) = (overlay.lower(), overlay.mobifs());
        if let Err(error) = lower.create(own, name.as_bytes(), Create::Regular) {
            tracing::debug!(%error, "{name} cannot be made");
        }
    }
}

/// Turns overflow files that are not needed into spare files, as far as these are missing.
pub(crate) fn recycle<L: Lower>(
    overlay: &Overlay<L>,
    reserve: &Reserve,
    is_needed: impl Fn(u64) -> bool,
) {
    let missing = missing(overlay, reserve);
    if missing.is_empty() {
        return;
    }
    // A failure to list `stage/` is reported where it is swept.
    let entries = overlay.lower().list(overlay.stage()).unwrap_or_default();
    let numbers = entries.iter().filter_map(|entry| {
        let name = std::str::from_utf8(&entry.name).ok()?;
        let number = name.strip_prefix('t')?.parse().ok()?;
        (!is_needed(number)).then_some(number)
    });
    for (number, spare) in numbers.zip(missing) {
        let _is_kept = make_spare(overlay, number, spare);
    }
}

/// Turns an overflow file into the spare file of this name; false if that failed.
fn make_spare<L: Lower>(overlay: &Overlay<L>, number: u64, spare: &str) -> bool {
    let (lower, stage, own) = (overlay.lower(), overlay.stage(), overlay.mobifs());
    let (from, to) = (file_name(number), spare.as_bytes());
    if !is_ours(overlay, stage, &from) {
        return false;
    }
    if let Err(error) = lower.rename(stage, from.as_bytes(), own, to) {
        tracing::debug!(%error, "{from} cannot become {spare}");
        return false;
    }
    // Its content is not valid any more, and takes room.
    let file = lower.open(own, to, true);
    if let Err(error) = file.and_then(|file| lower.truncate(&file, 0)) {
        tracing::debug!(%error, "{spare} keeps its content");
    }
    true
}

/// Discards an overflow file that was not finished.
pub(super) fn give_up<L: Lower>(overlay: &Overlay<L>, reserve: &Reserve, number: u64) {
    let missing = missing(overlay, reserve);
    let spare = missing.first();
    if !spare.is_some_and(|spare| make_spare(overlay, number, spare)) {
        let name = file_name(number);
        let _gone = overlay.lower().unlink(overlay.stage(), name.as_bytes());
    }
}

/// Makes overflow file `number` from a spare file, unless it exists. Without a spare file, the
/// writer of the overflow file creates it with a new inode.
fn take<L: Lower>(overlay: &Overlay<L>, number: u64) {
    let name = file_name(number);
    let (lower, stage, own) = (overlay.lower(), overlay.stage(), overlay.mobifs());
    if !matches!(overlay.stat_at(stage, name.as_bytes()), Ok(None)) {
        return;
    }
    for spare in NAMES.iter().filter(|spare| is_ours(overlay, own, spare)) {
        match lower.rename(own, spare.as_bytes(), stage, name.as_bytes()) {
            Ok(()) => return,
            Err(error) => tracing::debug!(%error, "{spare} cannot become {name}"),
        }
    }
}

/// Before a transaction is appended: keeps an inode for its overflow file, where the journal has no
/// room for it.
pub(crate) fn take_for<L: Lower>(
    overlay: &Overlay<L>,
    epoch: &Epoch<L::Handle>,
    records: &[Record],
    reserve_bytes: u64,
) {
    if !epoch.fits(records, reserve_bytes) {
        take(overlay, epoch.next_overflow());
    }
}

/// Makes overflow file `number`, from a spare file if there is one, with room for so many bytes.
/// After a failure it has no blocks.
pub(super) fn keep_room<L: Lower>(
    overlay: &Overlay<L>,
    reserve: &Reserve,
    number: u64,
    bytes: u64,
) -> Result<(), StoreError> {
    take(overlay, number);
    let kept = overflow::keep_room(overlay.lower(), overlay.stage(), number, bytes);
    kept.inspect_err(|_| give_up(overlay, reserve, number))
}

/// Writes the carried records to overflow file `number`, durably, as [`overflow::write`].
pub(super) fn write<L: Lower>(
    overlay: &Overlay<L>,
    reserve: &Reserve,
    number: u64,
    records: &[Record],
) -> Result<(Overflow, u64), StoreError> {
    take(overlay, number);
    let written = overflow::write(overlay.lower(), overlay.stage(), number, records);
    written.inspect_err(|_| give_up(overlay, reserve, number))
}
