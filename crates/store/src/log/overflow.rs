//! Transactions that the journal is too small for: their records go to a file of their
//! own, durable before the journal mentions it.

use std::collections::HashSet;
use std::io;

use mobifs_base::{ByteRange, PAGE_BYTES};

use crate::StoreError;
use crate::log::codec;
use crate::log::record::Record;
use crate::lower::{Create, Lower};

/// Largest single write.
const WRITE_BYTES_MAX: usize = 1 << 20;
/// A file of more than this must have blocks on the device …
const UNCHECKED_BYTES_MAX: u64 = 64 << 20;
/// … for at least its size divided by this, or it was never written: the lower filesystem may
/// compress, but not so well.
const COMPRESSION_MAX: u64 = 64;
/// No mount lives so long that it gives a file a higher number, and with those that it gives from here on
/// none can be exceeded.
const NUMBER_MAX: u64 = u64::MAX / 2;

/// An overflow file, as the journal mentions it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Overflow {
    /// Its number: `stage/t<file>`.
    pub(crate) file: u64,
    /// Size of the records in it, from its start.
    pub(crate) bytes: u64,
    /// Their number.
    pub(crate) records: u32,
    /// CRC32C of these bytes.
    pub(crate) crc32c: u32,
}

impl From<Overflow> for Record {
    fn from(written: Overflow) -> Self {
        Self::External {
            file: written.file,
            bytes: written.bytes,
            records: written.records,
            crc32c: written.crc32c,
        }
    }
}

/// The name of overflow file number `file` in `stage`.
pub(crate) fn file_name(file: u64) -> String {
    format!("t{file}")
}

/// Writes records to overflow file number `file` in `stage`, durably; returns what stands for them,
/// and the bytes written. After a failure the content of the file is not valid.
pub(crate) fn write<L: Lower>(
    lower: &L,
    stage: &L::Handle,
    file: u64,
    records: &[Record],
) -> Result<(Overflow, u64), StoreError> {
    let name = file_name(file);
    let failed = || StoreError::lower(format!("writing overflow file {name}"));
    let count = u32::try_from(records.len())
        .map_err(|_| failed()(io::Error::from(io::ErrorKind::FileTooLarge)))?;
    let length = usize::try_from(codec::encoded_bytes(records))
        .map_err(|_| failed()(io::Error::from(io::ErrorKind::FileTooLarge)))?;
    let mut content = vec![0; length];
    codec::encode(records, &mut content);
    write_file(lower, stage, &name, &content).map_err(failed())?;
    let written = Overflow {
        file,
        bytes: length as u64,
        records: count,
        crc32c: crc32c::crc32c(&content),
    };
    Ok((written, length.next_multiple_of(PAGE_BYTES) as u64))
}

/// After a failure to write overflow file number `file`: releases its blocks, but not its inode. It
/// may have been a spare file, and no other may be made where inodes have run out. It is there for
/// the next attempt, or becomes spare again when `stage` is swept.
pub(crate) fn give_up<L: Lower>(lower: &L, stage: &L::Handle, file: u64) {
    let name = file_name(file);
    let emptied = lower
        .open(stage, name.as_bytes(), true)
        .and_then(|handle| lower.truncate(&handle, 0));
    match emptied {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::debug!(%error, "cannot empty overflow file {name}; deleting it");
            let _gone = lower.unlink(stage, name.as_bytes());
        }
        _ => {}
    }
}

/// Makes overflow file number `file`, with room for so many bytes of records, if this filesystem
/// allocates ahead. Where that fails, what there is of the file means nothing.
pub(crate) fn keep_room<L: Lower>(
    lower: &L,
    stage: &L::Handle,
    file: u64,
    bytes: u64,
) -> Result<(), StoreError> {
    let name = file_name(file);
    // XFS without a free block refuses to preallocate also what is allocated.
    let has_room = |handle: &L::Handle| {
        let there = lower.stat(handle);
        there.is_ok_and(|stat| stat.allocated_bytes >= bytes)
    };
    let kept = create(lower, stage, &name).and_then(|handle| {
        match lower.preallocate(&handle, ByteRange::new(0, bytes)) {
            Err(error) if error.kind() == io::ErrorKind::StorageFull && has_room(&handle) => Ok(()),
            kept => kept,
        }
    });
    match kept {
        Err(error) if error.kind() != io::ErrorKind::Unsupported => {
            let action = format!("keeping room for overflow file {name}");
            Err(StoreError::lower(action)(error))
        }
        _ => Ok(()),
    }
}

