//! Scanning a journal of which every block may be forged: transactions that were written in order
//! are found, in order, and no block is read outside the journal or more than a few times.

use arbitrary::{Arbitrary, Result, Unstructured};
use mobifs_store::StoreError;
use mobifs_store::fuzzing::{
    ForgedSuperblock, ForgedTransaction, Record, encode, forge_superblock, forge_transaction, scan,
};
use mobifs_store::lower::JOURNAL_BLOCK_BYTES;

use super::arbitrary_record;
use crate::noise::noises;
use crate::{Target, Verdict};

/// A journal image and its scan.
pub const JOURNAL_SCAN: Target = Target {
    name: "journal_scan",
    run,
    seeds: noises,
};

const UUID: [u8; 16] = *b"a store to fuzz.";
const EPOCH: u64 = 3;
const BLOCKS: usize = 48;
const READ_BYTES_MAX: u64 = 2 << 20;
const PIECES_MAX: usize = 12;

/// One copy of the superblock.
#[derive(Arbitrary, Debug)]
enum Slot {
    Good,
    Clean,
    Other {
        epoch: u64,
        generation: u8,
        journal_bytes: u64,
    },
    Noise(u8),
}

/// What is written after the superblocks, one piece after the other.
#[derive(Debug)]
enum Piece {
    /// The next transaction of the epoch, as a mount would write it.
    Next(Vec<Record>),
    /// A transaction whose checksums are right.
    Forged {
        epoch: u64,
        sequence: u64,
        count: u32,
        payload: Vec<u8>,
    },
    /// The last transaction has a wrong byte.
    Torn(u16),
    Zeros(u8),
}

fn piece(u: &mut Unstructured<'_>) -> Result<Piece> {
    Ok(match u.int_in_range(0..=7)? {
        0..=3 => {
            let bytes = u.int_in_range(0..=200)?;
            let bytes = u.bytes(u.len().min(bytes))?;
            Piece::Next(arbitrary_record::records(&mut Unstructured::new(bytes))?)
        }
        4 | 5 => Piece::Forged {
            epoch: u.int_in_range(EPOCH - 1..=EPOCH + 1)?,
            sequence: u.int_in_range(0..=12)?,
            count: u.int_in_range(0..=3)?,
            payload: {
                let bytes = u.int_in_range(0..=300)?;
                u.bytes(u.len().min(bytes))?.to_vec()
            },
        },
        6 => Piece::Torn(u.arbitrary()?),
        _ => Piece::Zeros(u.int_in_range(1..=3)?),
    })
}

fn superblock(slot: &Slot) -> Vec<u8> {
    let good = ForgedSuperblock {
        uuid: UUID,
        journal_bytes: (BLOCKS * JOURNAL_BLOCK_BYTES) as u64,
        epoch: EPOCH,
        generation: 7,
        clean: false,
        reach: (BLOCKS * JOURNAL_BLOCK_BYTES) as u64,
    };
    match *slot {
        Slot::Good => forge_superblock(&good),
        Slot::Clean => forge_superblock(&ForgedSuperblock {
            clean: true,
            ..good
        }),
        Slot::Other {
            epoch,
            generation,
            journal_bytes,
        } => forge_superblock(&ForgedSuperblock {
            epoch,
            generation: generation.into(),
            journal_bytes,
            reach: journal_bytes,
            ..good
        }),
        Slot::Noise(byte) => vec![byte; JOURNAL_BLOCK_BYTES],
    }
}

/// A journal, and the transactions that it surely has.
struct Image {
    journal: Vec<u8>,
    certain: Vec<Vec<Record>>,
    /// It has nothing else: a mount must accept it.
    is_intact: bool,
}

fn image(u: &mut Unstructured<'_>) -> Result<Image> {
    let slots: [Slot; 2] = if u.ratio(3, 4)? {
        [Slot::Good, Slot::Good]
    } else {
        u.arbitrary()?
    };
    let mut journal: Vec<u8> = slots.iter().flat_map(superblock).collect();
    let mut in_order = matches!(slots, [Slot::Good, Slot::Good]);
    let mut certain = Vec::new();
    let (mut next_sequence, mut last_start) = (1, None);
    for _ in 0..PIECES_MAX {
        if u.is_empty() {
            break;
        }
        let start = journal.len();
        match piece(u)? {
            Piece::Next(records) => {
                let forged = ForgedTransaction {
                    uuid: UUID,
                    epoch: EPOCH,
                    sequence: next_sequence,
                    record_count: records.len() as u32,
                    payload: &encode(&records),
                };
                next_sequence += 1;
                journal.extend(forge_transaction(&forged));
                if in_order && journal.len() <= BLOCKS * JOURNAL_BLOCK_BYTES {
                    certain.push(records);
                }
                last_start = Some(start);
            }
            Piece::Forged {
                epoch,
                sequence,
                count,
                payload,
            } => {
                in_order = false;
                journal.extend(forge_transaction(&ForgedTransaction {
                    uuid: UUID,
                    epoch,
                    sequence,
                    record_count: count,
                    payload: &payload,
                }));
                last_start = Some(start);
            }
            Piece::Torn(at) => {
                if let Some(start) = last_start.take() {
                    let length = journal.len() - start;
                    journal[start + usize::from(at) % length] ^= 0x10;
                    // It may have been one that was certain.
                    certain.pop();
                    in_order = false;
                }
            }
            Piece::Zeros(blocks) => {
                in_order = false;
                journal.resize(start + usize::from(blocks) * JOURNAL_BLOCK_BYTES, 0);
            }
        }
    }
    let is_intact = in_order && journal.len() <= BLOCKS * JOURNAL_BLOCK_BYTES;
    journal.resize(BLOCKS * JOURNAL_BLOCK_BYTES, 0);
    Ok(Image {
        journal,
        certain,
        is_intact,
    })
}

fn run(input: &[u8]) -> Verdict {
    let Ok(image) = image(&mut Unstructured::new(input)) else {
        return Verdict::Refused;
    };
    let (mut reads, mut read_bytes) = (0_u64, 0_u64);
    let scanned = scan(&image.journal, &mut |offset, bytes| {
        assert!(offset + bytes <= image.journal.len() as u64, "read outside");
        assert!(bytes <= READ_BYTES_MAX, "a read of {bytes} bytes");
        reads += 1;
        read_bytes += bytes;
    });
    assert!(
        reads <= BLOCKS as u64 && read_bytes <= 4 * image.journal.len() as u64,
        "{reads} reads of {read_bytes} bytes"
    );
    let scanned = match scanned {
        Ok(scanned) => scanned,
        Err(
            StoreError::Corrupt { .. } | StoreError::NewerFormat { .. } | StoreError::Unsuitable(_),
        ) if !image.is_intact => return Verdict::Refused,
        Err(other) => panic!("this journal cannot fail so: {other}"),
    };
    assert!(scanned.end <= image.journal.len() as u64);
    let sequences = scanned.transactions.iter().map(|(sequence, _)| *sequence);
    assert!(sequences.eq(1..=scanned.transactions.len() as u64));
    assert!(
        scanned.transactions.len() >= image.certain.len(),
        "{} of {} transactions that are whole and in order",
        scanned.transactions.len(),
        image.certain.len()
    );
    for ((_, found), expected) in scanned.transactions.iter().zip(&image.certain) {
        assert_eq!(found, expected);
    }
    Verdict::Taken
}
