//! Journals that were damaged: fewer transactions from the tail or a plain refusal,
//! never wrong content.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::log::codec::tests::record;
use crate::log::scan::{Found, scan};
use crate::log::superblock::{choose, parse};
use crate::log::window::READ_BYTES_MAX;

/// Three transactions after a reset, with remains of the epoch before: blocks 0, 1
/// to 2 and 3 of the log are in force.
fn place_with_three() -> (Place, Vec<(u64, Vec<Record>)>) {
    let place = Place::new();
    let (lower, root) = place.lower();
    let (mut log, _) = open::open(&lower, &root, &OPTIONS).unwrap();
    for number in 1..=7 {
        log.append(&lower, &transaction(number, 1)).unwrap();
    }
    log.reset(&lower, false).unwrap();
    let three = [
        (1, transaction(11, 1)),
        (2, transaction(12, 2)),
        (3, transaction(13, 1)),
    ];
    for (_, records) in &three {
        log.append(&lower, records).unwrap();
    }
    (place, three.to_vec())
}

/// Scans the image as opening does, without a file.
fn open_image(image: &[u8]) -> Result<Found, StoreError> {
    let (superblock, _) = choose([parse(&image[..4096]), parse(&image[4096..8192])])?;
    let mut read = |offset, buffer: &mut JournalBuffer| {
        let start = usize::try_from(offset).unwrap();
        let out = buffer.as_bytes_mut();
        out.copy_from_slice(&image[start..start + out.len()]);
        Ok(())
    };
    scan(&superblock, &mut read, &mut |offset| Ok(offset))
}

/// As [`open_image`]; every read lies after the one before.
fn open_reading_once(image: &[u8]) -> Found {
    let (superblock, _) = choose([parse(&image[..4096]), parse(&image[4096..8192])]).unwrap();
    let mut next = LOG_START;
    let mut read = |offset: u64, buffer: &mut JournalBuffer| {
        assert_eq!(offset, next);
        let (from, out) = (offset as usize, buffer.as_bytes_mut());
        out.copy_from_slice(&image[from..from + out.len()]);
        next += out.len() as u64;
        Ok(())
    };
    scan(&superblock, &mut read, &mut |offset| Ok(offset)).unwrap()
}

#[test]
fn a_flipped_bit_never_changes_content() {
    let (place, three) = place_with_three();
    let mut image = place.image();
    let (mut whole, mut fewer, mut refused) = (0, 0, 0);
    for at in 0..image.len() {
        // Every bit where something is in force, one of each byte elsewhere. The first
        // superblock stands for both.
        let bits = if (4096..log_offset(4) as usize).contains(&at) {
            0..8
        } else {
            0..1
        };
        for bit in bits {
            image[at] ^= 1 << bit;
            match open_image(&image) {
                Ok(found) if found.transactions == three => whole += 1,
                Ok(found) => {
                    // Only the last one may be mistaken for an incomplete tail.
                    assert_eq!(found.transactions, three[..2], "byte {at}");
                    assert!(
                        (log_offset(3)..log_offset(4)).contains(&(at as u64)),
                        "byte {at}"
                    );
                    fewer += 1;
                }
                Err(StoreError::Corrupt { what, .. }) => {
                    let number = if (at as u64) < log_offset(1) { 1 } else { 2 };
                    assert!(
                        what.starts_with(&format!("journal transaction {number} ")),
                        "{what}"
                    );
                    assert!(
                        (LOG_START..log_offset(3)).contains(&(at as u64)),
                        "byte {at}"
                    );
                    refused += 1;
                }
                Err(other) => panic!("byte {at}: {other}"),
            }
            image[at] ^= 1 << bit;
        }
    }
    assert!(whole > 0 && fewer > 0 && refused > 8 * 4096);
}

#[test]
fn damage_in_the_middle_is_named_and_nothing_is_changed() {
    let (place, _) = place_with_three();
    place.overwrite(log_offset(1) + 100, b"damage");
    let image = place.image();
    let message = corrupt(place.open(&OPTIONS));
    for part in [
        "transaction 2",
        &log_offset(1).to_string(),
        &log_offset(3).to_string(),
    ] {
        assert!(message.contains(part), "{message}");
    }
    assert!(place.image() == image);
}

