//! Listing directories.
//!
//! An entry's offset is the volume's cookie plus two: offset 1 is after `.`, offset 2
//! after `..`.

use mobifs_base::{FileKind, ObjectId};
use mobifs_fuse::Call;
use mobifs_fuse::protocol::{
    DirectoryEntryHeader, EntryReply, PAYLOAD_BYTES_MAX, ROOT_NODE, ReadArgs,
};
use mobifs_volume::{FsError, ReadDirEntry};
use rustix::io::Errno;
use zerocopy::{FromBytes as _, IntoBytes};

use super::{Adapter, Outcome, fs, object};

/// Entries asked of the volume at a time.
const BATCH_ENTRIES: usize = 256;
/// Entries start at multiples of this many bytes.
const ALIGNMENT_BYTES: usize = 8;
/// "Unknown", where the inode number of `..` is not known.
const UNKNOWN_INODE: u64 = 0xffff_ffff;

/// A reply under construction.
struct Listing {
    bytes: Vec<u8>,
    bytes_max: usize,
}

impl Listing {
    fn new(args: &ReadArgs) -> Self {
        let bytes_max = (args.size as usize).min(PAYLOAD_BYTES_MAX);
        Self {
            bytes: Vec::with_capacity(bytes_max.min(1 << 16)),
            bytes_max,
        }
    }

    /// Bytes that an entry takes, with `prefix` bytes in front.
    fn entry_bytes(name: &[u8], prefix: usize) -> usize {
        (prefix + size_of::<DirectoryEntryHeader>() + name.len()).next_multiple_of(ALIGNMENT_BYTES)
    }

    fn has_room(&self, name: &[u8], prefix: usize) -> bool {
        self.bytes.len() + Self::entry_bytes(name, prefix) <= self.bytes_max
    }

    /// Adds an entry if there is room for it; returns whether there was.
    fn push(
        &mut self,
        prefix: &[u8],
        inode: u64,
        offset: u64,
        kind: FileKind,
        name: &[u8],
    ) -> bool {
        if !self.has_room(name, prefix.len()) {
            return false;
        }
        let end = self.bytes.len() + Self::entry_bytes(name, prefix.len());
        let header = DirectoryEntryHeader {
            inode,
            offset,
            // Names have at most 255 bytes.
            name_bytes: name.len() as u32,
            kind: kind.mode_bits() >> 12,
        };
        self.bytes.extend_from_slice(prefix);
        self.bytes.extend_from_slice(header.as_bytes());
        self.bytes.extend_from_slice(name);
        self.bytes.resize(end, 0);
        true
    }
}

/// What follows the entry that `bytes` start with, its header first; none if it is cut off.
/// Both start at multiples of [`ALIGNMENT_BYTES`], so the alignment counts from here.
pub(crate) fn after_name(bytes: &[u8]) -> Option<&[u8]> {
    let (header, _) = DirectoryEntryHeader::read_from_prefix(bytes).ok()?;
    let entry = size_of::<DirectoryEntryHeader>() + header.name_bytes as usize;
    bytes.get(entry.next_multiple_of(ALIGNMENT_BYTES)..)
}

impl Adapter {
    pub(super) fn read_directory(&self, call: &Call<'_>, args: &ReadArgs) -> Outcome<Vec<u8>> {
        self.list(call, args, 0, |listing, entry| {
            let (id, kind) = (entry.id.0, entry.kind);
            Ok(listing.push(&[], id, entry.cookie + 2, kind, entry.name.as_bytes()))
        })
    }

    pub(super) fn read_directory_plus(&self, call: &Call<'_>, args: &ReadArgs) -> Outcome<Vec<u8>> {
        let directory = object(call);
        self.list(call, args, size_of::<EntryReply>(), |listing, entry| {
            let name = entry.name.as_bytes();
            // A lookup counts, so it may only happen if the reply carries the entry.
            if !listing.has_room(name, size_of::<EntryReply>()) {
                return Ok(false);
            }
            let reply = match self.volume.lookup(directory, name) {
                Ok(node) => self.entry(&node),
                // Removed meanwhile, or its attributes cannot be read: the name alone.
                Err(FsError::NotFound | FsError::Stale | FsError::Io) => EntryReply::default(),
                Err(error) => return Err(error),
            };
            let inode = if reply.node == 0 {
                entry.id.0
            } else {
                reply.node
            };
            let offset = entry.cookie + 2;
            Ok(listing.push(reply.as_bytes(), inode, offset, entry.kind, name))
        })
    }

