//! Records that a journal takes, made from any bytes.

use std::sync::Arc;

use std::num::NonZeroU64;

use arbitrary::{Result, Unstructured};
use mobifs_base::{
    Attributes, ByteRange, DeviceNumber, FileKind, Name, ObjectId, ObjectState, PAGE_BYTES,
    PAGE_BYTES_U64, PageIndex, Timestamp,
};
use mobifs_store::fuzzing::{CopiedBytes, Record};

const KINDS: [FileKind; 7] = [
    FileKind::Regular,
    FileKind::Directory,
    FileKind::Symlink,
    FileKind::Fifo,
    FileKind::Socket,
    FileKind::CharDevice,
    FileKind::BlockDevice,
];
/// Names that objects of a history have, and some that are traps.
const NAMES: [&[u8]; 8] = [
    b"a", b"b", b"f", b"new", b".mobifs", b"stage", b"limbo", b"journal",
];
const RECORDS_MAX: usize = 24;
const LIST_MAX: usize = 3;
const BYTES_MAX: usize = 40;

/// Some records.
pub(super) fn records(u: &mut Unstructured<'_>) -> Result<Vec<Record>> {
    let mut records = Vec::new();
    while records.len() < RECORDS_MAX && !u.is_empty() {
        records.push(record(u)?);
    }
    Ok(records)
}

fn record(u: &mut Unstructured<'_>) -> Result<Record> {
    Ok(match u.int_in_range(0..=10)? {
        0 => Record::Known {
            id: id(u)?,
            inode: number(u)?,
            kind: *u.choose(&KINDS)?,
            parent: id(u)?,
            name: if u.ratio(1, 8)? {
                bytes(u)?
            } else {
                name(u)?.as_bytes().to_vec()
            },
        },
        1..=3 => Record::Object(object(u)?),
        4 | 5 => Record::Dentry {
            parent: id(u)?,
            name: name(u)?,
            child: if u.ratio(1, 4)? { None } else { Some(id(u)?) },
        },
        6 => Record::Bytes {
            object: id(u)?,
            index: PageIndex(number(u)? % (u64::MAX / PAGE_BYTES_U64 + 1)),
            fresh: u.arbitrary()?,
            runs: list(u, run)?,
        },
        7 => Record::Direct {
            object: id(u)?,
            range: range(u)?,
        },
        8 => Record::External {
            file: number(u)?,
            bytes: number(u)?,
            records: u.arbitrary()?,
            crc32c: u.arbitrary()?,
        },
        9 => Record::Copied {
            object: id(u)?,
            index: PageIndex(number(u)? % (u64::MAX / PAGE_BYTES_U64 + 1)),
            fresh: u.arbitrary()?,
            copies: list(u, copied)?,
            runs: list(u, run)?,
            crc32c: u.arbitrary()?,
        },
        // It is the last one where a mount writes it.
        _ if u.is_empty() => Record::RenameMark,
        _ => of_apply(id(u)?, number(u)?),
    })
}

/// One of the records that say which inode an object has, or how far an apply has come.
fn of_apply(id: ObjectId, inode: u64) -> Record {
    if inode % 16 == 13 {
        Record::Materialized
    } else if inode % 16 == 9 {
        Record::RenameMarkInPart
    } else if inode % 4 == 3 {
        let inode = NonZeroU64::new(inode / 4);
        Record::Found { id, inode }
    } else {
        Record::Bind { id, inode }
    }
}

fn object(u: &mut Unstructured<'_>) -> Result<ObjectState> {
    let atime = time(u)?;
    let mtime = if u.arbitrary()? { atime } else { time(u)? };
    let ctime = if u.arbitrary()? { mtime } else { time(u)? };
    Ok(ObjectState {
        id: id(u)?,
        created: u.arbitrary()?,
        attributes: Attributes {
            kind: *u.choose(&KINDS)?,
            mode: u.arbitrary()?,
            uid: u.arbitrary()?,
            gid: u.arbitrary()?,
            rdev: DeviceNumber(u.arbitrary()?),
            size: number(u)?,
            nlink: u.arbitrary()?,
            atime,
            mtime,
            ctime,
        },
        symlink_target: shared(u)?,
        zeroed: list(u, range)?,
        allocated: list(u, range)?,
        xattrs: list(u, |u| Ok((Arc::from(bytes(u)?), shared(u)?)))?,
    })
}

/// Mostly one of few, so that records meet; else anything.
fn id(u: &mut Unstructured<'_>) -> Result<ObjectId> {
    Ok(match u.int_in_range(0..=7)? {
        0 => ObjectId(u.arbitrary()?),
        1 => ObjectId::ROOT,
        2..=4 => ObjectId(u.int_in_range(2..=24)?),
        _ => ObjectId(ObjectId::FIRST_NEW.0 + 2 * u.int_in_range(0..=4)?),
    })
}

/// Numbers of every length: small ones name inodes and offsets that exist.
fn number(u: &mut Unstructured<'_>) -> Result<u64> {
    let shift: u32 = u.int_in_range(0..=63)?;
    Ok(u.arbitrary::<u64>()? >> shift)
}

fn range(u: &mut Unstructured<'_>) -> Result<ByteRange> {
    let (start, end) = (number(u)?, number(u)?);
    Ok(match u.int_in_range(0..=3)? {
        0 => ByteRange {
            start,
            end: u64::MAX,
        },
        1 => ByteRange { start, end },
        _ => ByteRange {
            start: start % 16 * PAGE_BYTES_U64,
            end: (start % 16 + end % 16) * PAGE_BYTES_U64,
        },
    })
}

fn time(u: &mut Unstructured<'_>) -> Result<Timestamp> {
    Ok(Timestamp::new(u.arbitrary()?, u.arbitrary()?))
}

fn name(u: &mut Unstructured<'_>) -> Result<Name> {
    let fallback = Name::first();
    if u.ratio(7, 8)? {
        return Ok(Name::new(u.choose(&NAMES)?).unwrap_or(fallback));
    }
    Ok(Name::new(&bytes(u)?).unwrap_or(fallback))
}

fn run(u: &mut Unstructured<'_>) -> Result<(u16, Vec<u8>)> {
    let offset: u16 = u.int_in_range(0..=4096)?;
    let mut bytes = bytes(u)?;
    bytes.truncate(PAGE_BYTES - usize::from(offset));
    Ok((offset, bytes))
}

fn copied(u: &mut Unstructured<'_>) -> Result<CopiedBytes> {
    let offset: u16 = u.int_in_range(0..=4096)?;
    Ok(CopiedBytes {
        offset,
        length: u.int_in_range(0..=4096 - offset)?,
        source: id(u)?,
        from: number(u)?.min(u64::MAX - PAGE_BYTES_U64),
    })
}

fn shared(u: &mut Unstructured<'_>) -> Result<Option<Arc<[u8]>>> {
    Ok(if u.arbitrary()? {
        Some(Arc::from(bytes(u)?))
    } else {
        None
    })
}

fn bytes(u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let length = u.int_in_range(0..=BYTES_MAX)?;
    Ok(u.bytes(length.min(u.len()))?.to_vec())
}

fn list<T>(
    u: &mut Unstructured<'_>,
    mut item: impl FnMut(&mut Unstructured<'_>) -> Result<T>,
) -> Result<Vec<T>> {
    (0..u.int_in_range(0..=LIST_MAX)?)
        .map(|_| item(u))
        .collect()
}
