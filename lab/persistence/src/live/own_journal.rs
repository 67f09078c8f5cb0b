//! MobiFS's own journal in the log of a device's commands. Its blocks are known by their headers, whose
//! checksum has the identity of the store; so the file that holds it need not be found.

use std::collections::HashMap;

use mobifs_device_server::{Command, CommandKind, Journal as CommandLog};
use mobifs_store::log_reader::{AtBlock, LogReader, LoggedTransaction};

use crate::error::PersistError;
use crate::figures::MobifsFigures;
use crate::mobifs_log::{SUPERBLOCK_MAGIC, TRANSACTION_BYTES_MAX, TRANSACTION_MAGIC, Tally};

/// Follows the journals of all stores on a device.
#[derive(Debug, Default)]
pub(crate) struct OwnJournal {
    readers: Vec<LogReader>,
    /// The last transaction of each store: epoch and sequence. A mount may write it again.
    last: HashMap<[u8; 16], (u64, u64)>,
    /// A transaction that goes on after its command.
    partial: Option<Partial>,
    tally: Tally,
    /// Times of a write of the journal whose flush has not come, in ns.
    writing: Option<(u64, u64)>,
}

#[derive(Debug)]
struct Partial {
    reader: usize,
    content: Vec<u8>,
    journal_bytes: usize,
    /// Where its next bytes are on the device.
    next: u64,
    /// When its first write began.
    at_ns: u64,
}

impl OwnJournal {
    /// Whether the last command ended a transaction that counts.
    pub(crate) const fn is_committing(&self) -> bool {
        self.writing.is_some()
    }

    /// Follows a command.
    pub(crate) fn observe(
        &mut self,
        log: &CommandLog,
        command: &Command,
        counts: bool,
    ) -> Result<(), PersistError> {
        let (at_ns, done_ns) = (command.at.0, command.done_at.0);
        if command.kind == CommandKind::Flush {
            if let Some((begun, written)) = self.writing.take() {
                self.tally
                    .commit_ms
                    .push(done_ns.saturating_sub(begun) as f64 / 1e6);
                self.tally
                    .flush_ms
                    .push(done_ns.saturating_sub(written.max(at_ns)) as f64 / 1e6);
            }
            return Ok(());
        }
        if command.kind == CommandKind::Discard {
            return Ok(());
        }
        let mut content = vec![0; usize::try_from(command.bytes).unwrap_or(0)];
        log.written(command, 0, &mut content)?;
        let mut at = self.go_on(command, &content, counts)?;
        while at + LogReader::BLOCK_BYTES <= content.len() {
            let rest = &content[at..];
            at += LogReader::BLOCK_BYTES;
            if rest.starts_with(SUPERBLOCK_MAGIC) {
                self.meet(&rest[..LogReader::BLOCK_BYTES]);
            } else if rest.starts_with(TRANSACTION_MAGIC) {
                let place = (
                    command.offset + (at - LogReader::BLOCK_BYTES) as u64,
                    at_ns,
                    done_ns,
                );
                let taken = self.begins(rest, place, counts)?;
                at += taken.saturating_sub(LogReader::BLOCK_BYTES);
            }
        }
        Ok(())
    }

    fn meet(&mut self, superblock: &[u8]) {
        let Ok(reader) = LogReader::new(superblock) else {
            return;
        };
        match self
            .readers
            .iter_mut()
            .find(|known| known.uuid() == reader.uuid())
        {
            Some(known) => *known = reader,
            None => self.readers.push(reader),
        }
    }

    /// A transaction may begin; returns how many bytes of `rest` belong to it.
    fn begins(
        &mut self,
        rest: &[u8],
        (offset, at_ns, done_ns): (u64, u64, u64),
        counts: bool,
    ) -> Result<usize, PersistError> {
        for (number, reader) in self.readers.iter().enumerate() {
            match reader.at_block(rest)? {
                AtBlock::Nothing => {}
                AtBlock::Whole(found) => {
                    self.add(number, &found, (at_ns, done_ns), counts);
                    return Ok(usize::try_from(found.journal_bytes).unwrap_or(0));
                }
                AtBlock::Incomplete { journal_bytes } => {
                    let is_longer = journal_bytes > rest.len() as u64;
                    if is_longer && journal_bytes <= TRANSACTION_BYTES_MAX {
                        self.partial = Some(Partial {
                            reader: number,
                            content: rest.to_vec(),
                            journal_bytes: usize::try_from(journal_bytes).unwrap_or(0),
                            next: offset + rest.len() as u64,
                            at_ns,
                        });
                        return Ok(rest.len());
                    }
                }
            }
        }
        Ok(0)
    }

    /// Goes on with a transaction; returns how many bytes of the command belong to it.
    fn go_on(
        &mut self,
        command: &Command,
        content: &[u8],
        counts: bool,
    ) -> Result<usize, PersistError> {
        let Some(mut partial) = self
            .partial
            .take_if(|partial| partial.next == command.offset)
        else {
            return Ok(0);
        };
        let taken = content
            .len()
            .min(partial.journal_bytes - partial.content.len());
        partial.content.extend_from_slice(&content[..taken]);
        partial.next += taken as u64;
        if partial.content.len() < partial.journal_bytes {
            self.partial = Some(partial);
            return Ok(taken);
        }
        if let AtBlock::Whole(found) = self.readers[partial.reader].at_block(&partial.content)? {
            self.add(
                partial.reader,
                &found,
                (partial.at_ns, command.done_at.0),
                counts,
            );
        }
        Ok(taken)
    }

    fn add(&mut self, reader: usize, found: &LoggedTransaction, times: (u64, u64), counts: bool) {
        let number = (found.epoch, found.sequence);
        let last = self.last.insert(self.readers[reader].uuid(), number);
        if counts && last.is_none_or(|last| last < number) {
            self.tally.add(found);
            self.writing = Some(times);
        }
    }

    /// What was counted since the last call.
    pub(crate) fn take(&mut self) -> Option<MobifsFigures> {
        self.writing = None;
        std::mem::take(&mut self.tally).finish()
    }
}
