//! The first two blocks of a journal.
//!
//! Both slots hold the same superblock except while it is being replaced: then one
//! slot is written durably before the other is touched, so that at any instant one of
//! them is whole, and afterwards either may be lost without consequence.

use mobifs_base::Timestamp;

use crate::StoreError;
use crate::log::overflow::Overflow;
use crate::lower::{JOURNAL_BLOCK_BYTES, LowerStat};

/// Format version of superblock, headers and records of the epochs that this program begins; an
/// epoch of an earlier version is continued in that version.
pub(crate) const FORMAT_VERSION: u32 = 6;
/// The first version whose epochs record when renames begin.
pub(crate) const VERSION_WITH_RENAME_MARK: u32 = 2;
/// The first version whose superblocks have the reach of the log.
const VERSION_WITH_REACH: u32 = 3;
/// The first version whose superblocks identify their file, and whose epochs record where objects
/// of a copied store are.
const VERSION_WITH_HOME: u32 = 4;
/// The first version whose superblocks refer to unapplied records of the epoch before, and whose
/// epochs record that renames begin before everything else is applied.
pub(crate) const VERSION_WITH_CARRIED: u32 = 5;
/// The first version whose records may copy content from elsewhere.
pub(crate) const VERSION_WITH_COPIES: u32 = 6;
/// How far ahead of the log its reach is announced: this fraction of the journal, within limits.
const AHEAD_SHARE: u64 = 8;
const AHEAD_BYTES_MIN: u64 = 64 << 10;
const AHEAD_BYTES_MAX: u64 = 4 << 20;
/// Number of slots.
pub(crate) const SLOTS: usize = 2;
/// Where transactions start.
pub(crate) const LOG_START: u64 = (SLOTS * JOURNAL_BLOCK_BYTES) as u64;
/// Smallest journal, in bytes.
pub(crate) const JOURNAL_BYTES_MIN: u64 = 64 * 1024;

const MAGIC: [u8; 8] = *b"MobiFSj\0";
/// The checksum covers everything before itself. In every format version it is here.
const CRC_AT: usize = 124;
const CLEAN: u32 = 1;
/// Offset and length of the home.
const HOME: std::ops::Range<usize> = 72..92;
/// Offset and length of the reference to the carried records.
const CARRIED: std::ops::Range<usize> = 92..116;
const NANOSECONDS_PER_SECOND: u32 = 1_000_000_000;
/// Larger counters cannot occur, and would overflow.
const COUNTER_MAX: u64 = u64::MAX / 2;

/// The fields of a superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    /// Format version of the epoch: of its headers and records.
    pub(crate) version: u32,
    /// Identity of the store.
    pub(crate) uuid: [u8; 16],
    /// Size of the journal with its superblocks, in bytes; whole blocks.
    pub(crate) journal_bytes: u64,
    /// Transactions of other epochs are invalid.
    pub(crate) epoch: u64,
    /// Counts superblock writes; of two different slots the higher one is valid.
    pub(crate) generation: u64,
    /// Transactions up to this size are written with one durable write.
    pub(crate) direct_bytes_max: u64,
    /// The epoch has no transaction, and the next mount has no recovery to do.
    pub(crate) clean: bool,
    /// Nothing was written at or after this offset in the epoch.
    pub(crate) reach: u64,
    /// The journal's file, if it is known; inodes in the epoch's records are valid only beside this
    /// file.
    pub(crate) home: Option<Home>,
    /// The records that the epoch before could not apply: the epoch begins with these.
    pub(crate) carried: Option<Overflow>,
}

/// Which file a journal is. A copy of it is another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Home {
    /// Its inode; not 0.
    inode: u64,
    /// When that was made, where the filesystem reports it.
    born: Option<Timestamp>,
}

impl Home {
    /// None where the lower filesystem has no inode numbers: a time alone would be read as damage.
    pub(crate) fn of(journal: &LowerStat) -> Option<Self> {
        (journal.inode != 0).then_some(Self {
            inode: journal.inode,
            born: journal.born,
        })
    }

    /// Whether `other` cannot be the same file.
    pub(crate) fn is_not(self, other: Self) -> bool {
        let both_born = self.born.zip(other.born);
        self.inode != other.inode || both_born.is_some_and(|(one, other)| one != other)
    }

    fn encode(self, bytes: &mut [u8]) {
        bytes[..8].copy_from_slice(&self.inode.to_le_bytes());
        if let Some(born) = self.born {
            bytes[8..16].copy_from_slice(&born.seconds.to_le_bytes());
            bytes[16..20].copy_from_slice(&(born.nanoseconds + 1).to_le_bytes());
        }
    }

