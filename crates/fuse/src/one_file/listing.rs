//! The listing of a directory with one entry.

use zerocopy::IntoBytes;

use crate::protocol::{DirectoryEntryHeader, EntryReply, PAYLOAD_BYTES_MAX, ROOT_NODE, ReadArgs};

/// Entries start at multiples of this many bytes.
const ALIGNMENT_BYTES: usize = 8;
const KIND_DIRECTORY: u32 = 0o04;
const KIND_REGULAR: u32 = 0o10;

/// A READDIR reply from the offset in `args` on. `plus`: a READDIRPLUS reply, which says
/// nothing more (an entry without a node is a mere name).
pub(super) fn listing(name: &[u8], node: u64, args: &ReadArgs, plus: bool) -> Vec<u8> {
    let bytes_max = (args.size as usize).min(PAYLOAD_BYTES_MAX);
    let prefix = if plus { size_of::<EntryReply>() } else { 0 };
    let entries: [(u64, u32, &[u8]); 3] = [
        (ROOT_NODE, KIND_DIRECTORY, b"."),
        (ROOT_NODE, KIND_DIRECTORY, b".."),
        (node, KIND_REGULAR, name),
    ];
    let mut bytes = Vec::new();
    for ((inode, kind, name), next) in entries.into_iter().zip(1..) {
        if next <= args.offset {
            continue;
        }
        let header = DirectoryEntryHeader {
            inode,
            offset: next,
            // A name that was taken as an argument: at most 255 bytes.
            name_bytes: name.len() as u32,
            kind,
        };
        let end = bytes.len()
            + (prefix + size_of_val(&header) + name.len()).next_multiple_of(ALIGNMENT_BYTES);
        if end > bytes_max {
            break;
        }
        bytes.resize(bytes.len() + prefix, 0);
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend_from_slice(name);
        bytes.resize(end, 0);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(offset: u64, size: u32, plus: bool) -> Vec<u8> {
        let args = ReadArgs {
            offset,
            size,
            ..ReadArgs::default()
        };
        listing(b"device", 9, &args, plus)
    }

    #[test]
    fn a_listing_continues_where_it_was_cut() {
        let whole = part(0, 4096, false);
        assert_eq!(whole.len(), 3 * 32);
        assert_eq!([part(0, 70, false), part(2, 4096, false)].concat(), whole);
        assert!(part(3, 4096, false).is_empty());
        assert_eq!(part(0, 4096, true).len(), 3 * (32 + 128));
    }
}
