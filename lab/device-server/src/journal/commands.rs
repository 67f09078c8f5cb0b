//! A journal as the commands that a device got, for studies of what a filesystem does.

use mobifs_base::VirtualNs;

use super::record::Kind;
use super::{Journal, JournalError};

/// What was asked of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandKind {
    /// To write.
    Write,
    /// To write durably (FUA).
    DurableWrite,
    /// To give up pages.
    Discard,
    /// To make durable what was written.
    Flush,
}

/// A command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// What was asked.
    pub kind: CommandKind,
    /// Where, in bytes.
    pub offset: u64,
    /// How much, in bytes.
    pub bytes: u64,
    /// When it was asked for, by the device's clock.
    pub at: VirtualNs,
    /// When it was done.
    pub done_at: VirtualNs,
    /// Which record of the journal it is.
    record: usize,
}

impl Journal {
    /// The commands, in the order in which the device got them. Power cuts, and what they left, are left out.
    pub fn commands(&self) -> impl Iterator<Item = Command> + '_ {
        let records = self.records().iter().enumerate();
        records.filter_map(|(index, located)| {
            let record = &located.record;
            let kind = match record.kind {
                Kind::Write => CommandKind::Write,
                Kind::DurableWrite => CommandKind::DurableWrite,
                Kind::Discard => CommandKind::Discard,
                Kind::Flush => CommandKind::Flush,
                Kind::Cut | Kind::AfterCut => return None,
            };
            Some(Command {
                kind,
                offset: record.offset,
                bytes: record.bytes,
                at: record.at,
                done_at: record.done_at,
                record: index,
            })
        })
    }

    /// Reads what a command wrote, from its byte `skip` on. The command is one of this journal.
    ///
    /// # Errors
    /// [`JournalError::Io`]; also if it wrote less than that.
    pub fn written(
        &self,
        command: &Command,
        skip: u64,
        out: &mut [u8],
    ) -> Result<(), JournalError> {
        let end = skip.checked_add(out.len() as u64);
        let located = self.records().get(command.record);
        match located.filter(|located| end.is_some_and(|end| end <= located.record.data_bytes())) {
            Some(located) => self.read_data(located, skip, out),
            None => Err(JournalError::io(self.path())(
                std::io::ErrorKind::UnexpectedEof.into(),
            )),
        }
    }
}