    /// None if there is none; an error if the fields are invalid.
    fn parse(bytes: &[u8]) -> Result<Option<Self>, ()> {
        let (inode, seconds) = (u64_at(bytes, 0), u64_at(bytes, 8).cast_signed());
        let born = match u32_at(bytes, 16).checked_sub(1) {
            None if seconds == 0 => None,
            Some(nanoseconds) if nanoseconds < NANOSECONDS_PER_SECOND => {
                Some(Timestamp::new(seconds, nanoseconds))
            }
            _ => return Err(()),
        };
        match (inode, born) {
            (0, None) => Ok(None),
            (0, Some(_)) => Err(()),
            _ => Ok(Some(Self { inode, born })),
        }
    }
}

/// One slot as it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    /// Whole.
    Valid(Superblock),
    /// Whole, but of a format that this program does not know.
    Newer(u32),
    /// Anything else.
    Damaged,
}

impl Superblock {
    /// Writes the superblock into a block.
    pub(crate) fn encode(&self, block: &mut [u8]) {
        block.fill(0);
        block[..8].copy_from_slice(&MAGIC);
        block[8..12].copy_from_slice(&self.version.to_le_bytes());
        let flags = if self.clean { CLEAN } else { 0 };
        block[12..16].copy_from_slice(&flags.to_le_bytes());
        block[16..32].copy_from_slice(&self.uuid);
        block[32..40].copy_from_slice(&self.journal_bytes.to_le_bytes());
        block[40..48].copy_from_slice(&self.epoch.to_le_bytes());
        block[48..56].copy_from_slice(&self.generation.to_le_bytes());
        block[56..64].copy_from_slice(&self.direct_bytes_max.to_le_bytes());
        if self.version >= VERSION_WITH_REACH {
            block[64..72].copy_from_slice(&self.reach.to_le_bytes());
        }
        if let Some(home) = self.home.filter(|_| self.version >= VERSION_WITH_HOME) {
            home.encode(&mut block[HOME]);
        }
        if let Some(carried) = self
            .carried
            .filter(|_| self.version >= VERSION_WITH_CARRIED)
        {
            encode_carried(carried, &mut block[CARRIED]);
        }
        let crc = crc32c::crc32c(&block[..CRC_AT]);
        block[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
    }

    /// The superblock that has to be in force before the log is written up to `end`, which
    /// lies within the journal.
    pub(crate) fn reaching(self, end: u64) -> Self {
        if end <= self.reach {
            return self;
        }
        Self {
            reach: end
                .saturating_add(self.ahead_bytes())
                .min(self.journal_bytes),
            ..self
        }
    }

    /// A mount searches at most so many bytes more than were written, and the superblock is written
    /// once per so many bytes of log. Whole blocks.
    pub(crate) fn ahead_bytes(&self) -> u64 {
        let share = self.journal_bytes / AHEAD_SHARE;
        let blocks = share - share % JOURNAL_BLOCK_BYTES as u64;
        blocks.clamp(AHEAD_BYTES_MIN, AHEAD_BYTES_MAX)
    }

    /// This one in the newest format, for an epoch that has no transaction yet. Inodes recorded
    /// before are invalid, so a copy gets its own home.
    pub(crate) fn for_new_epoch(self, epoch: u64, home: Option<Home>) -> Self {
        let newest = Self {
            version: FORMAT_VERSION,
            epoch,
            reach: 0,
            home,
            carried: None,
            ..self
        };
        newest.reaching(LOG_START)
    }

    /// Seed of the header checksums: binds every transaction to its store, so that a
    /// journal of another store, kept as a file inside this one, is never taken for
    /// part of this journal.
    pub(crate) fn crc_seed(&self) -> u32 {
        crc32c::crc32c(&self.uuid)
    }
}

fn encode_carried(carried: Overflow, bytes: &mut [u8]) {
    bytes[..8].copy_from_slice(&carried.file.to_le_bytes());
    bytes[8..16].copy_from_slice(&carried.bytes.to_le_bytes());
    bytes[16..20].copy_from_slice(&carried.records.to_le_bytes());
    bytes[20..24].copy_from_slice(&carried.crc32c.to_le_bytes());
}

/// None if nothing is carried; an error if the fields are invalid.
fn parse_carried(bytes: &[u8]) -> Result<Option<Overflow>, ()> {
    let carried = Overflow {
        file: u64_at(bytes, 0),
        bytes: u64_at(bytes, 8),
        records: u32_at(bytes, 16),
        crc32c: u32_at(bytes, 20),
    };
    match carried.file {
        0 if bytes.iter().any(|&byte| byte != 0) => Err(()),
        0 => Ok(None),
        _ => Ok(Some(carried)),
    }
}

/// Reads one slot. Any bytes are accepted.
pub(crate) fn parse(block: &[u8]) -> Slot {
    if block.len() < CRC_AT + 4
        || block[..8] != MAGIC
        || u32_at(block, CRC_AT) != crc32c::crc32c(&block[..CRC_AT])
    {
        return Slot::Damaged;
    }
    let version = u32_at(block, 8);
    if version > FORMAT_VERSION {
        return Slot::Newer(version);
    }
    let flags = u32_at(block, 12);
    let journal_bytes = u64_at(block, 32);
    let home = if version >= VERSION_WITH_HOME {
        Home::parse(&block[HOME])
    } else {
        Ok(None)
    };
    let carried = if version >= VERSION_WITH_CARRIED {
        parse_carried(&block[CARRIED])
    } else {
        Ok(None)
    };
    let (Ok(home), Ok(carried)) = (home, carried) else {
        return Slot::Damaged;
    };
    let mut uuid = [0; 16];
    uuid.copy_from_slice(&block[16..32]);
    let superblock = Superblock {
        version,
        uuid,
        journal_bytes,
        epoch: u64_at(block, 40),
        generation: u64_at(block, 48),
        direct_bytes_max: u64_at(block, 56),
        clean: flags & CLEAN != 0,
        reach: if version >= VERSION_WITH_REACH {
            u64_at(block, 64)
        } else {
            journal_bytes
        },
        home,
        carried,
    };
    let sensible = version > 0
        && flags & !CLEAN == 0
        && !(superblock.clean && carried.is_some())
        && superblock.journal_bytes >= LOG_START
        && superblock.journal_bytes <= COUNTER_MAX
        && superblock
            .journal_bytes
            .is_multiple_of(JOURNAL_BLOCK_BYTES as u64)
        && (LOG_START..=superblock.journal_bytes).contains(&superblock.reach)
        && superblock.epoch <= COUNTER_MAX
        && superblock.generation <= COUNTER_MAX;
    if sensible {
        Slot::Valid(superblock)
    } else {
        Slot::Damaged
    }
}

/// The superblock in force, and which slots hold it.
pub(crate) fn choose(slots: [Slot; SLOTS]) -> Result<(Superblock, [bool; SLOTS]), StoreError> {
    let mut newest: Option<Superblock> = None;
    for slot in slots {
        match slot {
            Slot::Newer(found) => {
                return Err(StoreError::NewerFormat {
                    found,
                    supported: FORMAT_VERSION,
                });
            }
            Slot::Valid(one) if newest.is_none_or(|other| one.generation > other.generation) => {
                newest = Some(one);
            }
            Slot::Valid(_) | Slot::Damaged => {}
        }
    }
    let damaged = |detail: &str| StoreError::Corrupt {
        what: "journal superblock".to_owned(),
        detail: detail.to_owned(),
    };
    let newest = newest.ok_or_else(|| damaged("neither of its two copies is whole"))?;
    let contradicts = |slot: &Slot| matches!(slot, Slot::Valid(one) if one.generation == newest.generation && *one != newest);
    if slots.iter().any(contradicts) {
        return Err(damaged("its two copies contradict each other"));
    }
    Ok((newest, slots.map(|slot| slot == Slot::Valid(newest))))
}

/// Little-endian number at `at`; the caller has checked the length.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut number = [0; 4];
    number.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(number)
}

