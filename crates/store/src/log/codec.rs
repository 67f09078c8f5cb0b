//! Records as bytes. `docs/FORMAT.md` describes them; keep it true.

#[cfg(test)]
pub(crate) mod tests;
mod wire;

use std::num::NonZeroU64;
use std::sync::Arc;

use mobifs_base::{
    Attributes, ByteRange, DeviceNumber, FileKind, Name, ObjectId, ObjectState, PAGE_BYTES,
    PAGE_BYTES_U64, PageIndex, Timestamp, XattrChange,
};

use crate::log::codec::wire::{
    Counter, Cursor, Filler, Sink, put_bytes, put_signed, put_u8, put_varint,
};
use crate::log::record::Record;

pub(crate) use crate::log::codec::wire::Malformed;

const KNOWN: u8 = 1;
const OBJECT: u8 = 2;
const DENTRY: u8 = 3;
const DENTRY_REMOVED: u8 = 4;
const BYTES: u8 = 5;
const BYTES_FRESH: u8 = 6;
const DIRECT: u8 = 7;
const EXTERNAL: u8 = 8;
const BIND: u8 = 9;
const RENAME_MARK: u8 = 10;
const FOUND: u8 = 11;
const RENAME_MARK_IN_PART: u8 = 12;

/// [`OBJECT`] flag: the object is created by this transaction.
const CREATED: u8 = 1;
/// [`OBJECT`] flag: a symlink target follows.
const HAS_TARGET: u8 = 2;
/// [`OBJECT`] flag: the time of content change is not stored, it equals the access time.
const MTIME_IS_ATIME: u8 = 4;
/// [`OBJECT`] flag: the time of change is not stored, it equals that of content change.
const CTIME_IS_MTIME: u8 = 8;
const OBJECT_FLAGS: u8 = CREATED | HAS_TARGET | MTIME_IS_ATIME | CTIME_IS_MTIME;

/// An id that neither short form can hold: eight bytes follow. The short forms use
/// the numbers below it.
const ID_LONG: u64 = 1 << 49;

/// The encoded size of the records, in sequence.
pub(crate) fn encoded_bytes(records: &[Record]) -> u64 {
    let mut counter = Counter::default();
    records
        .iter()
        .for_each(|record| put_record(&mut counter, record));
    counter.bytes
}

/// Encodes the records; `out` has exactly [`encoded_bytes`] bytes.
pub(crate) fn encode(records: &[Record], out: &mut [u8]) {
    let mut filler = Filler::new(out);
    records
        .iter()
        .for_each(|record| put_record(&mut filler, record));
    debug_assert_eq!(
        filler.rest_bytes(),
        0,
        "records were counted and written alike"
    );
}

/// Whether [`decode`] takes the record once it is encoded. Content that no valid page has must not
/// reach the journal, because the journal could not be read again.
pub(crate) fn is_encodable(record: &Record) -> bool {
    match record {
        Record::Bytes { index, runs, .. } => {
            is_page(*index)
                && runs
                    .iter()
                    .all(|(offset, bytes)| usize::from(*offset) + bytes.len() <= PAGE_BYTES)
        }
        _ => true,
    }
}

/// Decodes exactly `count` records that fill `bytes`.
pub(crate) fn decode(bytes: &[u8], count: u32) -> Result<Vec<Record>, Malformed> {
    let mut cursor = Cursor::new(bytes);
    // The vector grows as records are decoded: `count` may be forged.
    let mut records = Vec::new();
    for _ in 0..count {
        records.push(take_record(&mut cursor)?);
    }
    if !cursor.is_empty() {
        return Err(Malformed("bytes are left after the last record"));
    }
    Ok(records)
}

fn is_page(index: PageIndex) -> bool {
    index.0 <= u64::MAX / PAGE_BYTES_U64
}