/// The overflow file of this name, open for writing.
fn create<L: Lower>(lower: &L, stage: &L::Handle, name: &str) -> io::Result<L::Handle> {
    match lower.create(stage, name.as_bytes(), Create::Regular) {
        // An earlier attempt failed, or the file was preallocated; its content is overwritten.
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    lower.open(stage, name.as_bytes(), true)
}

fn write_file<L: Lower>(
    lower: &L,
    stage: &L::Handle,
    name: &str,
    content: &[u8],
) -> io::Result<()> {
    let handle = create(lower, stage, name)?;
    for (number, chunk) in content.chunks(WRITE_BYTES_MAX).enumerate() {
        lower.write_at(&handle, chunk, (number * WRITE_BYTES_MAX) as u64)?;
    }
    lower.sync(&handle)?;
    lower.sync(stage)
}

/// Replaces references to overflow files by the files' records; returns the first free file number.
/// Each file belongs to one transaction: a forged journal that refers to one many times must not
/// fill the memory.
pub(crate) fn expand<L: Lower>(
    lower: &L,
    stage: &L::Handle,
    transactions: &mut [(u64, Vec<Record>)],
) -> Result<u64, StoreError> {
    let mut free = 1;
    let mut read_files = HashSet::new();
    for (sequence, records) in transactions {
        if let [
            Record::External {
                file,
                bytes,
                records: count,
                crc32c,
            },
        ] = records[..]
        {
            let refused = |detail: &str| Err(damaged(file, *sequence, detail.to_owned()));
            if !(1..=NUMBER_MAX).contains(&file) {
                return refused("no mount gives a file this number");
            }
            free = free.max(file + 1);
            if !read_files.insert(file) {
                return refused("an earlier transaction has it already");
            }
            *records = read(lower, stage, file, (bytes, count, crc32c), *sequence)?;
        }
    }
    Ok(free)
}

fn damaged(file: u64, sequence: u64, detail: String) -> StoreError {
    let name = file_name(file);
    StoreError::Corrupt {
        what: format!("overflow file {name} of journal transaction {sequence}"),
        detail,
    }
}

fn read<L: Lower>(
    lower: &L,
    stage: &L::Handle,
    file: u64,
    (bytes, count, crc32c): (u64, u32, u32),
    sequence: u64,
) -> Result<Vec<Record>, StoreError> {
    let name = file_name(file);
    let damaged = |detail: String| damaged(file, sequence, detail);
    let handle = lower.open(stage, name.as_bytes(), false);
    let handle = handle.map_err(|error| damaged(format!("it cannot be opened: {error}")))?;
    let stat = lower
        .stat(&handle)
        .map_err(|error| damaged(error.to_string()))?;
    let size = stat.size;
    if bytes > size {
        return Err(damaged(format!("it has {size} of {bytes} bytes")));
    }
    let written_max = stat.allocated_bytes.saturating_mul(COMPRESSION_MAX);
    if bytes > written_max.max(UNCHECKED_BYTES_MAX) {
        let allocated_bytes = stat.allocated_bytes;
        return Err(damaged(format!(
            "it has {bytes} bytes, of which {allocated_bytes} were ever written"
        )));
    }
    let too_large = || damaged(format!("its {bytes} bytes do not fit in memory"));
    let length = usize::try_from(bytes).map_err(|_| too_large())?;
    let mut content = Vec::new();
    content.try_reserve_exact(length).map_err(|_| too_large())?;
    content.resize(length, 0);
    let read = lower.read_at(&handle, &mut content, 0);
    let read = read.map_err(|error| damaged(format!("it cannot be read: {error}")))?;
    if read != length || crc32c::crc32c(&content) != crc32c {
        return Err(damaged("its checksum does not match".to_owned()));
    }
    codec::decode(&content, count).map_err(|error| damaged(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lower::PosixLower;

    #[test]
    fn a_file_that_only_claims_to_be_large_is_not_read() {
        let directory = tempfile::tempdir().unwrap();
        let claimed: u64 = 1 << 40;
        let file = std::fs::File::create(directory.path().join("t1")).unwrap();
        file.set_len(claimed).unwrap();
        let external = Record::External {
            file: 1,
            bytes: claimed,
            records: 1,
            crc32c: 0,
        };
        let lower = PosixLower::open(directory.path()).unwrap();
        let stage = lower.root().unwrap();
        let expanded = expand(&lower, &stage, &mut [(1, vec![external])]);
        let error = expanded.unwrap_err().to_string();
        assert!(error.contains("0 were ever written"), "{error}");
    }
    #[test]
    fn a_file_that_two_transactions_have_is_read_once() {
        let directory = tempfile::tempdir().unwrap();
        let lower = PosixLower::open(directory.path()).unwrap();
        let stage = lower.root().unwrap();
        let (external, _) = write(&lower, &stage, 1, &[Record::RenameMark]).unwrap();
        let external = Record::from(external);
        let mut once = [(1, vec![external.clone()])];
        assert_eq!(expand(&lower, &stage, &mut once).unwrap(), 2);
        assert_eq!(once, [(1, vec![Record::RenameMark])]);
        let mut twice = [(1, vec![external.clone()]), (2, vec![external])];
        let error = expand(&lower, &stage, &mut twice).unwrap_err().to_string();
        assert!(error.contains("t1 of journal transaction 2"), "{error}");
    }
}
