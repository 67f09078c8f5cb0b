//! Parts of a store that may not be changed (`chattr +i`, `+a`), so that no mount could write to it.

use crate::StoreError;
use crate::log;
use crate::lower::{Lower, found};

/// Which of the journal and the directories around it may not be changed: names from the store's
/// root on. `inner` are the directories `stage` and `limbo`, as far as they are there.
pub(super) fn immutable<L: Lower>(
    lower: &L,
    mobifs: &L::Handle,
    inner: [Option<&L::Handle>; 2],
) -> Result<Vec<&'static str>, StoreError> {
    let [stage, limbo] = inner;
    let directories = [
        (".mobifs", Some(mobifs)),
        (".mobifs/stage", stage),
        (".mobifs/limbo", limbo),
    ];
    let mut names = Vec::new();
    for (name, directory) in directories {
        let Some(directory) = directory else { continue };
        let stat = lower.stat(directory).map_err(StoreError::lower(name))?;
        if stat.immutable {
            names.push(name);
        }
    }
    let journal = lower.stat_at(mobifs, log::JOURNAL);
    // A missing one is not this function's to report.
    if found(journal)
        .map_err(StoreError::lower("looking at the journal"))?
        .is_some_and(|stat| stat.immutable)
    {
        names.push(".mobifs/journal");
    }
    Ok(names)
}

/// Refuses a store to which nothing could be committed. The journal can be opened all the same, to
/// be read, and the first commit would fail.
///
/// # Errors
/// [`StoreError::Immutable`], [`StoreError::Lower`].
pub(super) fn check_none<L: Lower>(
    lower: &L,
    mobifs: &L::Handle,
    inner: [Option<&L::Handle>; 2],
) -> Result<(), StoreError> {
    let names = immutable(lower, mobifs, inner)?;
    if names.is_empty() {
        return Ok(());
    }
    Err(StoreError::Immutable { names })
}
