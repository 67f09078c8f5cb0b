//! How the kernel lays requests out; written down a second time, so that a slip in the
//! adapter's own structures shows.

use arbitrary::Arbitrary;

/// Bytes of a header.
pub(super) const HEADER_BYTES: usize = 40;
/// Bytes in front of what a reply carries.
pub(super) const REPLY_HEADER_BYTES: usize = 16;
/// FORGET, which is not answered.
pub(super) const FORGET: u32 = 2;
/// BATCH_FORGET, which is not either.
pub(super) const BATCH_FORGET: u32 = 42;

macro_rules! opcodes {
    ($($name:ident = $number:literal),* $(,)?) => {
        /// What a request asks for.
        #[derive(Arbitrary, Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u32)]
        pub(super) enum Opcode { $($name = $number),* }

        impl Opcode {
            pub(super) const ALL: &[Self] = &[$(Self::$name),*];
        }
    };
}

opcodes! {
    Lookup = 1, Forget = 2, GetAttr = 3, SetAttr = 4, ReadLink = 5, Symlink = 6, MkNod = 8,
    MkDir = 9, Unlink = 10, RmDir = 11, Rename = 12, Link = 13, Open = 14, Read = 15,
    Write = 16, StatFs = 17, Release = 18, Fsync = 20, SetXattr = 21, GetXattr = 22,
    ListXattr = 23, RemoveXattr = 24, Flush = 25, Init = 26, OpenDir = 27, ReadDir = 28,
    ReleaseDir = 29, FsyncDir = 30, Access = 34, Create = 35, Interrupt = 36, Bmap = 37,
    Destroy = 38, Ioctl = 39, Poll = 40, BatchForget = 42, Fallocate = 43, ReadDirPlus = 44,
    Rename2 = 45, Lseek = 46, CopyFileRange = 47, SyncFs = 50, TmpFile = 51, Statx = 52,
    CopyFileRange64 = 53,
}

/// Bytes of a request's arguments in front of names and data.
pub(super) const fn fixed_bytes(opcode: Opcode) -> usize {
    match opcode {
        Opcode::Forget
        | Opcode::BatchForget
        | Opcode::Rename
        | Opcode::Link
        | Opcode::MkDir
        | Opcode::GetXattr
        | Opcode::ListXattr => 8,
        Opcode::SetAttr => 88,
        Opcode::MkNod | Opcode::Rename2 | Opcode::TmpFile | Opcode::Create => 16,
        Opcode::SetXattr => 16,
        Opcode::Read | Opcode::Write | Opcode::ReadDir | Opcode::ReadDirPlus => 40,
        Opcode::Release | Opcode::ReleaseDir | Opcode::Lseek => 24,
        Opcode::Fallocate => 32,
        Opcode::CopyFileRange | Opcode::CopyFileRange64 => 56,
        Opcode::Init => 64,
        Opcode::Fsync | Opcode::FsyncDir | Opcode::GetAttr | Opcode::Statx => 16,
        _ => 0,
    }
}

/// A whole request.
pub(super) fn header(opcode: u32, unique: u64, node: u64, uid: u32, arguments: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_BYTES + arguments.len());
    bytes.extend(((HEADER_BYTES + arguments.len()) as u32).to_le_bytes());
    bytes.extend(opcode.to_le_bytes());
    bytes.extend(unique.to_le_bytes());
    bytes.extend(node.to_le_bytes());
    // Group and process, extension and padding.
    bytes.extend(uid.to_le_bytes());
    bytes.extend([0; 12]);
    bytes.extend(arguments);
    bytes
}