fn put_record(sink: &mut impl Sink, record: &Record) {
    match record {
        Record::Known {
            id,
            inode,
            kind,
            parent,
            name,
        } => {
            put_u8(sink, KNOWN);
            put_id(sink, *id);
            put_varint(sink, *inode);
            put_u8(sink, kind_number(*kind));
            put_id(sink, *parent);
            put_bytes(sink, name);
        }
        Record::Object(state) => put_object(sink, state),
        Record::Dentry {
            parent,
            name,
            child,
        } => put_dentry(sink, *parent, name, *child),
        Record::Bytes {
            object,
            index,
            fresh,
            runs,
        } => {
            put_u8(sink, if *fresh { BYTES_FRESH } else { BYTES });
            put_id(sink, *object);
            put_varint(sink, index.0);
            put_varint(sink, runs.len() as u64);
            for (offset, bytes) in runs {
                put_varint(sink, u64::from(*offset));
                put_bytes(sink, bytes);
            }
        }
        Record::Direct { object, range } => {
            put_u8(sink, DIRECT);
            put_id(sink, *object);
            put_range(sink, *range);
        }
        Record::External {
            file,
            bytes,
            records,
            crc32c,
        } => {
            put_u8(sink, EXTERNAL);
            put_varint(sink, *file);
            put_varint(sink, *bytes);
            put_varint(sink, u64::from(*records));
            put_varint(sink, u64::from(*crc32c));
        }
        Record::Bind { id, inode } => {
            put_u8(sink, BIND);
            put_id(sink, *id);
            put_varint(sink, *inode);
        }
        Record::RenameMark => put_u8(sink, RENAME_MARK),
        Record::RenameMarkInPart => put_u8(sink, RENAME_MARK_IN_PART),
        Record::Found { id, inode } => {
            put_u8(sink, FOUND);
            put_id(sink, *id);
            put_varint(sink, inode.map_or(0, NonZeroU64::get));
        }
    }
}

fn put_dentry(sink: &mut impl Sink, parent: ObjectId, name: &Name, child: Option<ObjectId>) {
    let tag = match child {
        Some(_) => DENTRY,
        None => DENTRY_REMOVED,
    };
    put_u8(sink, tag);
    put_id(sink, parent);
    put_bytes(sink, name.as_bytes());
    if let Some(child) = child {
        put_id(sink, child);
    }
}

fn take_record(cursor: &mut Cursor<'_>) -> Result<Record, Malformed> {
    Ok(match cursor.u8()? {
        KNOWN => Record::Known {
            id: take_id(cursor)?,
            inode: cursor.varint()?,
            kind: take_kind(cursor)?,
            parent: take_id(cursor)?,
            name: cursor.bytes()?.to_vec(),
        },
        OBJECT => Record::Object(take_object(cursor)?),
        tag @ (DENTRY | DENTRY_REMOVED) => Record::Dentry {
            parent: take_id(cursor)?,
            name: Name::new(cursor.bytes()?)
                .map_err(|_| Malformed("a directory entry has an impossible name"))?,
            child: (tag == DENTRY).then(|| take_id(cursor)).transpose()?,
        },
        tag @ (BYTES | BYTES_FRESH) => Record::Bytes {
            object: take_id(cursor)?,
            index: take_page_index(cursor)?,
            fresh: tag == BYTES_FRESH,
            runs: take_list(cursor, take_run)?,
        },
        DIRECT => Record::Direct {
            object: take_id(cursor)?,
            range: take_range(cursor)?,
        },
        EXTERNAL => Record::External {
            file: cursor.varint()?,
            bytes: cursor.varint()?,
            records: take_u32(cursor)?,
            crc32c: take_u32(cursor)?,
        },
        BIND => Record::Bind {
            id: take_id(cursor)?,
            inode: cursor.varint()?,
        },
        RENAME_MARK => Record::RenameMark,
        RENAME_MARK_IN_PART => Record::RenameMarkInPart,
        FOUND => Record::Found {
            id: take_id(cursor)?,
            inode: NonZeroU64::new(cursor.varint()?),
        },
        _ => return Err(Malformed("a record is of an unknown kind")),
    })
}

