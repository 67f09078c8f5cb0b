//! Reading blocks of the journal's file.

use crate::StoreError;
use crate::lower::{JournalBuffer, Lower};

/// Fills the buffer with what the journal has from `offset` on.
pub(super) fn read_blocks<L: Lower>(
    lower: &L,
    journal: &L::Handle,
    offset: u64,
    buffer: &mut JournalBuffer,
) -> Result<(), StoreError> {
    let wanted = buffer.as_bytes().len();
    let count = lower
        .read_at(journal, buffer.as_bytes_mut(), offset)
        .map_err(|source| {
            StoreError::lower(format!("reading the journal at byte {offset}"))(source)
        })?;
    if count < wanted {
        return Err(cut_short(offset + count as u64, offset + wanted as u64));
    }
    Ok(())
}

/// A journal that ends at byte `found`, before `expected`.
pub(super) fn cut_short(found: u64, expected: u64) -> StoreError {
    StoreError::Corrupt {
        what: "journal".to_owned(),
        detail: format!("it was cut short: it ends at byte {found}, but {expected} are needed"),
    }
}