    /// Fills a reply from the offset in `args` on; `add` says whether an entry fitted.
    fn list(
        &self,
        call: &Call<'_>,
        args: &ReadArgs,
        prefix: usize,
        mut add: impl FnMut(&mut Listing, &ReadDirEntry) -> Result<bool, FsError>,
    ) -> Outcome<Vec<u8>> {
        let directory = object(call);
        let mut listing = Listing::new(args);
        // `.` must not be returned for an object that is not a directory, or is removed.
        let node = self.volume.attributes(directory).map_err(fs)?;
        if node.attributes.kind != FileKind::Directory {
            return Err(Errno::NOTDIR);
        }
        if args.offset == 0 {
            self.volume.listed(directory);
        }
        let dots: [(u64, &[u8]); 2] = [(0, b"."), (1, b"..")];
        for (offset, name) in dots {
            if args.offset <= offset {
                let inode = if offset == 0 {
                    directory.0
                } else {
                    self.parent_inode(directory)
                };
                let prefix = vec![0; prefix];
                if !listing.push(&prefix, inode, offset + 1, FileKind::Directory, name) {
                    return Ok(listing.bytes);
                }
            }
        }
        let mut cookie = args.offset.saturating_sub(2);
        loop {
            let entries = self.volume.read_directory(directory, cookie, BATCH_ENTRIES);
            let entries = entries.map_err(fs)?;
            for entry in &entries {
                match add(&mut listing, entry) {
                    Ok(true) => cookie = entry.cookie,
                    Ok(false) => return Ok(listing.bytes),
                    // What is in the reply counts as looked up, so it must be sent;
                    // the error comes again when the listing is continued.
                    Err(error) if listing.bytes.is_empty() => return Err(fs(error)),
                    Err(_) => return Ok(listing.bytes),
                }
            }
            if entries.len() < BATCH_ENTRIES {
                return Ok(listing.bytes);
            }
        }
    }

    /// Between the two calls a reference is counted that no reply carries. If this process dies
    /// there, its successor finds it among those that were taken and releases it.
    fn parent_inode(&self, directory: ObjectId) -> u64 {
        if directory.0 == ROOT_NODE {
            return ROOT_NODE;
        }
        match self.volume.lookup_parent(directory) {
            Ok(parent) => {
                // Only its number is wanted.
                self.volume.forget(parent.id, 1);
                parent.id.0
            }
            // A directory removed while open has no parent.
            Err(_) => UNKNOWN_INODE,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use mobifs_fuse::protocol::{Opcode, ReplyHeader, RequestHeader};
    use mobifs_store::MemoryStore;
    use mobifs_volume::{Config, Volume, VolumeOptions};
    use zerocopy::FromBytes;

    use super::*;
    use crate::fuzzing::Exchange;

    /// What READDIR answers for a node, with room for so many bytes.
    fn read_directory_error(exchange: &mut Exchange, node: u64, size: u32) -> i32 {
        let args = ReadArgs {
            size,
            ..ReadArgs::default()
        };
        let header = RequestHeader {
            len: (size_of::<RequestHeader>() + size_of::<ReadArgs>()) as u32,
            opcode: Opcode::ReadDir as u32,
            node,
            ..RequestHeader::default()
        };
        let sent = exchange.send(&[header.as_bytes(), args.as_bytes()].concat());
        ReplyHeader::read_from_prefix(&sent.replies[0])
            .unwrap()
            .0
            .error
    }

    #[test]
    fn an_unknown_directory_is_refused_however_small_the_buffer() {
        // Found by the fuzzer: where the buffer ended before the first entry, the adapter did
        // not ask whether there is such a directory.
        let options = VolumeOptions {
            background: false,
            ..VolumeOptions::new(&Config::defaults().unwrap())
        };
        let volume = Volume::start(Arc::new(MemoryStore::new()), options).unwrap();
        let mut exchange = Exchange::new(volume);
        for size in [0, 40, 4096] {
            let stale = -Errno::STALE.raw_os_error();
            assert_eq!(read_directory_error(&mut exchange, 99, size), stale);
            assert_eq!(read_directory_error(&mut exchange, ROOT_NODE, size), 0);
        }
    }

    #[test]
    fn entries_are_aligned_and_stop_at_the_callers_buffer() {
        let args = ReadArgs {
            size: 80,
            ..ReadArgs::default()
        };
        let mut listing = Listing::new(&args);
        assert!(listing.push(&[], 5, 1, FileKind::Regular, b"abc"));
        assert_eq!(listing.bytes.len(), 32);
        assert!(listing.push(&[], 6, 2, FileKind::Directory, &[b'x'; 17]));
        assert_eq!(listing.bytes.len(), 80);
        assert!(!listing.push(&[], 7, 3, FileKind::Regular, b"d"));
        assert_eq!(&listing.bytes[24..27], b"abc");
        assert_eq!(listing.bytes[20], 8, "DT_REG");
        assert_eq!(listing.bytes[32 + 20], 4, "DT_DIR");
    }
}
