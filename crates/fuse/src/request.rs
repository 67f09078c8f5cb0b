//! Turns the bytes of a request into an [`Operation`]. Total: every sequence of bytes
//! gives an operation or a [`Malformed`].

use zerocopy::{FromBytes, Immutable, KnownLayout};

use crate::protocol::{
    BatchForgetArgs, CopyFileRangeArgs, CreateArgs, FallocateArgs, ForgetArgs, ForgetOne,
    FsyncArgs, GetXattrArgs, InitArgs, InitExtensionArgs, LinkArgs, LseekArgs, MkDirArgs,
    MkNodArgs, Opcode, ReadArgs, ReleaseArgs, Rename2Args, RenameArgs, RequestHeader, SetAttrArgs,
    SetXattrArgs, SetXattrCompatArgs, WriteArgs,
};

/// A request and its sender.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Number, node and sender.
    pub header: RequestHeader,
    /// What it asks for.
    pub operation: Operation<'a>,
}

/// Bytes that are not a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// Not even a header, so there is no number to answer to.
    Header,
    /// The header is there, the arguments are not what the opcode requires.
    Arguments {
        /// The request's number, to answer it.
        unique: u64,
        /// Whether the kernel waits for an answer.
        expects_reply: bool,
    },
}

/// What a request asks for, with its arguments. Names and data borrow from the
/// receive buffer.
#[derive(Clone, Copy, Debug)]
#[expect(
    missing_docs,
    reason = "the requests of <linux/fuse.h>, as fuse(4) documents them"
)]
pub enum Operation<'a> {
    Lookup {
        name: &'a [u8],
    },
    Forget {
        lookups: u64,
    },
    BatchForget {
        entries: &'a [u8],
    },
    GetAttr,
    SetAttr(SetAttrArgs),
    ReadLink,
    Symlink {
        name: &'a [u8],
        target: &'a [u8],
    },
    MkNod {
        args: MkNodArgs,
        name: &'a [u8],
    },
    MkDir {
        args: MkDirArgs,
        name: &'a [u8],
    },
    Unlink {
        name: &'a [u8],
    },
    RmDir {
        name: &'a [u8],
    },
    Rename {
        new_directory: u64,
        flags: u32,
        name: &'a [u8],
        new_name: &'a [u8],
    },
    Link {
        node: u64,
        name: &'a [u8],
    },
    TmpFile(CreateArgs),
    Release,
    Read(ReadArgs),
    Write {
        args: WriteArgs,
        data: &'a [u8],
    },
    StatFs,
    Fsync(FsyncArgs),
    FsyncDir(FsyncArgs),
    SyncFs,
    SetXattr {
        args: SetXattrArgs,
        name: &'a [u8],
        value: &'a [u8],
    },
    GetXattr {
        size: u32,
        name: &'a [u8],
    },
    ListXattr {
        size: u32,
    },
    RemoveXattr {
        name: &'a [u8],
    },
    Init(InitRequest),
    ReadDir(ReadArgs),
    ReadDirPlus(ReadArgs),
    Fallocate(FallocateArgs),
    Lseek(LseekArgs),
    CopyFileRange {
        args: CopyFileRangeArgs,
        wide_reply: bool,
    },
    Ioctl,
    Destroy,
    /// Known or not: answered with `ENOSYS`, after which the kernel does without.
    NotOffered,
}

/// INIT with both words of flags joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields of `fuse_init_in`")]
pub struct InitRequest {
    pub major: u32,
    pub minor: u32,
    pub max_readahead_bytes: u32,
    pub flags: u64,
}

/// Walks over the arguments of a request.
struct Arguments<'a>(&'a [u8]);

impl<'a> Arguments<'a> {
    fn take<T: FromBytes + KnownLayout + Immutable>(&mut self) -> Option<T> {
        let (value, rest) = T::read_from_prefix(self.0).ok()?;
        self.0 = rest;
        Some(value)
    }

    /// A string up to its NUL, which is not part of it.
    fn take_string(&mut self) -> Option<&'a [u8]> {
        let length = self.0.iter().position(|&byte| byte == 0)?;
        let (string, rest) = self.0.split_at(length);
        self.0 = &rest[1..];
        Some(string)
    }

    fn take_bytes(&mut self, length: u32) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(usize::try_from(length).ok()?)?;
        self.0 = rest;
        Some(bytes)
    }
}

