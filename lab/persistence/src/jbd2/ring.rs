//! The log: transactions in a ring of blocks.

use std::collections::BTreeMap;

use crate::error::PersistError;
use crate::jbd2::block::{BlockType, Header, commit_time};
use crate::jbd2::superblock::Superblock;

/// Where the blocks of a journal are read from.
pub trait Log {
    /// Fills `out`, a block, from the journal's block of this number.
    ///
    /// # Errors
    /// It cannot be read.
    fn read(&self, block: u32, out: &mut [u8]) -> Result<(), PersistError>;
}

/// A block of the filesystem in a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Logged {
    /// Its place in the filesystem.
    pub place: u64,
    /// Where it is in the journal.
    pub block: u32,
    /// Its first four bytes are the journal's magic, and zero in the log.
    pub is_escaped: bool,
}

/// A transaction, from its first block to its commit block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transaction {
    /// Its sequence.
    pub sequence: u32,
    /// Its first block.
    pub start: u32,
    /// Its commit block.
    pub commit: u32,
    /// Descriptor blocks.
    pub descriptors: Vec<u32>,
    /// Revoke blocks.
    pub revokes: Vec<u32>,
    /// What they revoke.
    pub revoked: Vec<u64>,
    /// The blocks of the filesystem, in order.
    pub logged: Vec<Logged>,
    /// When it was committed: seconds and nanoseconds since 1970.
    pub committed_at: (u64, u32),
}

impl Transaction {
    /// Blocks that it takes in the log.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        (self.control_blocks() as usize + self.logged.len()) as u64
    }

    /// Descriptor, revoke and commit blocks.
    #[must_use]
    pub fn control_blocks(&self) -> u64 {
        (self.descriptors.len() + self.revokes.len() + 1) as u64
    }
}

/// What a ring holds: all transactions that are whole, also those that have been checkpointed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ring {
    /// In the order in which they were committed.
    pub transactions: Vec<Transaction>,
    /// Beginnings of transactions that have no whole end: cut short, overwritten in part, or damaged.
    pub incomplete: u64,
    /// Control blocks, and blocks in transactions, whose checksum is wrong.
    pub damaged_blocks: u64,
}

/// What follows from a place in the ring.
enum Walked {
    Whole(Transaction),
    Incomplete { damaged_blocks: u64 },
}

impl Superblock {
    /// The transaction that begins at a block; none if there is none of this sequence, or not whole.
    ///
    /// # Errors
    /// The log cannot be read.
    pub fn transaction(
        &self,
        log: &dyn Log,
        start: u32,
        sequence: u32,
    ) -> Result<Option<Transaction>, PersistError> {
        Ok(match self.walk(log, start, sequence, self.ring_blocks())? {
            Walked::Whole(transaction) => Some(transaction),
            Walked::Incomplete { .. } => None,
        })
    }

    /// The block after a transaction.
    #[must_use]
    pub fn end_of(&self, transaction: &Transaction) -> u32 {
        self.after(transaction.commit, 1)
    }

    /// Follows a transaction for `steps_max` blocks at most.
    fn walk(
        &self,
        log: &dyn Log,
        start: u32,
        sequence: u32,
        steps_max: u32,
    ) -> Result<Walked, PersistError> {
        let mut found = Transaction {
            sequence,
            start,
            ..Transaction::default()
        };
        let mut block = vec![0; self.block_bytes as usize];
        let mut steps = 0;
        while steps < steps_max {
            let at = self.after(start, steps);
            log.read(at, &mut block)?;
            let kind = match Header::parse(&block) {
                Some(header) if header.sequence == sequence => header.kind,
                _ => return Ok(Walked::Incomplete { damaged_blocks: 0 }),
            };
            if !self.verifies(kind, &block) {
                return Ok(Walked::Incomplete { damaged_blocks: 1 });
            }
            steps += 1;
            match kind {
                BlockType::Commit => {
                    found.commit = at;
                    found.committed_at = commit_time(&block);
                    return Ok(Walked::Whole(found));
                }
                BlockType::Revoke => {
                    let Some(revoked) = self.revoked(&block) else {
                        return Ok(Walked::Incomplete { damaged_blocks: 1 });
                    };
                    found.revokes.push(at);
                    found.revoked.extend(revoked);
                }
                BlockType::Descriptor => {
                    found.descriptors.push(at);
                    let damaged_blocks =
                        self.logged(log, &block, (&mut steps, steps_max), &mut found)?;
                    if damaged_blocks > 0 {
                        return Ok(Walked::Incomplete { damaged_blocks });
                    }
                }
            }
        }
        Ok(Walked::Incomplete { damaged_blocks: 0 })
    }

