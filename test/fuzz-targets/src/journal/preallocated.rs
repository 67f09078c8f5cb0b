//! The list of preallocated files: what is read is what was written, byte for byte.

use mobifs_store::fuzzing::{forge_preallocated, recode_preallocated};

use crate::{Target, Verdict};

const UUID: [u8; 16] = [7; 16];
/// Where the checksum is: an input without a valid one would not get past it.
const CRC: std::ops::Range<usize> = 44..48;

/// Bytes as a list, as they are and with the checksum that they should have.
pub const PREALLOCATED_LIST: Target = Target {
    name: "preallocated_list",
    run: read_list,
    seeds,
};

fn read_list(input: &[u8]) -> Verdict {
    let as_it_is = read(input);
    let mut sealed = input.to_vec();
    if sealed.len() < CRC.end {
        return as_it_is;
    }
    let length = u32::from_le_bytes([sealed[40], sealed[41], sealed[42], sealed[43]]) as usize;
    let end = CRC.end.saturating_add(length).min(sealed.len());
    let crc = crc32c::crc32c_append(crc32c::crc32c(&sealed[..CRC.start]), &sealed[CRC.end..end]);
    sealed[CRC].copy_from_slice(&crc.to_le_bytes());
    match read(&sealed) {
        Verdict::Taken => Verdict::Taken,
        Verdict::Refused => as_it_is,
    }
}

fn read(bytes: &[u8]) -> Verdict {
    let Ok(again) = recode_preallocated(bytes, UUID) else {
        return Verdict::Refused;
    };
    // A flag may be any byte that is not 0, and nanoseconds are clamped.
    let twice = recode_preallocated(&again, UUID);
    assert_eq!(twice.as_ref(), Ok(&again), "what was written is read");
    assert!(
        recode_preallocated(&again, [8; 16]).is_err(),
        "another store's"
    );
    assert!(
        recode_preallocated(&again[..again.len() - 1], UUID).is_err(),
        "a part is refused"
    );
    Verdict::Taken
}

fn seeds() -> Vec<Vec<u8>> {
    [0, 1, 5, 256]
        .map(|files| forge_preallocated(UUID, files))
        .to_vec()
}