impl<'a> Request<'a> {
    /// Whether the kernel waits for an answer.
    pub const fn expects_reply(&self) -> bool {
        !matches!(
            self.operation,
            Operation::Forget { .. } | Operation::BatchForget { .. }
        )
    }

    /// Parses one request as it was read from the device. `set_xattr_extended`: what
    /// was negotiated about the form of SETXATTR.
    ///
    /// # Errors
    /// [`Malformed`]; the kernel never sends such requests.
    pub fn parse(bytes: &'a [u8], set_xattr_extended: bool) -> Result<Self, Malformed> {
        let (header, rest) =
            RequestHeader::read_from_prefix(bytes).map_err(|_| Malformed::Header)?;
        let opcode = Opcode::from_number(header.opcode);
        let malformed = Malformed::Arguments {
            unique: header.unique,
            expects_reply: !opcode.is_some_and(Opcode::expects_no_reply),
        };
        if usize::try_from(header.len) != Ok(bytes.len()) {
            return Err(malformed);
        }
        let operation = match opcode {
            None => Operation::NotOffered,
            Some(opcode) => parse_operation(opcode, rest, set_xattr_extended).ok_or(malformed)?,
        };
        Ok(Self { header, operation })
    }
}

fn parse_operation(
    opcode: Opcode,
    bytes: &[u8],
    set_xattr_extended: bool,
) -> Option<Operation<'_>> {
    let mut arguments = Arguments(bytes);
    Some(match opcode {
        Opcode::Forget => Operation::Forget {
            lookups: arguments.take::<ForgetArgs>()?.lookups,
        },
        Opcode::BatchForget => parse_batch_forget(arguments)?,
        Opcode::GetAttr => Operation::GetAttr,
        Opcode::SetAttr => Operation::SetAttr(arguments.take()?),
        Opcode::Release => {
            let ReleaseArgs { .. } = arguments.take()?;
            Operation::Release
        }
        Opcode::Read => Operation::Read(arguments.take()?),
        Opcode::ReadDir => Operation::ReadDir(arguments.take()?),
        Opcode::ReadDirPlus => Operation::ReadDirPlus(arguments.take()?),
        Opcode::Write => {
            let args: WriteArgs = arguments.take()?;
            Operation::Write {
                args,
                data: arguments.take_bytes(args.size)?,
            }
        }
        Opcode::StatFs => Operation::StatFs,
        Opcode::Fsync => Operation::Fsync(arguments.take()?),
        Opcode::FsyncDir => Operation::FsyncDir(arguments.take()?),
        Opcode::SyncFs => Operation::SyncFs,
        Opcode::SetXattr | Opcode::GetXattr | Opcode::ListXattr | Opcode::RemoveXattr => {
            parse_xattr(opcode, arguments, set_xattr_extended)?
        }
        Opcode::Init => Operation::Init(parse_init(arguments)?),
        Opcode::Fallocate => Operation::Fallocate(arguments.take()?),
        Opcode::Lseek => Operation::Lseek(arguments.take()?),
        Opcode::CopyFileRange | Opcode::CopyFileRange64 => Operation::CopyFileRange {
            args: arguments.take()?,
            wide_reply: opcode == Opcode::CopyFileRange64,
        },
        Opcode::Ioctl => Operation::Ioctl,
        Opcode::Destroy => Operation::Destroy,
        // No state is kept for open files (see the crate's documentation); for the others the
        // kernel has fallbacks.
        Opcode::Create
        | Opcode::Open
        | Opcode::OpenDir
        | Opcode::ReleaseDir
        | Opcode::Flush
        | Opcode::Access
        | Opcode::Interrupt
        | Opcode::Bmap
        | Opcode::Poll
        | Opcode::Statx => Operation::NotOffered,
        Opcode::Lookup
        | Opcode::ReadLink
        | Opcode::Symlink
        | Opcode::MkNod
        | Opcode::MkDir
        | Opcode::Unlink
        | Opcode::RmDir
        | Opcode::Rename
        | Opcode::Rename2
        | Opcode::Link
        | Opcode::TmpFile => parse_namespace(opcode, arguments)?,
    })
}

