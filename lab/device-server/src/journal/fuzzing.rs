//! Journals with right checksums and any content, for the fuzz targets.

use mobifs_base::VirtualNs;
use zerocopy::IntoBytes;

use super::record::{FileHeader, Kind, Record};

/// A record that need not make sense.
#[derive(Clone, Debug)]
pub struct ForgedRecord {
    /// Which of the kinds, by number.
    pub kind: u8,
    /// In bytes.
    pub offset: u64,
    /// In bytes.
    pub bytes: u64,
    /// When it was asked for, in nanoseconds.
    pub at_ns: u64,
    /// When it was done, in nanoseconds.
    pub done_at_ns: u64,
    /// What follows the record.
    pub data: Vec<u8>,
}

/// A journal of these records, as a file holds it.
pub fn forge_journal(device_bytes: u64, records: &[ForgedRecord]) -> Vec<u8> {
    const KINDS: [Kind; 6] = [
        Kind::Write,
        Kind::DurableWrite,
        Kind::Discard,
        Kind::Flush,
        Kind::Cut,
        Kind::AfterCut,
    ];
    let mut bytes = FileHeader::new(device_bytes).as_bytes().to_vec();
    for forged in records {
        let record = Record {
            kind: KINDS[usize::from(forged.kind) % KINDS.len()],
            offset: forged.offset,
            bytes: forged.bytes,
            at: VirtualNs(forged.at_ns),
            done_at: VirtualNs(forged.done_at_ns),
        };
        bytes.extend_from_slice(record.encode(&forged.data).as_bytes());
        bytes.extend_from_slice(&forged.data);
    }
    bytes
}
