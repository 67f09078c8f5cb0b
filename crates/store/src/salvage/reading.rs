//! Reading a damaged journal: as much as is certain, and what can still be made out of the rest.

use std::collections::HashSet;
use std::io;

use crate::StoreError;
use crate::log::codec;
use crate::log::header::{self, HEADER_BYTES, Header, transaction_bytes};
use crate::log::identity::{self, Identity};
use crate::log::overflow;
use crate::log::record::Record;
use crate::log::scan::{At, Scanner, not_whole};
use crate::log::superblock::{FORMAT_VERSION, Home, LOG_START, SLOTS, Superblock, choose, parse};
use crate::log::window::{Blocks, Window};
use crate::log::{JOURNAL, Transactions};
use crate::lower::{JOURNAL_BLOCK_BYTES, JournalBuffer, Lower, found};

const BLOCK: u64 = JOURNAL_BLOCK_BYTES as u64;
/// After so many bytes the search for headers checks whether a hole follows.
const LOOK_BYTES: u64 = 1 << 20;
/// The most that is read of a transaction that is not whole.
const LEGIBLE_BYTES_MAX: u64 = 64 << 20;

/// A journal, as far as it can be read.
#[derive(Debug)]
pub(super) struct Reading {
    /// What is damaged, in sentences.
    pub(super) damage: Vec<String>,
    /// The store's id; none if neither the journal nor `.mobifs/id` says.
    pub(super) uuid: Option<[u8; 16]>,
    /// `.mobifs/id` does not say the same.
    pub(super) must_write_identity: bool,
    /// Size of the journal; 0 if it is not known.
    pub(super) journal_bytes: u64,
    /// Largest transaction that is written with one durable write; 0 if it is not known.
    pub(super) direct_bytes_max: u64,
    /// The epoch of the transactions.
    pub(super) epoch: u64,
    /// The transactions are from another journal, of which this is a copy.
    pub(super) is_copied: bool,
    /// No superblock says that the transactions are in force: they may be applied already.
    pub(super) may_be_applied: bool,
    /// The whole transactions before the first damaged one, with what the epoch begins with, and
    /// what overflow files have of them.
    pub(super) intact: Transactions,
    /// Bytes of the journal that they take.
    pub(super) intact_bytes: u64,
    /// The transactions after these, the first one damaged.
    pub(super) lost: Vec<Lost>,
    /// Transactions that are lost, at least.
    pub(super) lost_transactions: u64,
    /// Something that cannot be named may be lost, too.
    pub(super) may_miss_more: bool,
}

/// A transaction that cannot be used.
#[derive(Debug)]
pub(super) struct Lost {
    /// What can be made out of it.
    pub(super) records: Vec<Record>,
    /// Bytes of the journal that it takes, as far as they are known.
    pub(super) bytes: u64,
    /// Those are all of its records, and they match its checksum.
    pub(super) is_legible: bool,
}

impl Reading {
    /// Reads the journal in `.mobifs`, and overflow files in `stage`; changes nothing.
    ///
    /// # Errors
    /// [`StoreError::NewerFormat`], [`StoreError::Lower`].
    pub(super) fn of<L: Lower>(
        lower: &L,
        mobifs: &L::Handle,
        stage: Option<&L::Handle>,
    ) -> Result<Self, StoreError> {
        let identity = identity::read(lower, mobifs)?;
        let journal = found(lower.open(mobifs, JOURNAL, false));
        let journal = journal.map_err(StoreError::lower("opening the journal"))?;
        let mut reading = Self::nothing(identity);
        let Some(journal) = journal else {
            reading
                .damage
                .push("the journal, .mobifs/journal, is missing".to_owned());
            reading.may_miss_more = true;
            return Ok(reading);
        };
        let stat = lower.stat(&journal);
        let stat = stat.map_err(StoreError::lower("looking at the journal"))?;
        let mut source = Tolerant {
            lower,
            journal: &journal,
            unreadable: HashSet::new(),
        };
        let superblock = reading.superblock(&mut source, Home::of(&stat), stat.size, identity)?;
        if let Some(superblock) = superblock {
            reading.log(&superblock, &mut source, stat.size, stage)?;
        }
        if !source.unreadable.is_empty() {
            let blocks = source.unreadable.len();
            reading.may_miss_more = true;
            reading.damage.push(format!(
                "{blocks} blocks of the journal cannot be read from the device"
            ));
        }
        Ok(reading)
    }

