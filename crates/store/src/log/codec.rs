//! Records as bytes. `docs/FORMAT.md` describes them; keep it true.

mod sink;
#[cfg(test)]
pub(crate) mod tests;

use std::num::NonZeroU64;
use std::sync::Arc;

use mobifs_base::codec::{CodecError, Reader, Sink};
use mobifs_base::{
    Attributes, ByteRange, DeviceNumber, FileKind, Name, ObjectId, ObjectState, PAGE_BYTES,
    PAGE_BYTES_U64, PageIndex, Timestamp, XattrChange,
};

use crate::log::codec::sink::{Counter, Filler};
use crate::log::record::{CopiedBytes, Record};

/// Why bytes are not what this program writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Malformed(pub(crate) &'static str);

impl From<CodecError> for Malformed {
    fn from(error: CodecError) -> Self {
        Self(error.as_str())
    }
}

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
const COPIED: u8 = 13;
const COPIED_FRESH: u8 = 14;
const MATERIALIZED: u8 = 15;

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
        Record::Bytes { index, runs, .. } => is_page(*index) && are_within_a_page(runs),
        Record::Copied {
            index,
            copies,
            runs,
            ..
        } => {
            is_page(*index)
                && are_within_a_page(runs)
                && copies.iter().all(CopiedBytes::is_possible)
        }
        _ => true,
    }
}

fn are_within_a_page(runs: &[(u16, Vec<u8>)]) -> bool {
    runs.iter()
        .all(|(offset, bytes)| usize::from(*offset) + bytes.len() <= PAGE_BYTES)
}

/// Decodes exactly `count` records that fill `bytes`.
pub(crate) fn decode(bytes: &[u8], count: u32) -> Result<Vec<Record>, Malformed> {
    let mut cursor = Reader::new(bytes);
    // The vector grows as records are decoded: `count` may be forged.
    let mut records = Vec::new();
    for _ in 0..count {
        records.push(take_record(&mut cursor)?);
    }
    if !cursor.rest().is_empty() {
        return Err(Malformed("bytes are left after the last record"));
    }
    Ok(records)
}

/// Decodes what can be made out of damaged bytes: at most `count` records, and whether these are all
/// that the bytes have.
pub(crate) fn decode_legible(bytes: &[u8], count: u32) -> (Vec<Record>, bool) {
    let mut cursor = Reader::new(bytes);
    let mut records = Vec::new();
    for _ in 0..count {
        match take_record(&mut cursor) {
            Ok(record) => records.push(record),
            Err(_) => return (records, false),
        }
    }
    (records, cursor.rest().is_empty())
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
            sink.put(&[KNOWN]);
            put_id(sink, *id);
            sink.varint(*inode);
            sink.put(&[kind_number(*kind)]);
            put_id(sink, *parent);
            sink.varint_bytes(name);
        }
        Record::Object(state) => put_object(sink, state),
        Record::Dentry {
            parent,
            name,
            child,
        } => put_dentry(sink, *parent, name, *child),
        Record::Bytes { .. } | Record::Copied { .. } => put_page(sink, record),
        Record::Materialized => sink.put(&[MATERIALIZED]),
        Record::Direct { object, range } => {
            sink.put(&[DIRECT]);
            put_id(sink, *object);
            put_range(sink, *range);
        }
        Record::External {
            file,
            bytes,
            records,
            crc32c,
        } => {
            sink.put(&[EXTERNAL]);
            sink.varint(*file);
            sink.varint(*bytes);
            sink.varint(u64::from(*records));
            sink.varint(u64::from(*crc32c));
        }
        Record::Bind { id, inode } => {
            sink.put(&[BIND]);
            put_id(sink, *id);
            sink.varint(*inode);
        }
        Record::RenameMark => sink.put(&[RENAME_MARK]),
        Record::RenameMarkInPart => sink.put(&[RENAME_MARK_IN_PART]),
        Record::Found { id, inode } => {
            sink.put(&[FOUND]);
            put_id(sink, *id);
            sink.varint(inode.map_or(0, NonZeroU64::get));
        }
    }
}

