//! Reads and writes with flags of their own, where the C library has them.
//!
//! Android's gets them in version 33 of its interface. On a target without them the calls fail as
//! on a filesystem without support for flags, for which every caller has a fallback.

use rustix::fd::BorrowedFd;
use rustix::io::Errno;

#[cfg(not(target_os = "android"))]
mod calls {
    use std::io::{IoSlice, IoSliceMut};

    use rustix::io::{ReadWriteFlags, preadv2, pwritev2};

    use super::{BorrowedFd, Errno};

    pub(in super::super) fn read_cached(
        file: BorrowedFd<'_>,
        out: &mut [u8],
        at: u64,
    ) -> Result<usize, Errno> {
        let out = &mut [IoSliceMut::new(out)];
        preadv2(file, out, at, ReadWriteFlags::NOWAIT)
    }

    pub(in super::super) fn write_durably(
        file: BorrowedFd<'_>,
        content: &[u8],
        at: u64,
    ) -> Result<usize, Errno> {
        pwritev2(file, &[IoSlice::new(content)], at, ReadWriteFlags::DSYNC)
    }
}

#[cfg(target_os = "android")]
mod calls {
    use super::{BorrowedFd, Errno};

    pub(in super::super) fn read_cached(
        _file: BorrowedFd<'_>,
        _out: &mut [u8],
        _at: u64,
    ) -> Result<usize, Errno> {
        Err(Errno::NOSYS)
    }

    pub(in super::super) fn write_durably(
        _file: BorrowedFd<'_>,
        _content: &[u8],
        _at: u64,
    ) -> Result<usize, Errno> {
        Err(Errno::NOSYS)
    }
}

pub(super) use calls::{read_cached, write_durably};
