//! The list of files with preallocation, `.mobifs/preallocated` (`docs/FORMAT.md` has the bytes).
//!
//! The file has two slots, written in turns, each with a checksum: a torn write leaves the list
//! before. A list that is damaged, or of another store, is ignored: then the blocks of its files
//! stay with them, as if programs had requested them.

use std::io;

use mobifs_base::codec::{Reader, Writer};
use mobifs_base::{FileKind, PAGE_BYTES_U64, Timestamp};

use crate::StoreError;
use crate::lower::directories::Directories;
use crate::lower::{Lower, LowerStat, found};
use crate::own_file::{Damage, is_ours};

/// Files with preallocation at a time; the list on disk has room for so many.
pub(crate) const FILES_MAX: usize = 256;
/// Its name in `.mobifs`.
pub const NAME: &str = "preallocated";
const MAGIC: &[u8; 8] = b"MOBIPREA";
const VERSION: u32 = 1;
/// Size of a slot, and offset of the second one.
pub(crate) const SLOT_BYTES: usize = 128 << 10;
/// Magic, version, store, sequence, number of files, bytes of the body, checksum.
const HEADER_BYTES: usize = 8 + 4 + 16 + 8 + 4 + 4 + 4;
/// The checksum covers the header before it, and the body.
const CRC_AT: usize = HEADER_BYTES - 4;
/// Longer paths are not recorded.
pub(super) const PATH_BYTES_MAX: usize = 255;

/// The next end of a block.
pub(crate) fn block_end(bytes: u64) -> u64 {
    bytes
        .checked_next_multiple_of(PAGE_BYTES_U64)
        .unwrap_or(u64::MAX)
}

/// What happens to a listed file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The file has the store's blocks beyond its end, or is about to get them.
    Held,
    /// A program requests room beyond the end: the store's blocks are given back first, and from
    /// then on all of them are the program's.
    Requested,
}

/// A listed file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Listed {
    pub(crate) inode: u64,
    /// When it was made: another file with the same inode number is not this one.
    pub(crate) born: Option<Timestamp>,
    pub(crate) phase: Phase,
    /// Its size once the apply under way is complete.
    pub(crate) size: u64,
    /// Where the store's blocks end.
    pub(crate) end: u64,
    /// Its time of the last change once the apply under way is complete.
    pub(crate) mtime: Timestamp,
    /// A path at which it was; empty if that is not known.
    pub(crate) path: Vec<u8>,
    /// When it was last listed; not in the file.
    pub(crate) listed_at: u64,
    /// The preallocation is given back at the next apply; not in the list on disk.
    pub(crate) is_due: bool,
}

impl Listed {
    pub(crate) fn is_same_object(&self, stat: &LowerStat) -> bool {
        stat.kind == FileKind::Regular && (stat.inode, stat.born) == (self.inode, self.born)
    }

    /// One like others, for tests and fuzz targets.
    pub(crate) fn example(number: u64) -> Self {
        let time = Timestamp::new(1_700_000_000, 5);
        let phases = [Phase::Held, Phase::Requested];
        Self {
            inode: number,
            born: number.is_multiple_of(2).then_some(time),
            phase: phases[(number % 2) as usize],
            size: number << 10,
            end: (number << 10) + (128 << 10),
            mtime: time,
            path: format!("app/{number}.db").into_bytes(),
            listed_at: 0,
            is_due: false,
        }
    }

    pub(crate) fn unused_bytes(&self) -> u64 {
        match self.phase {
            Phase::Requested => 0,
            _ => self.end.saturating_sub(block_end(self.size)),
        }
    }
}

/// The list as it was found.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) files: Vec<Listed>,
    pub(crate) sequence: u64,
    /// Its file is the store's, and can be written.
    pub(crate) is_usable: bool,
}

/// A slot with these files.
pub(crate) fn encode<'f>(
    uuid: [u8; 16],
    sequence: u64,
    files: impl Iterator<Item = &'f Listed> + Clone,
) -> Vec<u8> {
    let mut body = Writer::default();
    for file in files.clone() {
        body.u64(file.inode);
        body.option(file.born, Writer::time);
        body.u8(match file.phase {
            Phase::Held => 0,
            Phase::Requested => 1,
        });
        body.u64(file.size);
        body.u64(file.end);
        body.time(file.mtime);
        body.bytes(&file.path);
    }
    let body = body.into_bytes();
    let mut slot = Writer::default();
    slot.raw(MAGIC);
    slot.u32(VERSION);
    slot.raw(&uuid);
    slot.u64(sequence);
    slot.u32(files.count() as u32);
    slot.u32(body.len() as u32);
    let crc = crc32c::crc32c_append(crc32c::crc32c(slot.as_bytes()), &body);
    slot.u32(crc);
    slot.raw(&body);
    slot.into_bytes()
}

