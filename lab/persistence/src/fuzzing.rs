//! The parsers without files, and journals to start from, for the fuzz target; no part of the interface.

use crate::at_rest;
use crate::bytes::{be32, raw_crc32c};
use crate::error::PersistError;
use crate::figures::Jbd2Figures;
use crate::jbd2::{MAGIC, Transaction};

/// Reads the journal in these bytes, an image or a journal alone.
///
/// # Errors
/// There is none, or it is damaged.
pub fn read(image: &[u8]) -> Result<(Jbd2Figures, Vec<Transaction>), PersistError> {
    // A mutated size must not make one input cost the memory of many.
    const BYTES_MAX: usize = 1 << 20;
    at_rest::read(&image[..image.len().min(BYTES_MAX)])
}

const BLOCK_BYTES: usize = 1024;
const FIRST: usize = 1;
const BLOCKS: usize = 16;
const V3: u32 = 0x10;
const V2: u32 = 8;
const BITS_64: u32 = 2;
const FAST_COMMIT: u32 = 0x20;

/// Small journals with two transactions, one of which has a revoke block and an escaped block, in the formats
/// that there are.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let formats = [0, BITS_64, V2, V2 | BITS_64, V3 | BITS_64, V3 | FAST_COMMIT];
    let mut seeds: Vec<_> = formats.into_iter().map(seed).collect();
    seeds.push(filesystem(&seed(0)));
    seeds
}

/// The smallest ext4 that has this journal: a superblock, a group, and an inode with one extent.
fn filesystem(journal: &[u8]) -> Vec<u8> {
    const TABLE: usize = 5;
    const JOURNAL_AT: usize = 8;
    const INODE: usize = 8;
    let blocks = JOURNAL_AT + BLOCKS;
    let mut image = vec![0; blocks * BLOCK_BYTES];
    let mut put = |at: usize, number: u32| image[at..at + 4].copy_from_slice(&number.to_le_bytes());
    let superblock = BLOCK_BYTES;
    for (at, number) in [
        (0x04, blocks as u32),
        (0x14, 1),
        (0x20, 8192),
        (0x28, 16),
        (0x38, 0xef53),
        (0x58, 128),
        (0x5c, 4),
        (0xe0, INODE as u32),
    ] {
        put(superblock + at, number);
    }
    for (number, place) in [3, 4, TABLE as u32].into_iter().enumerate() {
        put(2 * BLOCK_BYTES + number * 4, place);
    }
    let inode = TABLE * BLOCK_BYTES + (INODE - 1) * 128;
    for (at, number) in [
        (0x04, journal.len() as u32),
        (0x20, 0x8_0000),
        (0x28, 0xf30a | 1 << 16),
        (0x2c, 4),
        (0x34, 0),
        (0x38, BLOCKS as u32),
        (0x3c, JOURNAL_AT as u32),
    ] {
        put(inode + at, number);
    }
    image[JOURNAL_AT * BLOCK_BYTES..].copy_from_slice(journal);
    image
}

fn seed(incompat: u32) -> Vec<u8> {
    let mut journal = vec![0; BLOCKS * BLOCK_BYTES];
    let mut put =
        |at: usize, number: u32| journal[at..at + 4].copy_from_slice(&number.to_be_bytes());
    for (at, number) in [
        (0, MAGIC),
        (4, 4),
        (0x0c, BLOCK_BYTES as u32),
        (0x10, BLOCKS as u32),
        (0x14, FIRST as u32),
        (0x18, 5),
        (0x1c, FIRST as u32),
        (0x28, incompat | 1),
        (0x50, 4 << 24),
        (0x54, 2),
    ] {
        put(at, number);
    }
    // Sequence 5: descriptor, two blocks, commit; 6: revoke, descriptor, a block, commit.
    let control = [(1, 1, 5), (4, 2, 5), (5, 5, 6), (6, 1, 6), (8, 2, 6)];
    for (block, kind, sequence) in control {
        let at = block * BLOCK_BYTES;
        put(at, MAGIC);
        put(at + 4, kind);
        put(at + 8, sequence);
    }
    put(5 * BLOCK_BYTES + 12, 24);
    put(5 * BLOCK_BYTES + 20, 77);
    let is_v3 = incompat & V3 != 0;
    let tag_bytes = match (is_v3, incompat & V2 != 0, incompat & BITS_64 != 0) {
        (true, ..) => 16,
        (_, true, true) => 14,
        (_, true, false) => 10,
        (.., true) => 12,
        _ => 8,
    };
    let mut tag = |at: usize, place: u32, flags: u32| {
        put(at, place);
        // Before version 3, 16 bits of flags after 16 bits of a checksum.
        put(at + 4, flags);
    };
    let descriptor = BLOCK_BYTES + 12;
    tag(descriptor, 40, 0);
    tag(descriptor + tag_bytes + 16, 41, 2 | 8);
    tag(6 * BLOCK_BYTES + 12, 40, 1 | 2 | 8);
    seal(&mut journal);
    journal
}