/// Changed bytes of a page.
fn put_page(sink: &mut impl Sink, record: &Record) {
    match record {
        Record::Bytes {
            object,
            index,
            fresh,
            runs,
        } => {
            sink.put(&[if *fresh { BYTES_FRESH } else { BYTES }]);
            put_id(sink, *object);
            sink.varint(index.0);
            put_runs(sink, runs);
        }
        Record::Copied {
            object,
            index,
            fresh,
            copies,
            runs,
            crc32c,
        } => {
            sink.put(&[if *fresh { COPIED_FRESH } else { COPIED }]);
            put_id(sink, *object);
            sink.varint(index.0);
            sink.varint(copies.len() as u64);
            copies.iter().for_each(|copied| put_copied(sink, copied));
            put_runs(sink, runs);
            sink.put(&crc32c.to_le_bytes());
        }
        _ => debug_assert!(false, "{record:?} is of no page"),
    }
}

fn put_runs(sink: &mut impl Sink, runs: &[(u16, Vec<u8>)]) {
    sink.varint(runs.len() as u64);
    for (offset, bytes) in runs {
        sink.varint(u64::from(*offset));
        sink.varint_bytes(bytes);
    }
}

fn put_copied(sink: &mut impl Sink, copied: &CopiedBytes) {
    sink.varint(u64::from(copied.offset));
    sink.varint(u64::from(copied.length));
    put_id(sink, copied.source);
    sink.varint(copied.from);
}

fn put_dentry(sink: &mut impl Sink, parent: ObjectId, name: &Name, child: Option<ObjectId>) {
    let tag = match child {
        Some(_) => DENTRY,
        None => DENTRY_REMOVED,
    };
    sink.put(&[tag]);
    put_id(sink, parent);
    sink.varint_bytes(name.as_bytes());
    if let Some(child) = child {
        put_id(sink, child);
    }
}

