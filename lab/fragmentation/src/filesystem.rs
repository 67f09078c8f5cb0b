//! What is known of filesystems by their names in the table of mounts.

/// How large an extent can be that the degree of fragmentation reckons with.
const EXT4_EXTENT_BYTES: u64 = 128 << 20;
const BTRFS_EXTENT_BYTES: u64 = 128 << 20;

/// Bytes of the largest extent; none: no limit.
#[must_use]
pub fn extent_bytes_max(name: &str) -> Option<u64> {
    match name {
        "ext2" | "ext3" | "ext4" => Some(EXT4_EXTENT_BYTES),
        "btrfs" => Some(BTRFS_EXTENT_BYTES),
        _ => None,
    }
}

/// Whether the definition has a parameter for it.
pub(crate) fn is_defined(name: &str) -> bool {
    extent_bytes_max(name).is_some() || matches!(name, "xfs" | "f2fs")
}

/// Whether its blocks are another machine's.
#[must_use]
pub fn is_network(name: &str) -> bool {
    matches!(
        name,
        "nfs"
            | "nfs4"
            | "cifs"
            | "smb3"
            | "smbfs"
            | "9p"
            | "ceph"
            | "afs"
            | "coda"
            | "lustre"
            | "virtiofs"
            | "ncpfs"
            | "orangefs"
    )
}

/// A part of a filesystem's beginning by which it is recognised.
struct Signature {
    at: usize,
    bytes: &'static [u8],
    name: &'static str,
}

const fn signature(at: usize, bytes: &'static [u8], name: &'static str) -> Signature {
    Signature { at, bytes, name }
}

/// Others than ext4.
const SIGNATURES: [Signature; 14] = [
    signature(0, b"XFSB", "an XFS filesystem"),
    signature(0x1_0040, b"_BHRfS_M", "a btrfs filesystem"),
    signature(1024, b"\x10\x20\xf5\xf2", "an f2fs filesystem"),
    signature(0, b"hsqs", "a squashfs filesystem"),
    signature(1024, b"\xe2\xe1\xf5\xe0", "an erofs filesystem"),
    signature(3, b"NTFS    ", "an NTFS filesystem"),
    signature(3, b"EXFAT   ", "an exFAT filesystem"),
    signature(54, b"FAT1", "a FAT filesystem"),
    signature(82, b"FAT32", "a FAT filesystem"),
    signature(0x8001, b"CD001", "an ISO 9660 filesystem"),
    signature(0, b"LUKS\xba\xbe", "an encrypted volume (LUKS)"),
    signature(
        0,
        b"\x3a\xff\x26\xed",
        "a sparse image of Android (simg2img unpacks it)",
    ),
    signature(0, b"QFI\xfb", "a disk of QEMU (qcow2)"),
    signature(512, b"EFI PART", "a disk with partitions"),
];

/// Bytes of an image's beginning that are needed to recognise it.
pub(crate) const HEAD_BYTES: usize = 0x1_0048;

/// What an image holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    Ext4,
    Other(&'static str),
    Unknown,
}

/// What lies at the beginning of an image.
pub(crate) fn content(head: &[u8]) -> Content {
    if is_ext4(head) {
        return Content::Ext4;
    }
    let found = SIGNATURES.iter().find(|signature| {
        let rest = head.get(signature.at..);
        rest.is_some_and(|rest| rest.starts_with(signature.bytes))
    });
    found.map_or(Content::Unknown, |found| Content::Other(found.name))
}

fn is_ext4(head: &[u8]) -> bool {
    const SUPERBLOCK: usize = 1024;
    const BLOCK_SIZE_AT: usize = SUPERBLOCK + 24;
    const MAGIC_AT: usize = SUPERBLOCK + 56;
    const BLOCK_SIZE_MOST: u8 = 6;
    let has_magic = head.get(MAGIC_AT..MAGIC_AT + 2) == Some(&[0x53, 0xef]);
    // Two bytes alone are in many files by chance.
    let exponent = head.get(BLOCK_SIZE_AT..BLOCK_SIZE_AT + 4);
    has_magic && matches!(exponent, Some(&[least, 0, 0, 0]) if least <= BLOCK_SIZE_MOST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_are_recognised() {
        let with = |at: usize, bytes: &[u8]| {
            let mut head = vec![0; HEAD_BYTES];
            head[at..at + bytes.len()].copy_from_slice(bytes);
            content(&head)
        };
        assert_eq!(with(1080, b"\x53\xef"), Content::Ext4);
        for signature in &SIGNATURES {
            let found = with(signature.at, signature.bytes);
            assert_eq!(found, Content::Other(signature.name));
        }
        assert_eq!(with(0, b""), Content::Unknown);
        assert_eq!(content(b"XFS"), Content::Unknown);
        let mut random = vec![0xff; HEAD_BYTES];
        random[1080..1082].copy_from_slice(b"\x53\xef");
        assert_eq!(content(&random), Content::Unknown);
    }

    #[test]
    fn parameters_are_those_of_the_definition() {
        assert_eq!(extent_bytes_max("ext4"), Some(128 << 20));
        assert_eq!(extent_bytes_max("btrfs"), Some(128 << 20));
        assert_eq!(extent_bytes_max("xfs"), None);
        assert!(is_defined("f2fs") && is_defined("xfs") && !is_defined("overlay"));
        assert!(is_network("nfs4") && !is_network("ext4"));
    }
}
