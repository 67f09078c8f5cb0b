//! Making the journal independent of what it has only as copies, before that is overwritten.

use mobifs_base::Page;

use crate::StoreError;
use crate::apply::spare;
use crate::apply::work::Applier;
use crate::log::epoch::{BIND_RESERVE_BYTES, Epoch};
use crate::log::record::{Record, diff};
use crate::lower::Lower;
use crate::overlay::Overlay;
use crate::overlay::pending::{PendingPage, write_runs};

/// Before content is changed in place of which a record in the journal says that it is copied from there:
/// writes the content of all pages that were copied to, as one transaction. From then on the epoch
/// has no records of copies.
///
/// A crash before that transaction is whole finds the sources as they were; a crash after it does not need
/// them.
///
/// # Errors
/// [`StoreError::Lower`]: nothing may be changed in place.
pub(crate) fn materialize<L: Lower>(
    overlay: &Overlay<L>,
    applier: &Applier,
    epoch: &mut Epoch<L::Handle>,
) -> Result<(), StoreError> {
    if !epoch.outstanding_copies().is_empty() {
        let mut records: Vec<Record> = {
            let state = overlay.state();
            let pages = epoch.outstanding_copies().pages();
            // What is not pending any more was removed by a later transaction.
            let pages = pages.filter_map(|(id, index)| {
                let page = state.pending.object(id)?.pages.get(&index)?;
                whole(page).map(|page| Record::Bytes {
                    object: id,
                    index,
                    fresh: true,
                    runs: diff(None, &page),
                })
            });
            pages.collect()
        };
        records.push(Record::Materialized);
        spare::take_for(overlay, epoch, &records, BIND_RESERVE_BYTES);
        let written = epoch.append(
            overlay.lower(),
            overlay.stage(),
            &records,
            BIND_RESERVE_BYTES,
        )?;
        applier.counters().add_written(written);
    }
    epoch.mark_materialized();
    Ok(())
}

/// The content of a page that was copied to. None if it is not that any more: a later transaction has made it
/// zeros, and what changed since then is over the lower file.
fn whole(page: &PendingPage) -> Option<Page> {
    match page {
        PendingPage::Whole(page) => Some(page.clone()),
        // After a recovery.
        PendingPage::Runs { fresh: true, runs } => {
            let mut page = Page::zero();
            write_runs(&mut page, runs);
            Some(page)
        }
        PendingPage::Runs { fresh: false, .. } => None,
    }
}
