//! Telling the witness which tagged transaction is on its way to the journal.
//!
//! An intent names epoch and sequence, so it must not outlive a transaction that failed:
//! the next one would get the same. But as long as a failed transaction may still be
//! found on the medium, the successor of a killed process must be told that it was this
//! one. So it is withdrawn when its place is void, and before anything else is written.

use crate::journal_store::{JournalStore, Writer};
use crate::lower::Lower;
use crate::{Intent, StoreError};

impl<L: Lower> JournalStore<L> {
    /// To be called directly before a transaction is written; `tag` 0 has no intent.
    pub(crate) fn announce(&self, writer: &mut Writer<L>, tag: u64) {
        let Some(witness) = self.state.witness().filter(|_| tag != 0) else {
            return;
        };
        let (epoch, sequence) = writer.log.next();
        writer.has_open_intent = true;
        witness.intent(Some(Intent {
            tag,
            epoch,
            sequence,
        }));
    }

    /// To be called directly after the transaction was written, or not.
    pub(crate) fn conclude<T>(&self, writer: &mut Writer<L>, written: &Result<T, StoreError>) {
        if written.is_ok() {
            // It names a committed transaction from now on.
            writer.has_open_intent = false;
        } else if !writer.log.is_untidy() {
            self.withdraw(writer);
        }
    }

    /// Makes what a failed transaction may have left void, if that is still to be done.
    ///
    /// # Errors
    /// [`StoreError::Lower`]: it is not known what is there, and nothing may follow.
    pub(crate) fn take_back(&self, writer: &mut Writer<L>) -> Result<(), StoreError> {
        writer.log.take_back(&self.lower)?;
        self.withdraw(writer);
        Ok(())
    }

    fn withdraw(&self, writer: &mut Writer<L>) {
        if std::mem::take(&mut writer.has_open_intent)
            && let Some(witness) = self.state.witness()
        {
            witness.intent(None);
        }
    }
}