#[test]
fn a_torn_tail_of_several_blocks_is_discarded_and_counted() {
    // Which blocks of the last transaction are missing.
    for missing in [&[1][..], &[2], &[3], &[1, 2, 3], &[0], &[0, 2]] {
        let (place, mut three) = place_with_three();
        let (lower, root) = place.lower();
        let (mut log, _) = open::open(&lower, &root, &OPTIONS).unwrap();
        log.append(&lower, &transaction(14, 4)).unwrap();
        for block in missing {
            place.overwrite(log_offset(4 + block), &[0; 4096]);
        }
        let (mut log, scanned) = open::open(&lower, &root, &OPTIONS).unwrap();
        assert_eq!(scanned.transactions, three);
        let counted = if missing.contains(&0) { 0 } else { 4 * BLOCK };
        assert_eq!(
            (scanned.discarded_tail_bytes, scanned.clean),
            (counted, false)
        );
        log.append(&lower, &transaction(15, 2)).unwrap();
        three.push((4, transaction(15, 2)));
        let found = place.found();
        assert_eq!((found.transactions, found.discarded_tail_bytes), (three, 0));
    }
}

#[test]
fn a_torn_header_is_counted_as_far_as_it_is_known() {
    let (place, three) = place_with_three();
    place.overwrite(log_offset(3) + 17, &[0xff]);
    let found = place.found();
    assert_eq!(
        (found.transactions.as_slice(), found.discarded_tail_bytes),
        (&three[..2], 4096)
    );
}

#[test]
fn a_journal_cut_short_is_refused() {
    let (place, _) = place_with_three();
    for bytes in [64 * 1024 - 1, 32 * 1024, log_offset(4), 8192, 4096, 100, 0] {
        let file = fs::File::options()
            .write(true)
            .open(place.path("journal"))
            .unwrap();
        file.set_len(bytes).unwrap();
        assert!(
            corrupt(place.open(&OPTIONS)).contains("cut short"),
            "{bytes}"
        );
        assert_eq!(place.image().len() as u64, bytes);
    }
}

#[test]
fn a_journal_that_is_missing_is_not_quietly_made_again() {
    let (place, _) = place_with_three();
    fs::remove_file(place.path("journal")).unwrap();
    for options in [OPTIONS, READ_ONLY] {
        assert!(corrupt(place.open(&options)).contains("missing"));
    }
    assert_eq!(place.names(), ["id"]);
    fs::remove_file(place.path("id")).unwrap();
    assert!(place.open(&OPTIONS).unwrap().1.clean);
}

#[test]
fn a_foreign_journal_is_refused() {
    let (place, _) = place_with_three();
    let other = Place::new();
    let foreign = LogOptions {
        uuid_if_new: [7; 16],
        ..OPTIONS
    };
    other.open(&foreign).unwrap();
    fs::copy(place.path("journal"), other.path("journal")).unwrap();
    assert!(corrupt(other.open(&OPTIONS)).contains("another store"));
    fs::write(other.path("id"), b"?\n").unwrap();
    assert!(corrupt(other.open(&OPTIONS)).contains("id, is damaged"));
    fs::remove_file(other.path("id")).unwrap();
    assert!(corrupt(other.open(&OPTIONS)).contains("id, is missing"));
    assert!(other.image() == place.image());
}

/// A journal of another store may lie, as content, in a page of a torn transaction.
#[test]
fn a_foreign_transaction_within_a_torn_one_is_no_damage() {
    let (place, three) = place_with_three();
    let other = Place::new();
    let (lower, root) = other.lower();
    let foreign = LogOptions {
        uuid_if_new: [7; 16],
        ..OPTIONS
    };
    let (mut log, _) = open::open(&lower, &root, &foreign).unwrap();
    log.reset(&lower, false).unwrap();
    for number in 1..=9 {
        log.append(&lower, &transaction(number, 1)).unwrap();
    }
    let ninth = other.image()[log_offset(8) as usize..][..4096].to_vec();
    place.overwrite(log_offset(6), &ninth);
    assert_eq!(place.found().transactions, three);
    // One of this store there would be damage: the test would notice.
    let mut image = place.image();
    image.copy_within(
        log_offset(3) as usize..log_offset(4) as usize,
        log_offset(8) as usize,
    );
    image[log_offset(3) as usize..log_offset(4) as usize].fill(0);
    assert!(
        open_image(&image).is_ok(),
        "same sequence: just the tail elsewhere"
    );
    image[log_offset(1) as usize] ^= 1;
    assert!(matches!(
        open_image(&image),
        Err(StoreError::Corrupt { .. })
    ));
}

#[test]
fn a_lost_newer_superblock_is_noticed() {
    let (place, _) = place_with_three();
    let old = place.image()[..8192].to_vec();
    let (lower, root) = place.lower();
    let (mut log, _) = open::open(&lower, &root, &OPTIONS).unwrap();
    log.reset(&lower, false).unwrap();
    log.append(&lower, &transaction(21, 1)).unwrap();
    place.overwrite(0, &old);
    assert!(corrupt(place.open(&OPTIONS)).contains("newer superblock is lost"));
    // Also where the old one is marked clean.
    let slot = parse(&old[..4096]);
    let crate::log::superblock::Slot::Valid(superblock) = slot else {
        panic!("{slot:?}")
    };
    let mut clean = vec![0; 4096];
    Superblock {
        clean: true,
        ..superblock
    }
    .encode(&mut clean);
    place.overwrite(0, &clean);
    place.overwrite(BLOCK, &clean);
    assert!(corrupt(place.open(&OPTIONS)).contains("newer superblock is lost"));
}