    fn nothing(identity: Option<Identity>) -> Self {
        let mut reading = Self {
            damage: Vec::new(),
            uuid: None,
            must_write_identity: false,
            journal_bytes: 0,
            direct_bytes_max: 0,
            epoch: 0,
            is_copied: false,
            may_be_applied: false,
            intact: Vec::new(),
            intact_bytes: 0,
            lost: Vec::new(),
            lost_transactions: 0,
            may_miss_more: false,
        };
        match identity {
            Some(Identity::Uuid(uuid)) => reading.uuid = Some(uuid),
            Some(Identity::Illegible) => {
                reading
                    .damage
                    .push("the store's identity, .mobifs/id, is damaged".to_owned());
                reading.must_write_identity = true;
            }
            None => {
                reading
                    .damage
                    .push("the store's identity, .mobifs/id, is missing".to_owned());
                reading.must_write_identity = true;
            }
        }
        reading
    }

    /// The superblock by which the log is read; none if there is nothing to be read in it.
    fn superblock<L: Lower>(
        &mut self,
        source: &mut Tolerant<'_, L>,
        home: Option<Home>,
        file_bytes: u64,
        identity: Option<Identity>,
    ) -> Result<Option<Superblock>, StoreError> {
        let mut blocks = JournalBuffer::zeroed(SLOTS * JOURNAL_BLOCK_BYTES);
        source.read(0, &mut blocks)?;
        let (first, second) = blocks.as_bytes().split_at(JOURNAL_BLOCK_BYTES);
        let slots = [parse(first), parse(second)];
        let chosen = match choose(slots) {
            Ok(chosen) => Some(chosen),
            Err(newer @ StoreError::NewerFormat { .. }) => return Err(newer),
            Err(error) => {
                self.damage.push(error.to_string());
                None
            }
        };
        let Some((superblock, current)) = chosen else {
            return self.without_superblock(source, file_bytes);
        };
        let is_at_home = superblock
            .home
            .zip(home)
            .map(|(one, other)| !one.is_not(other));
        if !self.belongs_here(&superblock, is_at_home, identity) {
            return Ok(None);
        }
        self.uuid = Some(superblock.uuid);
        self.journal_bytes = superblock.journal_bytes;
        self.direct_bytes_max = superblock.direct_bytes_max;
        self.is_copied = is_at_home == Some(false);
        if file_bytes < superblock.journal_bytes {
            self.damage.push(format!(
                "the journal was cut short: it ends at byte {file_bytes}, and had {}",
                superblock.journal_bytes
            ));
            self.may_miss_more |= file_bytes < superblock.reach;
        }
        let is_newest = current == [true; SLOTS];
        let until = if is_newest {
            superblock.reach
        } else {
            superblock.journal_bytes
        };
        let newest = newest_header(&superblock, source, until.min(file_bytes))?;
        match newest.filter(|newest| newest.epoch > superblock.epoch) {
            None => Ok(Some(superblock)),
            Some(newest) => {
                self.damage.push(format!(
                    "the journal's superblock is of epoch {}, and it has transactions of epoch {}: \
                     the newer superblock is lost",
                    superblock.epoch, newest.epoch
                ));
                Ok(Some(self.assumed(
                    superblock.uuid,
                    superblock.journal_bytes,
                    &newest,
                )))
            }
        }
    }

    /// Whether the journal is this store's; says what is wrong with its identity.
    fn belongs_here(
        &mut self,
        superblock: &Superblock,
        is_at_home: Option<bool>,
        identity: Option<Identity>,
    ) -> bool {
        let says = |text: &str| text.to_owned();
        match identity {
            Some(Identity::Uuid(uuid)) if uuid != superblock.uuid => {
                if is_at_home != Some(true) {
                    self.damage.push(says(
                        "the journal belongs to another store: it was put in the place of this one's",
                    ));
                    self.may_miss_more = true;
                    return false;
                }
                self.damage.push(says(
                    "the store's identity, .mobifs/id, is that of another store, and the journal was \
                     made here",
                ));
                self.must_write_identity = true;
            }
            // What is not there, or illegible, is reported.
            _ => {}
        }
        true
    }