/// As [`u32_at`].
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn superblock() -> Superblock {
        Superblock {
            version: FORMAT_VERSION,
            uuid: *b"0123456789abcdef",
            journal_bytes: 1 << 20,
            epoch: 7,
            generation: 9,
            direct_bytes_max: 65_536,
            clean: true,
            reach: 1 << 19,
            home: Some(Home {
                inode: 12,
                born: Some(Timestamp::new(-5, 999_999_999)),
            }),
            carried: None,
        }
    }

    fn encoded(superblock: &Superblock) -> Vec<u8> {
        let mut block = vec![0xaa; JOURNAL_BLOCK_BYTES];
        superblock.encode(&mut block);
        block
    }

    /// A block with a changed field and a checksum that is right again.
    fn forged(change: impl Fn(&mut [u8])) -> Vec<u8> {
        let mut block = encoded(&superblock());
        change(&mut block);
        let crc = crc32c::crc32c(&block[..CRC_AT]);
        block[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
        block
    }

    #[test]
    fn survives_encoding_and_no_flipped_bit_goes_unnoticed() {
        let block = encoded(&superblock());
        assert_eq!(parse(&block), Slot::Valid(superblock()));
        for bit in 0..(CRC_AT + 4) * 8 {
            let mut flipped = block.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(parse(&flipped), Slot::Damaged, "bit {bit}");
        }
        assert_eq!(parse(&[]), Slot::Damaged);
        assert_eq!(parse(&[0; JOURNAL_BLOCK_BYTES]), Slot::Damaged);
    }

    #[test]
    fn impossible_values_are_damage_even_with_a_right_checksum() {
        for (at, value) in [
            (32, 4097),
            (32, 0),
            (32, u64::MAX - 4095),
            (40, u64::MAX),
            (48, u64::MAX),
            (64, 0),
            (64, (1 << 20) + 1),
            (72, 0),
            (84, u64::MAX),
            (88, 0),
            (100, 1),
        ] {
            let block = forged(|block| block[at..at + 8].copy_from_slice(&value.to_le_bytes()));
            assert_eq!(parse(&block), Slot::Damaged, "{value} at {at}");
        }
        assert_eq!(parse(&forged(|block| block[12] = 2)), Slot::Damaged);
        assert_eq!(parse(&forged(|block| block[8] = 0)), Slot::Damaged);
        assert_eq!(parse(&forged(|block| block[8] = 7)), Slot::Newer(7));
        // What is clean has nothing left to do.
        assert_eq!(parse(&forged(|block| block[92] = 1)), Slot::Damaged);
        for version in [1, 2, 3] {
            let older = Superblock {
                version: version.into(),
                reach: if version < 3 { 1 << 20 } else { 1 << 19 },
                home: None,
                ..superblock()
            };
            let block = forged(|block| block[8] = version);
            assert_eq!(parse(&block), Slot::Valid(older));
        }
    }

    #[test]
    fn what_is_carried_over_survives_encoding() {
        let carried = Superblock {
            clean: false,
            carried: Some(Overflow {
                file: 3,
                bytes: 4097,
                records: 5,
                crc32c: 0xdead_beef,
            }),
            ..superblock()
        };
        assert_eq!(parse(&encoded(&carried)), Slot::Valid(carried));
        assert_eq!(carried.for_new_epoch(8, None).carried, None);
    }

    #[test]
    fn the_reach_is_ahead_of_the_log_and_within_the_journal() {
        let (journal_bytes, ahead) = (3 * AHEAD_BYTES_MAX, AHEAD_BYTES_MAX * 3 / 8);
        let old = Superblock {
            version: 1,
            journal_bytes,
            reach: journal_bytes,
            ..superblock()
        };
        let new = old.for_new_epoch(8, None);
        assert_eq!((new.version, new.epoch), (FORMAT_VERSION, 8));
        assert_eq!(new.reach, LOG_START + ahead);
        assert_eq!(new.reaching(new.reach), new);
        assert_eq!(new.reaching(new.reach + 1).reach, new.reach + 1 + ahead);
        assert_eq!(new.ahead_bytes(), ahead);
        assert_eq!(new.reaching(journal_bytes).reach, journal_bytes);
    }

    #[test]
    fn a_home_differs_by_inode_or_birth_time() {
        let home = |inode, born| Home { inode, born };
        let (one, other) = (Timestamp::new(7, 1), Timestamp::new(7, 2));
        assert!(home(5, None).is_not(home(6, None)));
        assert!(home(5, Some(one)).is_not(home(5, Some(other))));
        for same in [home(5, Some(one)), home(5, None)] {
            assert!(!home(5, Some(one)).is_not(same));
            assert!(!same.is_not(home(5, Some(one))));
        }
    }

    #[test]
    fn the_newer_whole_slot_wins() {
        let (old, new) = (
            superblock(),
            Superblock {
                generation: 10,
                epoch: 8,
                ..superblock()
            },
        );
        let (old, new_slot) = (Slot::Valid(old), Slot::Valid(new));
        assert_eq!(choose([old, new_slot]).unwrap(), (new, [false, true]));
        assert_eq!(choose([new_slot, old]).unwrap(), (new, [true, false]));
        assert_eq!(choose([new_slot, new_slot]).unwrap(), (new, [true, true]));
        assert_eq!(
            choose([Slot::Damaged, new_slot]).unwrap(),
            (new, [false, true])
        );
        let other = Slot::Valid(Superblock { epoch: 3, ..new });
        for slots in [[Slot::Damaged; 2], [new_slot, other]] {
            assert!(matches!(choose(slots), Err(StoreError::Corrupt { .. })));
        }
        assert!(matches!(
            choose([new_slot, Slot::Newer(7)]),
            Err(StoreError::NewerFormat {
                found: 7,
                supported: FORMAT_VERSION
            })
        ));
    }
}