#[test]
fn a_newer_format_is_refused_by_its_number() {
    let (place, _) = place_with_three();
    let image = place.image();
    let mut block = image[..4096].to_vec();
    block[8..12].copy_from_slice(&7_u32.to_le_bytes());
    let crc = crc32c::crc32c(&block[..124]);
    block[124..128].copy_from_slice(&crc.to_le_bytes());
    place.overwrite(BLOCK, &block);
    let error = place.open(&OPTIONS).err();
    assert!(
        matches!(
            error,
            Some(StoreError::NewerFormat {
                found: 7,
                supported: FORMAT_VERSION
            })
        ),
        "{error:?}"
    );

    // One transaction of a newer program, at the end and in the middle.
    for at in [log_offset(3), log_offset(0)] {
        let mut image = image.clone();
        let start = usize::try_from(at).unwrap();
        let seed = crc32c::crc32c(&UUID);
        let header = Header::parse(seed, &image[start..]).unwrap();
        Header {
            version: 9,
            ..header
        }
        .encode(seed, &mut image[start..]);
        let result = open_image(&image);
        assert!(matches!(
            result,
            Err(StoreError::NewerFormat {
                found: 9,
                supported: FORMAT_VERSION
            })
        ));
    }
}

#[test]
fn whole_headers_that_say_nonsense_are_damage() {
    let (place, _) = place_with_three();
    let seed = crc32c::crc32c(&UUID);
    let start = usize::try_from(log_offset(3)).unwrap();
    let image = place.image();
    let header = Header::parse(seed, &image[start..]).unwrap();
    for nonsense in [
        Header {
            payload_bytes: u32::MAX,
            ..header
        },
        Header {
            record_count: 0,
            ..header
        },
        Header {
            record_count: u32::MAX,
            ..header
        },
        Header { kind: 2, ..header },
        Header {
            version: 0,
            ..header
        },
    ] {
        let mut image = image.clone();
        nonsense.encode(seed, &mut image[start..]);
        let result = open_image(&image);
        assert!(
            matches!(result, Err(StoreError::Corrupt { .. })),
            "{nonsense:?}: {result:?}"
        );
    }
}

/// The journal's size is in the superblock, and a forged one may have any.
#[test]
fn what_was_never_written_is_not_read() {
    let (place, three) = place_with_three();
    let image = place.image();
    let (newest, _) = choose([parse(&image[..4096]), parse(&image[4096..8192])]).unwrap();
    let forged = Superblock {
        journal_bytes: 1 << 42,
        reach: 1 << 42,
        ..newest
    };
    let mut read_bytes = 0;
    let mut read = |offset: u64, buffer: &mut JournalBuffer| {
        let out = buffer.as_bytes_mut();
        read_bytes += out.len();
        out.fill(0);
        let from = image.len().min(offset as usize);
        let to = image.len().min(from + out.len());
        out[..to - from].copy_from_slice(&image[from..to]);
        Ok(())
    };
    let image_end = image.len() as u64;
    let mut next_data = |offset| Ok(if offset < image_end { offset } else { u64::MAX });
    let found = scan(&forged, &mut read, &mut next_data).unwrap();
    assert_eq!(found.transactions, three);
    assert!(read_bytes < 8 << 20, "{read_bytes}");
}