    /// As [`Reading::superblock`], where none is whole.
    fn without_superblock<L: Lower>(
        &mut self,
        source: &mut Tolerant<'_, L>,
        file_bytes: u64,
    ) -> Result<Option<Superblock>, StoreError> {
        self.may_miss_more = true;
        self.journal_bytes = file_bytes - file_bytes % BLOCK;
        let Some(uuid) = self.uuid.filter(|_| self.journal_bytes > LOG_START) else {
            return Ok(None);
        };
        let any = assumed(uuid, self.journal_bytes, FORMAT_VERSION, 0);
        let newest = newest_header(&any, source, self.journal_bytes)?;
        Ok(newest.map(|newest| self.assumed(uuid, self.journal_bytes, &newest)))
    }

    fn assumed(&mut self, uuid: [u8; 16], journal_bytes: u64, newest: &Header) -> Superblock {
        self.may_be_applied = true;
        self.may_miss_more = true;
        assumed(uuid, journal_bytes, newest.version.into(), newest.epoch)
    }

    /// The log: whole transactions, and what follows them.
    fn log<L: Lower>(
        &mut self,
        superblock: &Superblock,
        source: &mut Tolerant<'_, L>,
        file_bytes: u64,
        stage: Option<&L::Handle>,
    ) -> Result<(), StoreError> {
        self.epoch = superblock.epoch;
        let lower = source.lower;
        let mut overflow = Overflowed {
            lower,
            stage,
            read: HashSet::new(),
        };
        let mut scanner = Scanner::new(superblock, source);
        let mut end = End {
            at: LOG_START,
            sequence: 1,
            reason: None,
        };
        let is_base_lost = !self.begin(superblock, &mut overflow);
        if !is_base_lost {
            self.follow(superblock, &mut scanner, &mut overflow, &mut end)?;
        }
        let End {
            at,
            sequence,
            reason,
        } = end;
        self.intact_bytes = at - LOG_START;
        let is_clean = superblock.clean && at == LOG_START;
        let until = if is_clean {
            LOG_START + BLOCK
        } else {
            superblock.reach
        };
        let mut rest = Rest {
            superblock,
            window: scanner.into_window(),
            overflow,
            from: at,
            sequence,
            until: until.min(file_bytes.next_multiple_of(BLOCK)),
        };
        let (lost, last) = rest.lost()?;
        if let Some(reason) = reason {
            self.damage.push(reason);
        } else if is_base_lost {
            // Reported.
        } else if last >= sequence
            && let Some((later, later_at)) = lost.iter().find_map(|lost| lost.later)
        {
            self.damage
                .push(not_whole(sequence, at, later, later_at).to_string());
        }
        self.lost_transactions = (last + 1).saturating_sub(sequence);
        self.lost = lost.into_iter().map(|found| found.lost).collect();
        Ok(())
    }
}

/// Where the whole transactions end, and why, if that is known.
struct End {
    at: u64,
    /// The sequence number of the next transaction.
    sequence: u64,
    reason: Option<String>,
}

impl Reading {
    /// What the epoch begins with, which comes before everything else in it; whether it can be read.
    fn begin<L: Lower>(
        &mut self,
        superblock: &Superblock,
        overflow: &mut Overflowed<'_, L>,
    ) -> bool {
        let Some(carried) = superblock.carried else {
            return true;
        };
        match overflow.records(carried.into(), 0) {
            Ok(records) => {
                self.intact.push((0, records));
                true
            }
            Err(error) => {
                self.damage.push(format!(
                    "what an earlier epoch left to this one cannot be read: {error}"
                ));
                self.may_miss_more = true;
                false
            }
        }
    }

    /// The whole transactions.
    fn follow<L: Lower>(
        &mut self,
        superblock: &Superblock,
        scanner: &mut Scanner<'_, '_>,
        overflow: &mut Overflowed<'_, L>,
        end: &mut End,
    ) -> Result<(), StoreError> {
        while end.at < superblock.journal_bytes {
            let found = match scanner.transaction(end.at, end.sequence) {
                Ok(found) => found,
                Err(error @ StoreError::Corrupt { .. }) => {
                    end.reason = Some(error.to_string());
                    return Ok(());
                }
                Err(other) => return Err(other),
            };
            let At::Whole { bytes, records } = found else {
                return Ok(());
            };
            match overflow.expanded(records, end.sequence) {
                Ok(records) => self.intact.push((end.sequence, records)),
                Err(error) => {
                    end.reason = Some(error.to_string());
                    return Ok(());
                }
            }
            end.at += bytes;
            end.sequence += 1;
        }
        Ok(())
    }
}

/// A superblock for reading a log whose own is lost.
fn assumed(uuid: [u8; 16], journal_bytes: u64, version: u32, epoch: u64) -> Superblock {
    Superblock {
        version,
        uuid,
        journal_bytes,
        epoch,
        generation: 0,
        direct_bytes_max: 0,
        clean: false,
        reach: journal_bytes,
        home: None,
        carried: None,
    }
}

