//! MobiFS's own journal in the log of a device's commands. Its blocks are known by their headers, whose
//! checksum has the identity of the store; so the file that holds it need not be found.

use std::collections::HashMap;

use mobifs_device_server::{Command, CommandKind, Journal as CommandLog};
use mobifs_store::log_reader::{AtBlock, LogReader, LoggedTransaction};

use crate::error::PersistError;
use crate::figures::MobifsFigures;
use crate::live::times::{Interval, covered_ms};
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
    /// When the writes of a transaction whose flush has not come were under way.
    writing: Option<Vec<Interval>>,
}

#[derive(Debug)]
struct Partial {
    reader: usize,
    content: Vec<u8>,
    journal_bytes: usize,
    /// Where its next bytes are on the device.
    next: u64,
    /// When its writes so far were under way.
    writes: Vec<Interval>,
}

/// How long a commit took at the device, and its flush alone, in ms. What passes between the commands, while the
/// program or the kernel works or waits for the machine, is not the device's.
fn commit_times(writes: &[Interval], flush: Interval) -> (f64, f64) {
    let all: Vec<Interval> = writes.iter().copied().chain([flush]).collect();
    let whole = covered_ms(&all);
    (whole, whole - covered_ms(writes))
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
            if let Some(writes) = self.writing.take() {
                let (commit_ms, flush_ms) = commit_times(&writes, (at_ns, done_ns));
                self.tally.commit_ms.push(commit_ms);
                self.tally.flush_ms.push(flush_ms);
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
                    self.add(number, &found, vec![(at_ns, done_ns)], counts);
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
                            writes: vec![(at_ns, done_ns)],
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
        partial.writes.push((command.at.0, command.done_at.0));
        if partial.content.len() < partial.journal_bytes {
            self.partial = Some(partial);
            return Ok(taken);
        }
        if let AtBlock::Whole(found) = self.readers[partial.reader].at_block(&partial.content)? {
            self.add(partial.reader, &found, partial.writes, counts);
        }
        Ok(taken)
    }

    fn add(
        &mut self,
        reader: usize,
        found: &LoggedTransaction,
        writes: Vec<Interval>,
        counts: bool,
    ) {
        let number = (found.epoch, found.sequence);
        let last = self.last.insert(self.readers[reader].uuid(), number);
        if counts && last.is_none_or(|last| last < number) {
            self.tally.add(found);
            self.writing = Some(writes);
        }
    }

    /// What was counted since the last call.
    pub(crate) fn take(&mut self) -> Option<MobifsFigures> {
        self.writing = None;
        std::mem::take(&mut self.tally).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_takes_what_the_device_takes_however_late_the_flush_comes() {
        const MS: u64 = 1_000_000;
        let close = |(commit, flush): (f64, f64), of: (f64, f64)| {
            assert!((commit - of.0).abs() < 1e-9 && (flush - of.1).abs() < 1e-9);
        };
        for late in [0, 100] {
            let writes = [(0, MS), ((1 + late) * MS, (2 + late) * MS)];
            let flush = ((2 + 2 * late) * MS, (5 + 2 * late) * MS);
            close(commit_times(&writes, flush), (5.0, 3.0));
        }
        // The device has the flush while it still works for the write.
        close(commit_times(&[(0, 2 * MS)], (MS, 5 * MS)), (5.0, 3.0));
    }
}