    /// The blocks that a descriptor block names; how many of them are damaged.
    fn logged(
        &self,
        log: &dyn Log,
        descriptor: &[u8],
        (steps, steps_max): (&mut u32, u32),
        found: &mut Transaction,
    ) -> Result<u64, PersistError> {
        let mut damaged = 0;
        let mut content = vec![0; self.block_bytes as usize];
        for tag in self.tags(descriptor) {
            if *steps >= steps_max {
                break;
            }
            let block = self.after(found.start, *steps);
            *steps += 1;
            if self.features.checksum != super::ChecksumVersion::None {
                log.read(block, &mut content)?;
                damaged += u64::from(!self.verifies_tagged(&tag, found.sequence, &content));
            }
            found.logged.push(Logged {
                place: tag.place,
                block,
                is_escaped: tag.is_escaped,
            });
        }
        Ok(damaged)
    }

    /// Where the transaction begins that ends with a commit block: after the commit block of an earlier one,
    /// or where the ring begins.
    ///
    /// # Errors
    /// The log cannot be read.
    pub(crate) fn start_of(
        &self,
        log: &dyn Log,
        commit: u32,
        sequence: u32,
    ) -> Result<u32, PersistError> {
        let mut block = vec![0; self.block_bytes as usize];
        let mut start = commit;
        for _ in 0..self.ring_blocks() {
            let before = self.before(start);
            log.read(before, &mut block)?;
            match Header::parse(&block) {
                Some(header) if header.kind == BlockType::Commit && header.sequence < sequence => {
                    break;
                }
                // A mount may begin a ring anew, and what is before that is of earlier times.
                _ if start == self.first && !self.is_of(log, before, sequence)? => break,
                _ => start = before,
            }
        }
        Ok(start)
    }

    /// Whether a transaction of this sequence goes over the ring's end: one of its control blocks is the last
    /// of the ring, or names the blocks up to there.
    fn is_of(&self, log: &dyn Log, last: u32, sequence: u32) -> Result<bool, PersistError> {
        let mut block = vec![0; self.block_bytes as usize];
        let mut at = last;
        while at >= self.first {
            log.read(at, &mut block)?;
            if let Some(header) = Header::parse(&block) {
                return Ok(header.sequence == sequence && header.kind != BlockType::Commit);
            }
            at -= 1;
        }
        Ok(false)
    }

    /// All transactions in the ring. A block in a transaction never begins with the journal's magic, so
    /// control blocks are what they seem; only those that are left of an overwritten transaction mislead.
    ///
    /// # Errors
    /// The log cannot be read.
    pub fn ring(&self, log: &dyn Log) -> Result<Ring, PersistError> {
        let headers = self.headers(log)?;
        let mut ring = Ring::default();
        // From the oldest on, so that a transaction that goes around the ring is met at its beginning.
        let newest = headers
            .iter()
            .filter(|(_, header)| header.kind == BlockType::Commit)
            .max_by_key(|(_, header)| header.sequence);
        let origin = newest.map_or(self.first, |(&block, _)| self.after(block, 1));
        let mut step = 0;
        while step < self.ring_blocks() {
            let block = self.after(origin, step);
            step += 1;
            let Some(header) = headers.get(&block) else {
                continue;
            };
            if !self.may_begin(&headers, block, header.sequence, origin) {
                ring.incomplete += u64::from(header.kind != BlockType::Commit);
                continue;
            }
            // None goes beyond where the next one will begin.
            match self.walk(log, block, header.sequence, self.ring_blocks() - (step - 1))? {
                Walked::Whole(transaction) => {
                    let blocks = transaction.blocks();
                    step += u32::try_from(blocks).unwrap_or(u32::MAX).saturating_sub(1);
                    ring.transactions.push(transaction);
                }
                Walked::Incomplete { damaged_blocks } => {
                    ring.incomplete += 1;
                    ring.damaged_blocks += damaged_blocks;
                }
            }
        }
        ring.transactions
            .sort_by_key(|transaction| transaction.sequence);
        Ok(ring)
    }

    fn headers(&self, log: &dyn Log) -> Result<BTreeMap<u32, Header>, PersistError> {
        let mut headers = BTreeMap::new();
        let mut content = vec![0; self.block_bytes as usize];
        for block in self.first..self.end {
            log.read(block, &mut content)?;
            if let Some(header) = Header::parse(&content) {
                headers.insert(block, header);
            }
        }
        Ok(headers)
    }

    /// Whether a transaction may begin at a control block: after the commit block of an earlier one, which
    /// need not be the one before (a mount leaves sequences out); where the superblock says; or where a ring
    /// begins, if nothing was overwritten there last.
    fn may_begin(
        &self,
        headers: &BTreeMap<u32, Header>,
        block: u32,
        sequence: u32,
        origin: u32,
    ) -> bool {
        if block == self.start && sequence == self.sequence {
            return true;
        }
        if block == self.first && block != origin {
            return true;
        }
        let before = headers.get(&self.before(block));
        before.is_some_and(|before| before.kind == BlockType::Commit && before.sequence < sequence)
            || (block == self.first && headers.values().all(|header| header.sequence <= sequence))
    }
}