fn parse_namespace(opcode: Opcode, mut arguments: Arguments<'_>) -> Option<Operation<'_>> {
    Some(match opcode {
        Opcode::Lookup => Operation::Lookup {
            name: arguments.take_string()?,
        },
        Opcode::ReadLink => Operation::ReadLink,
        Opcode::Symlink => {
            let name = arguments.take_string()?;
            Operation::Symlink {
                name,
                target: arguments.take_string()?,
            }
        }
        Opcode::MkNod => {
            let args = arguments.take()?;
            Operation::MkNod {
                args,
                name: arguments.take_string()?,
            }
        }
        Opcode::MkDir => {
            let args = arguments.take()?;
            Operation::MkDir {
                args,
                name: arguments.take_string()?,
            }
        }
        Opcode::Unlink => Operation::Unlink {
            name: arguments.take_string()?,
        },
        Opcode::RmDir => Operation::RmDir {
            name: arguments.take_string()?,
        },
        Opcode::Rename | Opcode::Rename2 => {
            let (new_directory, flags) = if opcode == Opcode::Rename {
                (arguments.take::<RenameArgs>()?.new_directory, 0)
            } else {
                let args: Rename2Args = arguments.take()?;
                (args.new_directory, args.flags)
            };
            let name = arguments.take_string()?;
            Operation::Rename {
                new_directory,
                flags,
                name,
                new_name: arguments.take_string()?,
            }
        }
        Opcode::Link => {
            let node = arguments.take::<LinkArgs>()?.node;
            Operation::Link {
                node,
                name: arguments.take_string()?,
            }
        }
        Opcode::TmpFile => Operation::TmpFile(arguments.take()?),
        _ => return None,
    })
}

fn parse_batch_forget(mut arguments: Arguments<'_>) -> Option<Operation<'_>> {
    let count = arguments.take::<BatchForgetArgs>()?.count;
    let length = count.checked_mul(u32::try_from(size_of::<ForgetOne>()).ok()?)?;
    Some(Operation::BatchForget {
        entries: arguments.take_bytes(length)?,
    })
}

fn parse_xattr(
    opcode: Opcode,
    mut arguments: Arguments<'_>,
    set_xattr_extended: bool,
) -> Option<Operation<'_>> {
    Some(match opcode {
        Opcode::SetXattr => parse_set_xattr(arguments, set_xattr_extended)?,
        Opcode::GetXattr => {
            let size = arguments.take::<GetXattrArgs>()?.size;
            Operation::GetXattr {
                size,
                name: arguments.take_string()?,
            }
        }
        Opcode::ListXattr => Operation::ListXattr {
            size: arguments.take::<GetXattrArgs>()?.size,
        },
        Opcode::RemoveXattr => Operation::RemoveXattr {
            name: arguments.take_string()?,
        },
        _ => return None,
    })
}

fn parse_set_xattr(mut arguments: Arguments<'_>, extended: bool) -> Option<Operation<'_>> {
    let args = if extended {
        arguments.take::<SetXattrArgs>()?
    } else {
        let SetXattrCompatArgs { size, flags } = arguments.take()?;
        SetXattrArgs {
            size,
            flags,
            ..SetXattrArgs::default()
        }
    };
    let name = arguments.take_string()?;
    Some(Operation::SetXattr {
        args,
        name,
        value: arguments.take_bytes(args.size)?,
    })
}

fn parse_init(mut arguments: Arguments<'_>) -> Option<InitRequest> {
    let InitArgs {
        major,
        minor,
        max_readahead_bytes,
        flags,
    } = arguments.take()?;
    // Absent in kernels before the extension.
    let flags2 = arguments
        .take::<InitExtensionArgs>()
        .map_or(0, |extension| extension.flags2);
    let flags = u64::from(flags) | (u64::from(flags2) << 32);
    Some(InitRequest {
        major,
        minor,
        max_readahead_bytes,
        flags,
    })
}

/// The entries of a BATCH_FORGET.
pub fn forget_entries(entries: &[u8]) -> impl Iterator<Item = ForgetOne> + '_ {
    entries
        .chunks_exact(size_of::<ForgetOne>())
        .filter_map(|entry| ForgetOne::read_from_bytes(entry).ok())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zerocopy::IntoBytes;

    use super::*;

    /// A request as the kernel would lay it out.
    fn request(opcode: u32, arguments: &[u8]) -> Vec<u8> {
        let len = u32::try_from(size_of::<RequestHeader>() + arguments.len()).unwrap();
        let header = RequestHeader {
            len,
            opcode,
            unique: 7,
            node: 1,
            ..Default::default()
        };
        [header.as_bytes(), arguments].concat()
    }

    #[test]
    fn a_write_carries_exactly_its_data() {
        let args = WriteArgs {
            offset: 10,
            size: 3,
            ..Default::default()
        };
        let bytes = request(16, &[args.as_bytes(), b"abc"].concat());
        let Operation::Write { args, data } = Request::parse(&bytes, true).unwrap().operation
        else {
            panic!("not a write");
        };
        assert_eq!((args.offset, data), (10, &b"abc"[..]));
    }

    #[test]
    fn a_write_with_less_data_than_it_says_is_refused() {
        let args = WriteArgs {
            size: 4,
            ..Default::default()
        };
        let bytes = request(16, &[args.as_bytes(), b"abc"].concat());
        let expected = Malformed::Arguments {
            unique: 7,
            expects_reply: true,
        };
        assert_eq!(Request::parse(&bytes, true).unwrap_err(), expected);
    }

    #[test]
    fn both_forms_of_rename_give_the_same_operation() {
        let old = request(
            12,
            &[RenameArgs { new_directory: 5 }.as_bytes(), b"a\0b\0"].concat(),
        );
        let args = Rename2Args {
            new_directory: 5,
            flags: 2,
            padding: 0,
        };
        let new = request(45, &[args.as_bytes(), b"a\0b\0"].concat());
        for (bytes, wanted_flags) in [(old, 0), (new, 2)] {
            let operation = Request::parse(&bytes, true).unwrap().operation;
            let Operation::Rename {
                new_directory: 5,
                flags,
                name: b"a",
                new_name: b"b",
            } = operation
            else {
                panic!("{operation:?}");
            };
            assert_eq!(flags, wanted_flags);
        }
    }

    #[test]
    fn a_short_init_of_an_old_kernel_is_understood() {
        let args = InitArgs {
            major: 7,
            minor: 31,
            max_readahead_bytes: 9,
            flags: 3,
        };
        let bytes = request(26, args.as_bytes());
        let Operation::Init(init) = Request::parse(&bytes, false).unwrap().operation else {
            panic!("not an init");
        };
        let expected = InitRequest {
            major: 7,
            minor: 31,
            max_readahead_bytes: 9,
            flags: 3,
        };
        assert_eq!(init, expected);
    }

    #[test]
    fn a_name_without_end_is_refused() {
        assert!(Request::parse(&request(1, b"name"), true).is_err());
        assert!(Request::parse(&request(1, b""), true).is_err());
    }

    #[test]
    fn a_batch_that_claims_more_than_it_brings_is_refused() {
        let args = BatchForgetArgs {
            count: u32::MAX,
            dummy: 0,
        };
        let expected = Malformed::Arguments {
            unique: 7,
            expects_reply: false,
        };
        assert_eq!(
            Request::parse(&request(42, args.as_bytes()), true).unwrap_err(),
            expected
        );
    }

    proptest! {
        /// Hostile bytes after a plausible header: an answer, never a panic.
        #[test]
        fn parsing_is_total(
            opcode in 0_u32..60,
            arguments in proptest::collection::vec(any::<u8>(), 0..200),
            extended in any::<bool>(),
        ) {
            let bytes = request(opcode, &arguments);
            if let Ok(Request { operation: Operation::BatchForget { entries }, .. }) =
                Request::parse(&bytes, extended)
            {
                prop_assert_eq!(forget_entries(entries).count() * 16, entries.len());
            }
        }

        #[test]
        fn parsing_arbitrary_bytes_is_total(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            // Only a header whose length field fits can be accepted.
            if let Ok(request) = Request::parse(&bytes, true) {
                prop_assert_eq!(request.header.len as usize, bytes.len());
            }
        }
    }
}