/// The whole header of the highest epoch; none if the log has none.
fn newest_header<L: Lower>(
    superblock: &Superblock,
    source: &mut Tolerant<'_, L>,
    until: u64,
) -> Result<Option<Header>, StoreError> {
    let mut newest: Option<Header> = None;
    let lower = source.lower;
    let journal = source.journal;
    let seed = superblock.crc_seed();
    let mut window = Window::new(superblock, source);
    for_data(lower, journal, LOG_START, until, |offset| {
        let block = window.bytes_at(offset, JOURNAL_BLOCK_BYTES)?;
        let header = Header::parse(seed, block);
        let is_newer = |header: &Header| newest.is_none_or(|newest| header.epoch > newest.epoch);
        if let Some(header) = header.filter(is_newer) {
            if u32::from(header.version) > FORMAT_VERSION {
                return Err(StoreError::NewerFormat {
                    found: header.version.into(),
                    supported: FORMAT_VERSION,
                });
            }
            newest = Some(header);
        }
        Ok(BLOCK)
    })?;
    Ok(newest)
}

/// Calls `look` with the offset of each block that may have data; it returns how far to go on.
fn for_data<L: Lower>(
    lower: &L,
    journal: &L::Handle,
    from: u64,
    until: u64,
    mut look: impl FnMut(u64) -> Result<u64, StoreError>,
) -> Result<(), StoreError> {
    let (mut offset, mut looked_until) = (from, from);
    while offset < until {
        if offset >= looked_until {
            // Where the filesystem cannot say, every block is looked at.
            let data = lower.seek_data(journal, offset).unwrap_or(Some(offset));
            let Some(data) = data else { return Ok(()) };
            offset = offset.max(data - data % BLOCK);
            looked_until = offset.saturating_add(LOOK_BYTES);
            if offset >= until {
                return Ok(());
            }
        }
        offset += look(offset)?;
    }
    Ok(())
}

/// A journal of which not everything has to be readable: what is not, reads as zeros.
struct Tolerant<'a, L: Lower> {
    lower: &'a L,
    journal: &'a L::Handle,
    /// Offsets of blocks that the device does not return.
    unreadable: HashSet<u64>,
}

impl<L: Lower> Tolerant<'_, L> {
    /// Reads as much as there is; whether the device returned it.
    fn fill(&self, out: &mut [u8], offset: u64) -> io::Result<()> {
        out.fill(0);
        let read = self.lower.read_at(self.journal, out, offset)?;
        out[read..].fill(0);
        Ok(())
    }
}

impl<L: Lower> Blocks for Tolerant<'_, L> {
    fn read(&mut self, offset: u64, buffer: &mut JournalBuffer) -> Result<(), StoreError> {
        let out = buffer.as_bytes_mut();
        if self.fill(out, offset).is_ok() {
            return Ok(());
        }
        for (block, out) in (0..).zip(out.chunks_mut(JOURNAL_BLOCK_BYTES)) {
            let at = offset + block * BLOCK;
            if self.fill(out, at).is_err() {
                out.fill(0);
                self.unreadable.insert(at);
            }
        }
        Ok(())
    }
}

/// Records in overflow files. Each file belongs to one transaction.
struct Overflowed<'a, L: Lower> {
    lower: &'a L,
    stage: Option<&'a L::Handle>,
    read: HashSet<u64>,
}

impl<L: Lower> Overflowed<'_, L> {
    fn records(&mut self, of: Record, sequence: u64) -> Result<Vec<Record>, StoreError> {
        let Some(stage) = self.stage else {
            return Err(StoreError::Corrupt {
                what: ".mobifs/stage".to_owned(),
                detail: "it is not there, and the journal has a part of what is committed in it"
                    .to_owned(),
            });
        };
        let mut transaction = [(sequence, vec![of])];
        let file = match &transaction[0].1[..] {
            [Record::External { file, .. }] => *file,
            _ => 0,
        };
        if !self.read.insert(file) {
            return Err(StoreError::Corrupt {
                what: format!("overflow file t{file} of journal transaction {sequence}"),
                detail: "an earlier transaction has it already".to_owned(),
            });
        }
        overflow::expand(self.lower, stage, &mut transaction)?;
        let [(_, records)] = transaction;
        Ok(records)
    }

    fn expanded(&mut self, records: Vec<Record>, sequence: u64) -> Result<Vec<Record>, StoreError> {
        match &records[..] {
            [external @ Record::External { .. }] => self.records(external.clone(), sequence),
            _ => Ok(records),
        }
    }
}