/// A mount after a crash would have to read a journal that was once full from end to end.
#[test]
fn what_earlier_epochs_left_beyond_the_reach_is_not_read() {
    let (place, options) = (
        Place::new(),
        LogOptions {
            journal_bytes: 8 << 20,
            ..OPTIONS
        },
    );
    let (lower, root) = place.lower();
    let (mut log, _) = open::open(&lower, &root, &options).unwrap();
    let large = transaction(1, 256);
    let large_bytes = Log::<PosixHandle>::transaction_bytes(&large);
    let mut count = 0;
    assert!(!large_bytes.is_multiple_of(READ_BYTES_MAX as u64));
    while log.free_bytes() >= large_bytes {
        log.append(&lower, &large).unwrap();
        count += 1;
        // At every reach all transactions are found.
        let found = open_image(&place.image()).unwrap();
        assert_eq!(found.transactions.len(), count);
    }
    assert!(count as u64 * large_bytes > 6 << 20);
    assert_eq!(open_reading_once(&place.image()).transactions.len(), count);
    let (_, scanned) = open::open(&lower, &root, &options).unwrap();
    assert!(
        scanned
            .transactions
            .iter()
            .all(|(_, records)| *records == large)
    );
    assert_eq!(scanned.transactions.len(), count);
    log.reset(&lower, false).unwrap();
    log.append(&lower, &transaction(2, 1)).unwrap();
    let image = place.image();
    let (superblock, _) = choose([parse(&image[..4096]), parse(&image[4096..8192])]).unwrap();
    let mut read_until = 0;
    let mut read = |offset: u64, buffer: &mut JournalBuffer| {
        let (from, out) = (offset as usize, buffer.as_bytes_mut());
        out.copy_from_slice(&image[from..from + out.len()]);
        read_until = read_until.max(offset + out.len() as u64);
        Ok(())
    };
    let found = scan(&superblock, &mut read, &mut |offset| Ok(offset)).unwrap();
    assert_eq!(found.transactions.len(), 1);
    assert_eq!(read_until, superblock.reach);
    assert_eq!(superblock.reach, LOG_START + (1 << 20));
}

/// An image made without a file: superblocks and these transactions.
fn image_of(transactions: &[Vec<Record>]) -> (Vec<u8>, Vec<u64>) {
    let superblock = Superblock {
        version: FORMAT_VERSION,
        uuid: UUID,
        journal_bytes: 64 * 1024,
        epoch: 3,
        generation: 5,
        direct_bytes_max: 0,
        clean: false,
        reach: 64 * 1024,
        home: None,
        carried: None,
    };
    let mut image = vec![0; 64 * 1024];
    superblock.encode(&mut image[..4096]);
    superblock.encode(&mut image[4096..8192]);
    let mut log: Log<PosixHandle> = Log {
        journal: None,
        direct_io: false,
        access: Access::ReadWrite,
        superblock,
        home: None,
        current: [true; SLOTS],
        generation: 5,
        position: LOG_START,
        last: LOG_START,
        sequence: 1,
        pristine: true,
        measured: None,
        buffer: JournalBuffer::default(),
    };
    let mut ends = Vec::new();
    for records in transactions {
        let payload_bytes = codec::encoded_bytes(records);
        let bytes = transaction_bytes(payload_bytes);
        let count = u32::try_from(records.len()).unwrap();
        log.fill_buffer(records, u32::try_from(payload_bytes).unwrap(), count, bytes);
        let start = usize::try_from(log.position).unwrap();
        let content = log.buffer.as_bytes();
        image[start..start + content.len()].copy_from_slice(content);
        log.position += bytes;
        log.sequence += 1;
        ends.push(log.position);
    }
    (image, ends)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Wherever the image is overwritten, a prefix of the transactions is found, or the image is
    /// refused; and a refusal or a loss only if bytes in force were overwritten.
    #[test]
    fn an_overwritten_part_never_changes_content(
        transactions in vec(vec(record(), 0..6), 0..6),
        damage in vec(any::<u8>(), 1..6000),
        place in LOG_START..64 * 1024,
    ) {
        let (mut image, ends) = image_of(&transactions);
        let start = usize::try_from(place).unwrap();
        let length = damage.len().min(image.len() - start);
        image[start..start + length].copy_from_slice(&damage[..length]);
        let before = ends.iter().filter(|&&end| end <= place).count();
        match open_image(&image) {
            Ok(found) => {
                prop_assert!(found.transactions.len() >= before);
                for (at, (sequence, records)) in found.transactions.iter().enumerate() {
                    prop_assert_eq!(*sequence, at as u64 + 1);
                    prop_assert_eq!(records, &transactions[at]);
                }
            }
            Err(StoreError::Corrupt { .. }) => prop_assert!(before < transactions.len()),
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn arbitrary_journals_never_panic(
        mut image in vec(any::<u8>(), 64 * 1024),
        headers in vec((0..16_usize, any::<[u64; 3]>(), any::<[u32; 3]>()), 0..8),
    ) {
        // Random bytes alone would fail the checksums.
        let (whole, _) = image_of(&[]);
        image[..8192].copy_from_slice(&whole[..8192]);
        let seed = crc32c::crc32c(&UUID);
        for (block, [epoch, sequence, kind], [payload_bytes, record_count, payload_crc]) in headers {
            let header = Header {
                version: 1,
                kind: u16::try_from(kind % 3).unwrap(),
                epoch: epoch % 5,
                sequence: sequence % 5,
                payload_bytes: payload_bytes >> (epoch % 32),
                record_count,
                payload_crc,
            };
            header.encode(seed, &mut image[block * 4096..]);
        }
        if let Ok(found) = open_image(&image) {
            prop_assert!(found.transactions.is_empty());
        }
    }
}
