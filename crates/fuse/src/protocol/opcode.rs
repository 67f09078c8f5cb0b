//! Request numbers.

macro_rules! opcodes {
    ($($name:ident = $number:literal),* $(,)?) => {
        /// What a request asks for.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u32)]
        pub enum Opcode {
            $($name = $number),*
        }

        impl Opcode {
            /// The opcode of this number, if this crate knows it.
            pub const fn from_number(number: u32) -> Option<Self> {
                match number {
                    $($number => Some(Self::$name),)*
                    _ => None,
                }
            }
        }
    };
}

opcodes! {
    Lookup = 1,
    Forget = 2,
    GetAttr = 3,
    SetAttr = 4,
    ReadLink = 5,
    Symlink = 6,
    MkNod = 8,
    MkDir = 9,
    Unlink = 10,
    RmDir = 11,
    Rename = 12,
    Link = 13,
    Open = 14,
    Read = 15,
    Write = 16,
    StatFs = 17,
    Release = 18,
    Fsync = 20,
    SetXattr = 21,
    GetXattr = 22,
    ListXattr = 23,
    RemoveXattr = 24,
    Flush = 25,
    Init = 26,
    OpenDir = 27,
    ReadDir = 28,
    ReleaseDir = 29,
    FsyncDir = 30,
    Access = 34,
    Create = 35,
    Interrupt = 36,
    Bmap = 37,
    Destroy = 38,
    Ioctl = 39,
    Poll = 40,
    BatchForget = 42,
    Fallocate = 43,
    ReadDirPlus = 44,
    Rename2 = 45,
    Lseek = 46,
    CopyFileRange = 47,
    SyncFs = 50,
    TmpFile = 51,
    Statx = 52,
    CopyFileRange64 = 53,
}

impl Opcode {
    /// The kernel waits for no answer to these, and takes one as an error.
    pub const fn expects_no_reply(self) -> bool {
        matches!(self, Self::Forget | Self::BatchForget)
    }
}