/// What follows the whole transactions.
struct Rest<'a, 'w, L: Lower> {
    superblock: &'a Superblock,
    window: Window<'w>,
    overflow: Overflowed<'a, L>,
    from: u64,
    /// Sequence of the transaction that is expected at `from`.
    sequence: u64,
    until: u64,
}

struct FoundLost {
    lost: Lost,
    /// Its number and its place, if its header is whole, and it is not the first one that is missing.
    later: Option<(u64, u64)>,
}

impl<L: Lower> Rest<'_, '_, L> {
    /// The transactions, and the sequence of the last one whose header is whole; that before the
    /// expected one if there is none.
    fn lost(&mut self) -> Result<(Vec<FoundLost>, u64), StoreError> {
        let (seed, epoch) = (self.superblock.crc_seed(), self.superblock.epoch);
        let mut lost = Vec::new();
        let mut last = self.sequence - 1;
        let mut first_at = None;
        let mut at = self.from;
        while at < self.until {
            let block = self.window.bytes_at(at, JOURNAL_BLOCK_BYTES)?;
            let header = Header::parse(seed, block)
                .filter(|header| header.epoch == epoch && header.sequence > last);
            let Some(header) = header else {
                at += BLOCK;
                continue;
            };
            first_at.get_or_insert(at);
            let is_later = header.sequence != self.sequence;
            let later = is_later.then_some((header.sequence, at));
            let (found, is_whole) = self.transaction(at, &header)?;
            at += if is_whole {
                header.transaction_bytes()
            } else {
                BLOCK
            };
            last = header.sequence;
            lost.push(FoundLost { lost: found, later });
        }
        let has_expected =
            first_at == Some(self.from) && lost.first().is_some_and(|first| first.later.is_none());
        if !has_expected && let Some(headless) = self.headless(first_at)? {
            lost.insert(
                0,
                FoundLost {
                    lost: headless,
                    later: None,
                },
            );
            last = last.max(self.sequence);
        }
        Ok((lost, last))
    }

    /// A transaction with a whole header, and whether it matches its checksum.
    fn transaction(&mut self, at: u64, header: &Header) -> Result<(Lost, bool), StoreError> {
        let whole_bytes = HEADER_BYTES as u64 + u64::from(header.payload_bytes);
        let there = self.superblock.journal_bytes - at;
        let content = self
            .window
            .content(at, whole_bytes.min(there).min(LEGIBLE_BYTES_MAX))?;
        let payload = &content[HEADER_BYTES..];
        let is_checksum_right = crc32c::crc32c(payload) == header.payload_crc;
        let (records, is_all) = codec::decode_legible(payload, header.record_count);
        drop(content);
        let (records, is_all) = match self.overflow.expanded(records, header.sequence) {
            Ok(records) => (records, is_all),
            Err(_) => (Vec::new(), false),
        };
        let lost = Lost {
            records,
            bytes: header.transaction_bytes(),
            is_legible: is_all && is_checksum_right,
        };
        Ok((lost, is_checksum_right))
    }

    /// The expected transaction, whose header is damaged, if there is anything of it.
    fn headless(&mut self, next_at: Option<u64>) -> Result<Option<Lost>, StoreError> {
        let end = match next_at {
            Some(next) => next,
            // Nothing shows that there ever was one, but a header that resembles one of the epoch.
            None if self.from < self.until => {
                let block = self.window.bytes_at(self.from, JOURNAL_BLOCK_BYTES)?;
                if !header::resembles(block, self.superblock.epoch) {
                    return Ok(None);
                }
                self.until.min(self.from + transaction_bytes(0))
            }
            None => return Ok(None),
        };
        let bytes = end.saturating_sub(self.from);
        if bytes <= HEADER_BYTES as u64 {
            return Ok((next_at.is_some()).then_some(Lost {
                records: Vec::new(),
                bytes,
                is_legible: false,
            }));
        }
        let content = self
            .window
            .content(self.from, bytes.min(LEGIBLE_BYTES_MAX))?;
        let (records, _) = codec::decode_legible(&content[HEADER_BYTES..], u32::MAX);
        Ok(Some(Lost {
            records,
            bytes,
            is_legible: false,
        }))
    }
}
