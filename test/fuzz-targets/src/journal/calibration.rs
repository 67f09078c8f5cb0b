//! What was measured of a device: what is read is what was written, byte for byte.

use mobifs_store::fuzzing::{forge_calibration, recode_calibration};

use crate::{Target, Verdict};

const UUID: [u8; 16] = [7; 16];
/// Where the length of the body and the checksum are: an input without valid ones would not get past
/// them.
const LENGTH: std::ops::Range<usize> = 28..32;
const CRC: std::ops::Range<usize> = 32..36;

/// Bytes as a calibration, as they are and with the length and the checksum that they should have.
pub const CALIBRATION: Target = Target {
    name: "calibration",
    run: read_calibration,
    seeds,
};

fn read_calibration(input: &[u8]) -> Verdict {
    let as_it_is = read(input);
    let mut sealed = input.to_vec();
    let Some(length) = sealed.len().checked_sub(CRC.end) else {
        return as_it_is;
    };
    let length = u32::try_from(length).unwrap_or(u32::MAX);
    sealed[LENGTH].copy_from_slice(&length.to_le_bytes());
    let crc = crc32c::crc32c_append(crc32c::crc32c(&sealed[..CRC.start]), &sealed[CRC.end..]);
    sealed[CRC].copy_from_slice(&crc.to_le_bytes());
    match read(&sealed) {
        Verdict::Taken => Verdict::Taken,
        Verdict::Refused => as_it_is,
    }
}

fn read(bytes: &[u8]) -> Verdict {
    let Ok(again) = recode_calibration(bytes, UUID) else {
        return Verdict::Refused;
    };
    // A flag may be any byte that is not 0.
    let twice = recode_calibration(&again, UUID);
    assert_eq!(twice.as_ref(), Ok(&again), "what was written is read");
    assert_eq!(again.len(), bytes.len(), "nothing is passed over");
    assert!(
        recode_calibration(&again, [8; 16]).is_err(),
        "another store's"
    );
    assert!(
        recode_calibration(&again[..again.len() - 1], UUID).is_err(),
        "a part is refused"
    );
    Verdict::Taken
}

fn seeds() -> Vec<Vec<u8>> {
    [0, 1, 7, 32]
        .map(|sizes| forge_calibration(UUID, sizes))
        .to_vec()
}