fn put_object(sink: &mut impl Sink, state: &ObjectState) {
    let attributes = &state.attributes;
    let flags = [
        (CREATED, state.created),
        (HAS_TARGET, state.symlink_target.is_some()),
        (MTIME_IS_ATIME, attributes.mtime == attributes.atime),
        (CTIME_IS_MTIME, attributes.ctime == attributes.mtime),
    ]
    .iter()
    .fold(
        0,
        |flags, &(flag, set)| if set { flags | flag } else { flags },
    );
    put_u8(sink, OBJECT);
    put_id(sink, state.id);
    put_u8(sink, flags);
    put_u8(sink, kind_number(attributes.kind));
    put_varint(sink, u64::from(attributes.mode));
    put_varint(sink, u64::from(attributes.uid));
    put_varint(sink, u64::from(attributes.gid));
    put_varint(sink, u64::from(attributes.rdev.0));
    put_varint(sink, attributes.size);
    put_varint(sink, u64::from(attributes.nlink));
    put_time(sink, attributes.atime);
    if flags & MTIME_IS_ATIME == 0 {
        put_time(sink, attributes.mtime);
    }
    if flags & CTIME_IS_MTIME == 0 {
        put_time(sink, attributes.ctime);
    }
    if let Some(target) = &state.symlink_target {
        put_bytes(sink, target);
    }
    for ranges in [&state.zeroed, &state.allocated] {
        put_varint(sink, ranges.len() as u64);
        ranges.iter().for_each(|&range| put_range(sink, range));
    }
    put_varint(sink, state.xattrs.len() as u64);
    for (name, value) in &state.xattrs {
        put_bytes(sink, name);
        // One more than the length, because 0 means "removed".
        put_varint(
            sink,
            value.as_ref().map_or(0, |value| value.len() as u64 + 1),
        );
        if let Some(value) = value {
            sink.put(value);
        }
    }
}

fn take_object(cursor: &mut Cursor<'_>) -> Result<ObjectState, Malformed> {
    let id = take_id(cursor)?;
    let flags = cursor.u8()?;
    if flags & !OBJECT_FLAGS != 0 {
        return Err(Malformed("an object has unknown flags"));
    }
    let attributes = take_attributes(cursor, flags)?;
    let symlink_target = if flags & HAS_TARGET == 0 {
        None
    } else {
        Some(Arc::from(cursor.bytes()?))
    };
    Ok(ObjectState {
        id,
        created: flags & CREATED != 0,
        attributes,
        symlink_target,
        zeroed: take_list(cursor, take_range)?,
        allocated: take_list(cursor, take_range)?,
        xattrs: take_list(cursor, take_xattr)?,
    })
}

fn take_attributes(cursor: &mut Cursor<'_>, flags: u8) -> Result<Attributes, Malformed> {
    let kind = take_kind(cursor)?;
    let mode = cursor.varint_as()?;
    let uid = cursor.varint_as()?;
    let gid = cursor.varint_as()?;
    let rdev = DeviceNumber(cursor.varint_as()?);
    let size = cursor.varint()?;
    let nlink = cursor.varint_as()?;
    let atime = take_time(cursor)?;
    let mtime = if flags & MTIME_IS_ATIME == 0 {
        take_time(cursor)?
    } else {
        atime
    };
    let ctime = if flags & CTIME_IS_MTIME == 0 {
        take_time(cursor)?
    } else {
        mtime
    };
    Ok(Attributes {
        kind,
        mode,
        uid,
        gid,
        rdev,
        size,
        nlink,
        atime,
        mtime,
        ctime,
    })
}

fn take_xattr(cursor: &mut Cursor<'_>) -> Result<XattrChange, Malformed> {
    let name = Arc::from(cursor.bytes()?);
    let value = match cursor.varint()? {
        0 => None,
        more => Some(Arc::from(cursor.take(more - 1)?)),
    };
    Ok((name, value))
}

