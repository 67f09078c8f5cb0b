//! Content of regular files.

use std::io::{self, IoSliceMut};

use mobifs_types::ByteRange;
use rustix::fs::{self, FallocateFlags, SeekFrom};
use rustix::io::{Errno, ReadWriteFlags, preadv2, pwrite, retry_on_intr};

use super::handle::Access;
use super::{PosixHandle, PosixLower, journal};

/// How much is written at once where a filesystem has no holes.
const ZERO_CHUNK_BYTES: usize = 256 * 1024;

fn ends_early() -> io::Error {
    io::Error::new(
        io::ErrorKind::WriteZero,
        "the filesystem wrote nothing and named no error",
    )
}

impl PosixLower {
    pub(super) fn read_content(
        &self,
        file: &PosixHandle,
        out: &mut [u8],
        offset: u64,
    ) -> io::Result<usize> {
        if file.direct {
            return journal::read(file, out, offset);
        }
        let fd = self.usable(file, Access::Read)?;
        let mut done = 0;
        while done < out.len() {
            let at = offset + done as u64;
            match retry_on_intr(|| rustix::io::pread(fd, &mut out[done..], at))? {
                0 => break,
                count => done += count,
            }
        }
        Ok(done)
    }

    pub(super) fn read_content_cached(
        &self,
        file: &PosixHandle,
        out: &mut [u8],
        offset: u64,
    ) -> io::Result<usize> {
        let blocked = || io::Error::from(io::ErrorKind::WouldBlock);
        if file.direct {
            return Err(blocked());
        }
        let fd = self.usable(file, Access::Read)?;
        let mut done = 0;
        while done < out.len() {
            let at = offset + done as u64;
            let mut rest = [IoSliceMut::new(&mut out[done..])];
            let read = retry_on_intr(|| preadv2(fd, &mut rest, at, ReadWriteFlags::NOWAIT));
            match read {
                Ok(0) => {
                    // Some kernels answer 0 for a page that is not in memory.
                    if fs::fstat(fd)?.st_size.cast_unsigned() > at {
                        return Err(blocked());
                    }
                    break;
                }
                Ok(count) => done += count,
                Err(Errno::AGAIN | Errno::NOTSUP | Errno::NOSYS | Errno::INVAL) => {
                    return Err(blocked());
                }
                Err(other) => return Err(other.into()),
            }
        }
        Ok(done)
    }

    pub(super) fn write_content(
        &self,
        file: &PosixHandle,
        content: &[u8],
        offset: u64,
    ) -> io::Result<()> {
        let fd = self.usable(file, Access::ReadWrite)?;
        let mut done = 0;
        while done < content.len() {
            match retry_on_intr(|| pwrite(fd, &content[done..], offset + done as u64))? {
                0 => return Err(ends_early()),
                count => done += count,
            }
        }
        Ok(())
    }

    pub(super) fn set_size(&self, file: &PosixHandle, size: u64) -> io::Result<()> {
        let fd = self.usable(file, Access::ReadWrite)?;
        Ok(retry_on_intr(|| fs::ftruncate(fd, size))?)
    }

    pub(super) fn zero_content(&self, file: &PosixHandle, range: ByteRange) -> io::Result<()> {
        let fd = self.usable(file, Access::ReadWrite)?;
        // Behind the end there is nothing to zero, and a range may have no end.
        let end = range.end.min(fs::fstat(fd)?.st_size.cast_unsigned());
        if range.start >= end {
            return Ok(());
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let (start, length) = (range.start, end - range.start);
        match retry_on_intr(|| fs::fallocate(fd, flags, start, length)) {
            Err(Errno::NOTSUP | Errno::NOSYS) => {}
            other => return Ok(other?),
        }
        let zeros = vec![0; ZERO_CHUNK_BYTES.min(usize::try_from(length).unwrap_or(usize::MAX))];
        let mut at = range.start;
        while at < end {
            let count = (end - at).min(zeros.len() as u64);
            self.write_content(file, &zeros[..usize::try_from(count).unwrap_or(0)], at)?;
            at += count;
        }
        Ok(())
    }

    pub(super) fn allocate_content(&self, file: &PosixHandle, range: ByteRange) -> io::Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let fd = self.usable(file, Access::ReadWrite)?;
        let call = || fs::fallocate(fd, FallocateFlags::KEEP_SIZE, range.start, range.len());
        match retry_on_intr(call) {
            Err(errno @ (Errno::NOTSUP | Errno::NOSYS)) => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                io::Error::from(errno),
            )),
            other => Ok(other?),
        }
    }

    pub(super) fn seek_content(
        &self,
        file: &PosixHandle,
        offset: u64,
        target: SeekFrom,
    ) -> io::Result<Option<u64>> {
        if i64::try_from(offset).is_err() {
            return Ok(None);
        }
        // The position that this moves is used by nobody: all I/O names its offset.
        match fs::seek(self.usable(file, Access::Read)?, target) {
            Ok(found) => Ok(Some(found)),
            Err(Errno::NXIO) => Ok(None),
            Err(other) => Err(other.into()),
        }
    }
}