/// Makes the checksums of a journal right, of its superblock and of control blocks.
pub fn seal(journal: &mut [u8]) {
    if journal.len() < BLOCK_BYTES || be32(journal, 0) != MAGIC {
        return;
    }
    let incompat = be32(journal, 0x28);
    if incompat & (V2 | V3) == 0 {
        return;
    }
    journal[0xfc..0x100].fill(0);
    let crc = raw_crc32c(!0, &journal[..BLOCK_BYTES]);
    journal[0xfc..0x100].copy_from_slice(&crc.to_be_bytes());
    let uuid = raw_crc32c(!0, &journal[0x30..0x40]);
    let mut pending = Vec::new();
    let blocks = journal.len() / BLOCK_BYTES;
    for block in FIRST..blocks {
        let bytes = &journal[block * BLOCK_BYTES..][..BLOCK_BYTES];
        let at = match (be32(bytes, 0), be32(bytes, 4)) {
            (MAGIC, 1 | 5) => BLOCK_BYTES - 4,
            (MAGIC, 2) => 16,
            _ => continue,
        };
        pending.push((block, at));
        if be32(bytes, 4) == 1 {
            seal_tags(journal, block, incompat, uuid);
        }
    }
    for (block, at) in pending {
        let bytes = &mut journal[block * BLOCK_BYTES..][..BLOCK_BYTES];
        bytes[at..at + 4].fill(0);
        let crc = raw_crc32c(uuid, bytes);
        bytes[at..at + 4].copy_from_slice(&crc.to_be_bytes());
    }
}

/// Makes the checksums in a descriptor block right, of the blocks that follow it.
fn seal_tags(journal: &mut [u8], descriptor: usize, incompat: u32, uuid: u32) {
    let is_v3 = incompat & V3 != 0;
    let tag_bytes = match (is_v3, incompat & BITS_64 != 0) {
        (true, _) => 16,
        (_, true) => 14,
        _ => 10,
    };
    let start = descriptor * BLOCK_BYTES;
    let sequence = [
        journal[start + 8],
        journal[start + 9],
        journal[start + 10],
        journal[start + 11],
    ];
    let (mut at, mut block) = (12, descriptor + 1);
    while at + tag_bytes <= BLOCK_BYTES - 4 && (block + 1) * BLOCK_BYTES <= journal.len() {
        let flags = be32(journal, start + at + 4) & 0xffff;
        let crc = raw_crc32c(uuid, &sequence);
        let crc = raw_crc32c(crc, &journal[block * BLOCK_BYTES..][..BLOCK_BYTES]).to_be_bytes();
        if is_v3 {
            journal[start + at + 12..][..4].copy_from_slice(&crc);
        } else {
            journal[start + at + 4..][..2].copy_from_slice(&crc[2..]);
        }
        at += tag_bytes + if flags & 2 == 0 { 16 } else { 0 };
        block += 1;
        if flags & 8 != 0 {
            break;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_seed_has_its_two_transactions() {
        for seed in seeds() {
            let (figures, transactions) = read(&seed).unwrap();
            let sequences: Vec<u32> = transactions.iter().map(|found| found.sequence).collect();
            assert_eq!(sequences, [5, 6], "{:?}", figures.features);
            let [first, second] = &transactions[..] else {
                panic!()
            };
            let places: Vec<u64> = first.logged.iter().map(|logged| logged.place).collect();
            assert_eq!((places, first.commit, first.blocks()), (vec![40, 41], 4, 4));
            assert!(second.logged[0].is_escaped);
            assert_eq!(
                second.revoked.len(),
                if figures.features.bits_64 { 1 } else { 2 }
            );
            // The escaped block began with the magic: four bytes changed since the transaction before.
            let modification = figures.modification.unwrap();
            assert_eq!((modification.blocks, modification.unknown_blocks), (1, 2));
            assert_eq!(modification.changed_bytes.max as u64, 4);
        }
    }
}