/// A count, then that many items. Every item consumes input, so a wrong count ends in an error
/// after at most as many items as there are bytes.
fn take_list<'a, T>(
    cursor: &mut Cursor<'a>,
    take: impl Fn(&mut Cursor<'a>) -> Result<T, Malformed>,
) -> Result<Vec<T>, Malformed> {
    let count = cursor.varint()?;
    let mut items = Vec::new();
    for _ in 0..count {
        items.push(take(cursor)?);
    }
    Ok(items)
}

fn take_run(cursor: &mut Cursor<'_>) -> Result<(u16, Vec<u8>), Malformed> {
    let offset: u16 = cursor.varint_as()?;
    let bytes = cursor.bytes()?;
    if usize::from(offset) + bytes.len() > PAGE_BYTES {
        return Err(Malformed("changed bytes lie outside their page"));
    }
    Ok((offset, bytes.to_vec()))
}

fn take_page_index(cursor: &mut Cursor<'_>) -> Result<PageIndex, Malformed> {
    let index = PageIndex(cursor.varint()?);
    if !is_page(index) {
        return Err(Malformed("a page lies after the largest offset"));
    }
    Ok(index)
}

/// Ids below [`ObjectId::FIRST_NEW`] and the same number of ids from there on have short forms (the
/// lowest bit distinguishes them), because nearly all ids are among the first of either kind.
fn put_id(sink: &mut impl Sink, id: ObjectId) {
    const FIRST_NEW: u64 = ObjectId::FIRST_NEW.0;
    match id.0 / FIRST_NEW {
        high @ (0 | 1) => put_varint(sink, (id.0 % FIRST_NEW) << 1 | high),
        _ => {
            put_varint(sink, ID_LONG);
            sink.put(&id.0.to_le_bytes());
        }
    }
}

fn take_id(cursor: &mut Cursor<'_>) -> Result<ObjectId, Malformed> {
    match cursor.varint()? {
        short if short < ID_LONG => {
            Ok(ObjectId((short >> 1) + (short & 1) * ObjectId::FIRST_NEW.0))
        }
        ID_LONG => {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(cursor.take(8)?);
            Ok(ObjectId(u64::from_le_bytes(bytes)))
        }
        _ => Err(Malformed("an object id has an unknown form")),
    }
}

/// Start, then one more than the end, so that "without end" is 0.
fn put_range(sink: &mut impl Sink, range: ByteRange) {
    put_varint(sink, range.start);
    put_varint(sink, range.end.wrapping_add(1));
}

fn take_range(cursor: &mut Cursor<'_>) -> Result<ByteRange, Malformed> {
    Ok(ByteRange {
        start: cursor.varint()?,
        end: cursor.varint()?.wrapping_sub(1),
    })
}

fn put_time(sink: &mut impl Sink, time: Timestamp) {
    put_signed(sink, time.seconds);
    put_varint(sink, u64::from(time.nanoseconds));
}

fn take_time(cursor: &mut Cursor<'_>) -> Result<Timestamp, Malformed> {
    Ok(Timestamp {
        seconds: cursor.signed()?,
        nanoseconds: cursor.varint_as()?,
    })
}

fn take_u32(cursor: &mut Cursor<'_>) -> Result<u32, Malformed> {
    u32::try_from(cursor.varint()?).map_err(|_| Malformed("a number is too large"))
}

fn kind_number(kind: FileKind) -> u8 {
    match kind {
        FileKind::Regular => 1,
        FileKind::Directory => 2,
        FileKind::Symlink => 3,
        FileKind::Fifo => 4,
        FileKind::Socket => 5,
        FileKind::CharDevice => 6,
        FileKind::BlockDevice => 7,
    }
}

fn take_kind(cursor: &mut Cursor<'_>) -> Result<FileKind, Malformed> {
    Ok(match cursor.u8()? {
        1 => FileKind::Regular,
        2 => FileKind::Directory,
        3 => FileKind::Symlink,
        4 => FileKind::Fifo,
        5 => FileKind::Socket,
        6 => FileKind::CharDevice,
        7 => FileKind::BlockDevice,
        _ => return Err(Malformed("an object is of an unknown kind")),
    })
}
