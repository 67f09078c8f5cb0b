//! Making a journal file.
//!
//! It is written under another name, its superblocks last, and renamed once all of it is durable.
//! So a journal that is found under its own name was once complete, and an unfinished one that a
//! crash leaves is known to be unused.

use std::io;

use crate::StoreError;
use crate::calibration::{WriteTimes, choose};
use crate::log::superblock::{Home, SLOTS, Superblock};
use crate::log::{JOURNAL, identity, threshold};
use crate::lower::{JOURNAL_BLOCK_BYTES, JournalBuffer, Lower};

/// Name of a journal that is not finished.
pub(crate) const UNFINISHED: &[u8] = b"journal.new";
/// Zeros written at once.
const ZERO_BYTES: usize = 1024 * 1024;

/// A new journal.
pub(crate) struct Made<H> {
    pub(super) journal: H,
    pub(super) direct_io: bool,
    pub(super) superblock: Superblock,
    /// The times that decided its threshold, if that was measured.
    pub(super) measured: Option<Vec<WriteTimes>>,
}

/// Makes the first journal of a store, and its identity.
pub(super) fn first<L: Lower>(
    lower: &L,
    directory: &L::Handle,
    wanted: Superblock,
    measure: bool,
) -> Result<Made<L::Handle>, StoreError> {
    // An identity without a journal is left from an earlier attempt. It is removed, durably, before
    // the unfinished journal that shows this.
    discard(lower, directory, identity::NAME)
        .and_then(|()| lower.sync(directory))
        .map_err(StoreError::lower(
            "removing .mobifs/id of an unfinished journal",
        ))?;
    let made = unfinished(lower, directory, UNFINISHED, wanted, measure)?;
    // Order matters to a crash: the unfinished journal's entry, then the identity, then
    // the rename. An identity with neither journal then means that another program removed it.
    let finish = || {
        lower.sync(directory)?;
        identity::write(lower, directory, made.superblock.uuid)?;
        lower.sync(directory)?;
        lower.rename(directory, UNFINISHED, directory, JOURNAL)
    };
    if let Err(error) = finish() {
        let identity_gone =
            discard(lower, directory, identity::NAME).and_then(|()| lower.sync(directory));
        if identity_gone.is_ok() {
            clean_up(lower, directory, UNFINISHED);
        }
        return Err(explained(wanted.journal_bytes)(error));
    }
    // Whether or not this fails, the directory is in a state that can be opened.
    lower
        .sync(directory)
        .map_err(explained(wanted.journal_bytes))?;
    Ok(made)
}

/// Replaces the present journal, which is empty, by the unfinished one.
pub(super) fn replace<L: Lower>(lower: &L, directory: &L::Handle) -> Result<(), StoreError> {
    let replace = || {
        lower.sync(directory)?;
        lower.unlink(directory, JOURNAL)?;
        // A crash here leaves an identity and an unfinished journal: as at creation.
        lower.sync(directory)?;
        lower.rename(directory, UNFINISHED, directory, JOURNAL)?;
        lower.sync(directory)
    };
    replace().map_err(StoreError::lower(
        "replacing the journal by one of another size",
    ))
}

/// Removes an entry that may or may not exist.
pub(crate) fn discard<L: Lower>(lower: &L, directory: &L::Handle, name: &[u8]) -> io::Result<()> {
    match lower.unlink(directory, name) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Makes a complete, durable journal under a name that means that it is not in use; on an error,
/// nothing.
pub(crate) fn unfinished<L: Lower>(
    lower: &L,
    directory: &L::Handle,
    name: &[u8],
    wanted: Superblock,
    measure: bool,
) -> Result<Made<L::Handle>, StoreError> {
    let explained = explained(wanted.journal_bytes);
    let attempt = || {
        discard(lower, directory, name)?;
        let (journal, direct_io) = lower.open_journal(directory, name)?;
        let mut superblock = wanted;
        let measured = fill(lower, &journal, &mut superblock, measure)?;
        Ok(Made {
            journal,
            direct_io,
            superblock,
            measured,
        })
    };
    attempt().map_err(|error| {
        clean_up(lower, directory, name);
        explained(error)
    })
}

fn fill<L: Lower>(
    lower: &L,
    journal: &L::Handle,
    superblock: &mut Superblock,
    measure: bool,
) -> io::Result<Option<Vec<WriteTimes>>> {
    let whole = mobifs_base::ByteRange::new(0, superblock.journal_bytes);
    match lower.preallocate(journal, whole) {
        Err(error) if error.kind() != io::ErrorKind::Unsupported => return Err(error),
        _ => {}
    }
    lower.truncate(journal, superblock.journal_bytes)?;
    // Real zeros: a block that is only allocated costs a change of metadata when
    // it is first written, in the middle of a commit.
    let mut zeros = JournalBuffer::zeroed(ZERO_BYTES);
    let mut offset = 0;
    while offset < superblock.journal_bytes {
        let remaining = superblock.journal_bytes - offset;
        zeros.resize(
            usize::try_from(remaining)
                .unwrap_or(usize::MAX)
                .min(ZERO_BYTES),
        );
        lower.journal_write(journal, &zeros, offset, false)?;
        offset += zeros.as_bytes().len() as u64;
    }
    lower.journal_flush(journal)?;
    let mut measured = None;
    if measure {
        let sizes = threshold::measure(lower, journal, superblock.journal_bytes)?;
        superblock.direct_bytes_max = choose(&sizes);
        measured = Some(sizes);
    }
    superblock.home = Home::of(&lower.stat(journal)?);
    let mut block = JournalBuffer::zeroed(JOURNAL_BLOCK_BYTES);
    superblock.encode(block.as_bytes_mut());
    for slot in 0..SLOTS {
        lower.journal_write(journal, &block, (slot * JOURNAL_BLOCK_BYTES) as u64, true)?;
    }
    lower.sync(journal)?;
    Ok(measured)
}

/// Best effort after a failure that is reported already; a file that stays is recognised as
/// unfinished at the next attempt.
fn clean_up<L: Lower>(lower: &L, directory: &L::Handle, name: &[u8]) {
    if let Err(error) = discard(lower, directory, name) {
        tracing::warn!(
            name = %name.escape_ascii(),
            %error,
            "cannot remove an unfinished journal; the next mount does it"
        );
    }
}

fn explained(journal_bytes: u64) -> impl FnOnce(io::Error) -> StoreError {
    StoreError::lower(format!("making a journal of {journal_bytes} bytes"))
}
