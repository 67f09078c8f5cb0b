//! Reading a journal ahead of the scan, so that the device works while checksums are
//! compared and records are parsed.

use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;

use crate::StoreError;
use crate::log::window::Blocks;
use crate::lower::JournalBuffer;

/// Fills the buffer from the journal at an offset.
type Read<'r> = dyn Fn(u64, &mut JournalBuffer) -> Result<(), StoreError> + Sync + 'r;

/// A buffer, and how reading it ended.
type Answer = (JournalBuffer, Result<(), StoreError>);

/// Runs `scan` on blocks that a thread of its own reads ahead, one announced read at a time.
///
/// # Errors
/// Those of `scan`; [`StoreError::Lower`] if there is no thread to be had.
pub(super) fn with_read_ahead<T>(
    read: &Read<'_>,
    scan: impl FnOnce(&mut dyn Blocks) -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    let (requests, requested) = mpsc::channel::<(u64, JournalBuffer)>();
    let (answers, answered) = mpsc::channel();
    thread::scope(|scope| {
        let work = move || {
            for (offset, mut buffer) in requested {
                let result = read(offset, &mut buffer);
                if answers.send((buffer, result)).is_err() {
                    return;
                }
            }
        };
        thread::Builder::new()
            .name("mobifs-journal".to_owned())
            .spawn_scoped(scope, work)
            .map_err(StoreError::lower("starting to read the journal"))?;
        scan(&mut ReadAhead {
            read,
            requests,
            answered,
            under_way: None,
            spare: JournalBuffer::default(),
        })
    })
}

struct ReadAhead<'r> {
    read: &'r Read<'r>,
    requests: Sender<(u64, JournalBuffer)>,
    answered: Receiver<Answer>,
    /// What is being read ahead: offset and bytes.
    under_way: Option<(u64, usize)>,
    spare: JournalBuffer,
}

impl Blocks for ReadAhead<'_> {
    fn read(&mut self, offset: u64, buffer: &mut JournalBuffer) -> Result<(), StoreError> {
        let wanted = (offset, buffer.as_bytes().len());
        // The thread ends while requests may still come only if it panics.
        let ahead = self.under_way.take();
        let ahead = ahead.and_then(|range| Some((range, self.answered.recv().ok()?)));
        let Some((range, (content, result))) = ahead else {
            return (self.read)(offset, buffer);
        };
        if range == wanted {
            self.spare = std::mem::replace(buffer, content);
            return result;
        }
        // A failure to read ahead does not matter: the read itself will return it.
        self.spare = content;
        (self.read)(offset, buffer)
    }

    fn announce(&mut self, offset: u64, bytes: usize) {
        debug_assert!(
            self.under_way.is_none(),
            "the next answer would be taken for that of this range"
        );
        let mut buffer = std::mem::take(&mut self.spare);
        buffer.resize(bytes);
        if self.requests.send((offset, buffer)).is_ok() {
            self.under_way = Some((offset, bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lower::JOURNAL_BLOCK_BYTES;

    const BLOCK: u64 = JOURNAL_BLOCK_BYTES as u64;

    /// Every block begins with its number; from `bad` on nothing can be read.
    fn journal(bad: u64) -> impl Fn(u64, &mut JournalBuffer) -> Result<(), StoreError> + Sync {
        move |offset, buffer| {
            let blocks = buffer.as_bytes_mut().chunks_mut(JOURNAL_BLOCK_BYTES);
            for (number, block) in (offset / BLOCK..).zip(blocks) {
                if number >= bad {
                    return Err(StoreError::Unsuitable(format!("block {number}")));
                }
                block.fill(0);
                block[..8].copy_from_slice(&number.to_le_bytes());
            }
            Ok(())
        }
    }

    /// Reads so many blocks at a block; the number of the first.
    fn read_at(blocks: &mut dyn Blocks, at: u64, count: usize) -> Result<u64, StoreError> {
        let mut buffer = JournalBuffer::zeroed(count * JOURNAL_BLOCK_BYTES);
        blocks.read(at * BLOCK, &mut buffer)?;
        let numbers = buffer.as_bytes().chunks(JOURNAL_BLOCK_BYTES);
        let numbers = numbers.map(|block| u64::from_le_bytes(block[..8].try_into().unwrap()));
        assert!(numbers.eq(at..at + count as u64));
        Ok(at)
    }

    #[test]
    fn what_is_read_is_what_was_wanted_whatever_was_announced() {
        let announced = [None, Some((3, 4)), Some((3, 5)), Some((4, 4)), Some((0, 1))];
        for first in announced {
            for second in announced {
                let read = with_read_ahead(&journal(100), |blocks| {
                    read_at(blocks, 0, 3)?;
                    for (announced, at) in [(first, 3), (second, 7)] {
                        if let Some((offset, count)) = announced {
                            blocks.announce(offset * BLOCK, count * JOURNAL_BLOCK_BYTES);
                        }
                        read_at(blocks, at, 4)?;
                    }
                    read_at(blocks, 1, 2)
                });
                assert_eq!(read.unwrap(), 1);
            }
        }
    }

    #[test]
    fn only_what_is_wanted_can_fail() {
        let announce_bad = |blocks: &mut dyn Blocks| {
            read_at(blocks, 0, 3)?;
            blocks.announce(3 * BLOCK, 4 * JOURNAL_BLOCK_BYTES);
            read_at(blocks, 1, 2)?;
            blocks.announce(3 * BLOCK, 4 * JOURNAL_BLOCK_BYTES);
            Ok(())
        };
        with_read_ahead(&journal(5), announce_bad).unwrap();
        let read = with_read_ahead(&journal(5), |blocks| {
            announce_bad(blocks)?;
            read_at(blocks, 3, 4)
        });
        assert!(matches!(read, Err(StoreError::Unsuitable(what)) if what == "block 5"));
    }
}
