//! Records as bytes: whatever is read can be written and read again, and is never longer
//! then; and the other way round.

use arbitrary::Unstructured;
use mobifs_store::fuzzing::{decode, encode, is_encodable};

use super::arbitrary_record;
use crate::noise::noises;
use crate::{Target, Verdict};

/// Bytes as records. The first byte is their number.
pub const JOURNAL_RECORDS: Target = Target {
    name: "journal_records",
    run: read_records,
    seeds,
};

/// Records as bytes.
pub const JOURNAL_TRANSACTION: Target = Target {
    name: "journal_transaction",
    run: write_records,
    seeds: noises,
};

fn read_records(input: &[u8]) -> Verdict {
    let Some((&count, bytes)) = input.split_first() else {
        return Verdict::Refused;
    };
    let Ok(records) = decode(bytes, u32::from(count)) else {
        return Verdict::Refused;
    };
    assert_eq!(records.len(), usize::from(count), "so many were asked for");
    assert!(records.iter().all(is_encodable), "{records:?}");
    let again = encode(&records);
    assert!(again.len() <= bytes.len(), "no form is shorter than ours");
    assert_eq!(decode(&again, u32::from(count)).as_ref(), Ok(&records));
    if let Some((_, cut)) = bytes.split_last() {
        assert!(decode(cut, u32::from(count)).is_err(), "a part is refused");
    }
    Verdict::Taken
}

fn write_records(input: &[u8]) -> Verdict {
    let Ok(records) = arbitrary_record::records(&mut Unstructured::new(input)) else {
        return Verdict::Refused;
    };
    assert!(records.iter().all(is_encodable), "{records:?}");
    let bytes = encode(&records);
    let count = records.len() as u32;
    assert_eq!(decode(&bytes, count).as_ref(), Ok(&records));
    assert!(
        decode(&bytes, count + 1).is_err(),
        "one too many is refused"
    );
    Verdict::Taken
}

fn seeds() -> Vec<Vec<u8>> {
    let records = noises().into_iter().filter_map(|noise| {
        let records = arbitrary_record::records(&mut Unstructured::new(&noise)).ok()?;
        let mut bytes = vec![records.len() as u8];
        bytes.extend(encode(&records));
        Some(bytes)
    });
    records.collect()
}