fn take_record(cursor: &mut Reader<'_>) -> Result<Record, Malformed> {
    Ok(match cursor.u8()? {
        KNOWN => Record::Known {
            id: take_id(cursor)?,
            inode: cursor.varint()?,
            kind: take_kind(cursor)?,
            parent: take_id(cursor)?,
            name: cursor.varint_bytes()?.to_vec(),
        },
        OBJECT => Record::Object(take_object(cursor)?),
        tag @ (DENTRY | DENTRY_REMOVED) => Record::Dentry {
            parent: take_id(cursor)?,
            name: Name::new(cursor.varint_bytes()?)
                .map_err(|_| Malformed("a directory entry has an impossible name"))?,
            child: (tag == DENTRY).then(|| take_id(cursor)).transpose()?,
        },
        tag @ (BYTES | BYTES_FRESH) => Record::Bytes {
            object: take_id(cursor)?,
            index: take_page_index(cursor)?,
            fresh: tag == BYTES_FRESH,
            runs: take_list(cursor, take_run)?,
        },
        tag @ (COPIED | COPIED_FRESH) => Record::Copied {
            object: take_id(cursor)?,
            index: take_page_index(cursor)?,
            fresh: tag == COPIED_FRESH,
            copies: take_list(cursor, take_copied)?,
            runs: take_list(cursor, take_run)?,
            crc32c: cursor.u32()?,
        },
        MATERIALIZED => Record::Materialized,
        DIRECT => Record::Direct {
            object: take_id(cursor)?,
            range: take_range(cursor)?,
        },
        EXTERNAL => Record::External {
            file: cursor.varint()?,
            bytes: cursor.varint()?,
            records: cursor.varint_as()?,
            crc32c: cursor.varint_as()?,
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
    sink.put(&[OBJECT]);
    put_id(sink, state.id);
    sink.put(&[flags]);
    sink.put(&[kind_number(attributes.kind)]);
    sink.varint(u64::from(attributes.mode));
    sink.varint(u64::from(attributes.uid));
    sink.varint(u64::from(attributes.gid));
    sink.varint(u64::from(attributes.rdev.0));
    sink.varint(attributes.size);
    sink.varint(u64::from(attributes.nlink));
    put_time(sink, attributes.atime);
    if flags & MTIME_IS_ATIME == 0 {
        put_time(sink, attributes.mtime);
    }
    if flags & CTIME_IS_MTIME == 0 {
        put_time(sink, attributes.ctime);
    }
    if let Some(target) = &state.symlink_target {
        sink.varint_bytes(target);
    }
    for ranges in [&state.zeroed, &state.allocated] {
        sink.varint(ranges.len() as u64);
        ranges.iter().for_each(|&range| put_range(sink, range));
    }
    sink.varint(state.xattrs.len() as u64);
    for (name, value) in &state.xattrs {
        sink.varint_bytes(name);
        // One more than the length, because 0 means "removed".
        sink.varint(value.as_ref().map_or(0, |value| value.len() as u64 + 1));
        if let Some(value) = value {
            sink.put(value);
        }
    }
}

fn take_object(cursor: &mut Reader<'_>) -> Result<ObjectState, Malformed> {
    let id = take_id(cursor)?;
    let flags = cursor.u8()?;
    if flags & !OBJECT_FLAGS != 0 {
        return Err(Malformed("an object has unknown flags"));
    }
    let attributes = take_attributes(cursor, flags)?;
    let symlink_target = if flags & HAS_TARGET == 0 {
        None
    } else {
        Some(Arc::from(cursor.varint_bytes()?))
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

fn take_attributes(cursor: &mut Reader<'_>, flags: u8) -> Result<Attributes, Malformed> {
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

fn take_xattr(cursor: &mut Reader<'_>) -> Result<XattrChange, Malformed> {
    let name = Arc::from(cursor.varint_bytes()?);
    let value = match cursor.varint()? {
        0 => None,
        more => Some(Arc::from(take_bytes(cursor, more - 1)?)),
    };
    Ok((name, value))
}

fn take_bytes<'a>(cursor: &mut Reader<'a>, bytes: u64) -> Result<&'a [u8], CodecError> {
    let bytes = usize::try_from(bytes).map_err(|_| CodecError::Short)?;
    cursor.raw(bytes)
}

/// A count, then that many items. Every item consumes input, so a wrong count ends in an error
/// after at most as many items as there are bytes.
fn take_list<'a, T>(
    cursor: &mut Reader<'a>,
    take: impl Fn(&mut Reader<'a>) -> Result<T, Malformed>,
) -> Result<Vec<T>, Malformed> {
    let count = cursor.varint()?;
    let mut items = Vec::new();
    for _ in 0..count {
        items.push(take(cursor)?);
    }
    Ok(items)
}

fn take_run(cursor: &mut Reader<'_>) -> Result<(u16, Vec<u8>), Malformed> {
    let offset: u16 = cursor.varint_as()?;
    let bytes = cursor.varint_bytes()?;
    if usize::from(offset) + bytes.len() > PAGE_BYTES {
        return Err(Malformed("changed bytes lie outside their page"));
    }
    Ok((offset, bytes.to_vec()))
}

fn take_copied(cursor: &mut Reader<'_>) -> Result<CopiedBytes, Malformed> {
    let copied = CopiedBytes {
        offset: cursor.varint_as()?,
        length: cursor.varint_as()?,
        source: take_id(cursor)?,
        from: cursor.varint()?,
    };
    if !copied.is_possible() {
        return Err(Malformed("copied bytes lie outside their page"));
    }
    Ok(copied)
}

fn take_page_index(cursor: &mut Reader<'_>) -> Result<PageIndex, Malformed> {
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
        high @ (0 | 1) => sink.varint((id.0 % FIRST_NEW) << 1 | high),
        _ => {
            sink.varint(ID_LONG);
            sink.put(&id.0.to_le_bytes());
        }
    }
}

fn take_id(cursor: &mut Reader<'_>) -> Result<ObjectId, Malformed> {
    match cursor.varint()? {
        short if short < ID_LONG => {
            Ok(ObjectId((short >> 1) + (short & 1) * ObjectId::FIRST_NEW.0))
        }
        ID_LONG => Ok(cursor.id()?),
        _ => Err(Malformed("an object id has an unknown form")),
    }
}

/// Start, then one more than the end, so that "without end" is 0.
fn put_range(sink: &mut impl Sink, range: ByteRange) {
    sink.varint(range.start);
    sink.varint(range.end.wrapping_add(1));
}

fn take_range(cursor: &mut Reader<'_>) -> Result<ByteRange, Malformed> {
    Ok(ByteRange {
        start: cursor.varint()?,
        end: cursor.varint()?.wrapping_sub(1),
    })
}

fn put_time(sink: &mut impl Sink, time: Timestamp) {
    sink.signed_varint(time.seconds);
    sink.varint(u64::from(time.nanoseconds));
}

fn take_time(cursor: &mut Reader<'_>) -> Result<Timestamp, Malformed> {
    Ok(Timestamp {
        seconds: cursor.signed_varint()?,
        nanoseconds: cursor.varint_as()?,
    })
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

fn take_kind(cursor: &mut Reader<'_>) -> Result<FileKind, Malformed> {
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