/// The sequence and the files of a slot.
pub(crate) fn parse(slot: &[u8], uuid: [u8; 16]) -> Result<(u64, Vec<Listed>), Damage> {
    if slot.iter().take(HEADER_BYTES).all(|&byte| byte == 0) {
        return Err(Damage::Empty);
    }
    let mut header = Reader::new(slot);
    let magic = header.raw(MAGIC.len()).map_err(|_| Damage::Length)?;
    if magic != MAGIC {
        return Err(Damage::Magic);
    }
    let short = |_| Damage::Length;
    let version = header.u32().map_err(short)?;
    if version != VERSION {
        return Err(Damage::Version(version));
    }
    let of_store = header.raw(uuid.len()).map_err(short)?;
    let sequence = header.u64().map_err(short)?;
    let count = header.u32().map_err(short)? as usize;
    let bytes = header.u32().map_err(short)? as usize;
    let crc = header.u32().map_err(short)?;
    let body = header.raw(bytes).map_err(short)?;
    if crc32c::crc32c_append(crc32c::crc32c(&slot[..CRC_AT]), body) != crc {
        return Err(Damage::Checksum);
    }
    if of_store != uuid {
        return Err(Damage::OtherStore);
    }
    if count > FILES_MAX || sequence == u64::MAX {
        return Err(Damage::Value);
    }
    let mut body = Reader::new(body);
    let mut files: Vec<Listed> = Vec::new();
    for _ in 0..count {
        let file = parse_file(&mut body)?;
        if files.iter().any(|other| other.inode == file.inode) {
            return Err(Damage::Value);
        }
        files.push(file);
    }
    if body.rest().is_empty() {
        Ok((sequence, files))
    } else {
        Err(Damage::Value)
    }
}

fn parse_file(body: &mut Reader<'_>) -> Result<Listed, Damage> {
    let bad = Damage::Malformed;
    let inode = body.u64().map_err(bad)?;
    let born = body.option(Reader::time).map_err(bad)?;
    let phase = match body.u8().map_err(bad)? {
        0 => Phase::Held,
        1 => Phase::Requested,
        _ => return Err(Damage::Value),
    };
    let (size, end) = (body.u64().map_err(bad)?, body.u64().map_err(bad)?);
    let mtime = body.time().map_err(bad)?;
    let path = body.bytes().map_err(bad)?.to_vec();
    let most = i64::MAX.cast_unsigned();
    if size > most || end > most || path.len() > PATH_BYTES_MAX {
        return Err(Damage::Value);
    }
    Ok(Listed {
        inode,
        born,
        phase,
        size,
        end,
        mtime,
        path,
        listed_at: 0,
        is_due: false,
    })
}

/// The newest list of the two slots.
///
/// # Errors
/// What is wrong with the first slot, if there is none.
pub(crate) fn choose(content: &[u8], uuid: [u8; 16]) -> Result<(u64, Vec<Listed>), Damage> {
    let second = content.get(SLOT_BYTES..).unwrap_or_default();
    let slots = [&content[..content.len().min(SLOT_BYTES)], second];
    let [first, second] = slots.map(|slot| parse(slot, uuid));
    match (first, second) {
        (Ok(first), Ok(second)) if second.0 > first.0 => Ok(second),
        (Ok(first), _) => Ok(first),
        (_, Ok(second)) => Ok(second),
        (Err(Damage::Empty), Err(damage)) | (Err(damage), Err(_)) => Err(damage),
    }
}

/// Reads the list that an earlier mount has left. One that cannot be used is ignored, with a line
/// in the log.
pub(crate) fn read<L: Lower>(
    lower: &L,
    own: &Directories<L::Handle>,
    uuid: [u8; 16],
) -> Result<Found, StoreError> {
    let stat = found(lower.stat_at(own.mobifs(), NAME.as_bytes())).map_err(StoreError::lower(
        "looking at the list of preallocated files",
    ))?;
    let Some(stat) = stat else {
        return Ok(Found::default());
    };
    if !is_ours(&stat) {
        tracing::warn!(".mobifs/{NAME} is not a file of the store; it is not read");
        return Ok(Found::default());
    }
    let is_usable = lower.keeps_preallocation();
    let read = || -> io::Result<Vec<u8>> {
        let file = lower.open(own.mobifs(), NAME.as_bytes(), false)?;
        let bytes = stat.size.min(2 * SLOT_BYTES as u64) as usize;
        let mut content = vec![0; bytes];
        let length = lower.read_at(&file, &mut content, 0)?;
        content.truncate(length);
        Ok(content)
    };
    match read() {
        Ok(content) => match choose(&content, uuid) {
            Ok((sequence, files)) => {
                return Ok(Found {
                    files,
                    sequence,
                    is_usable,
                });
            }
            Err(Damage::Empty) => {}
            Err(damage) => {
                tracing::warn!(%damage, "the list of preallocated files cannot be used");
            }
        },
        Err(error) => tracing::warn!(%error, "the list of preallocated files cannot be read"),
    }
    Ok(Found {
        is_usable,
        ..Found::default()
    })
}
