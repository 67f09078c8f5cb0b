//! Content of regular files.

use std::io;
use std::os::fd::BorrowedFd;

use mobifs_base::ByteRange;
use rustix::fs::{self, FallocateFlags, IFlags, SeekFrom};
use rustix::io::{Errno, pwrite, retry_on_intr};

use super::handle::Access;
use super::handle::PosixHandle;
use super::root::PosixLower;
use super::{flagged, journal};

/// How much is written at once where a filesystem has no holes.
const ZERO_CHUNK_BYTES: usize = 256 * 1024;

/// No inode of ext4 has more content.
const INLINE_BYTES_MAX: u64 = 4096;
/// `FS_INLINE_DATA_FL`.
const INLINE_DATA: IFlags = IFlags::from_bits_retain(0x1000_0000);

/// Whether content lies in the inode (ext4 with `inline_data`), or did when there was some. Linux (6.18) loses what is
/// written to such a file after `ftruncate` has made it longer, or after any `fallocate`.
fn has_inline_content(fd: BorrowedFd<'_>) -> bool {
    fs::ioctl_getflags(fd).is_ok_and(|flags| flags.contains(INLINE_DATA))
}

fn ends_early() -> io::Error {
    io::Error::new(
        io::ErrorKind::WriteZero,
        "the filesystem wrote nothing and named no error",
    )
}

/// Calls `read` until `out` is full or the file ends, however much it reads at a time.
fn read_all(
    out: &mut [u8],
    offset: u64,
    mut read: impl FnMut(&mut [u8], u64) -> Result<usize, Errno>,
) -> io::Result<usize> {
    let mut done = 0;
    while done < out.len() {
        let at = offset + done as u64;
        match retry_on_intr(|| read(&mut out[done..], at))? {
            0 => break,
            count => done += count,
        }
    }
    Ok(done)
}

/// Calls `write` until all of `content` is written, however much it writes at a time.
fn write_all(
    content: &[u8],
    offset: u64,
    mut write: impl FnMut(&[u8], u64) -> Result<usize, Errno>,
) -> io::Result<()> {
    let mut done = 0;
    while done < content.len() {
        match retry_on_intr(|| write(&content[done..], offset + done as u64))? {
            0 => return Err(ends_early()),
            count => done += count,
        }
    }
    Ok(())
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
        read_all(out, offset, |rest, at| rustix::io::pread(fd, rest, at))
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
            let read = retry_on_intr(|| flagged::read_cached(fd, &mut out[done..], at));
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
        write_all(content, offset, |rest, at| pwrite(fd, rest, at))
    }

    /// Where content lies in the inode, a file gets longer by a write.
    pub(super) fn set_size(&self, file: &PosixHandle, size: u64) -> io::Result<()> {
        let fd = self.usable(file, Access::ReadWrite)?;
        let before = fs::fstat(fd)?.st_size.cast_unsigned();
        let may_be_inline = before <= INLINE_BYTES_MAX && size > before;
        if may_be_inline && has_inline_content(fd) {
            return write_all(&[0], size - 1, |rest, at| pwrite(fd, rest, at));
        }
        Ok(retry_on_intr(|| fs::ftruncate(fd, size))?)
    }

    pub(super) fn zero_content(&self, file: &PosixHandle, range: ByteRange) -> io::Result<()> {
        let fd = self.usable(file, Access::ReadWrite)?;
        // After the end there is nothing to zero, and a range may have no end.
        let end = range.end.min(fs::fstat(fd)?.st_size.cast_unsigned());
        if range.start >= end {
            return Ok(());
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let (start, length) = (range.start, end - range.start);
        if end > INLINE_BYTES_MAX || !has_inline_content(fd) {
            match retry_on_intr(|| fs::fallocate(fd, flags, start, length)) {
                Err(Errno::NOTSUP | Errno::NOSYS) => {}
                other => return Ok(other?),
            }
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

    /// Allocates nothing where content lies in the inode: that takes no blocks until it grows.
    pub(super) fn allocate_content(&self, file: &PosixHandle, range: ByteRange) -> io::Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let fd = self.usable(file, Access::ReadWrite)?;
        if has_inline_content(fd) {
            return Ok(());
        }
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
        // The position that this moves is not used: all I/O names its offset.
        match fs::seek(self.usable(file, Access::Read)?, target) {
            Ok(found) => Ok(Some(found)),
            Err(Errno::NXIO) => Ok(None),
            Err(other) => Err(other.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers of a system call, one after the other; after them it succeeds in full.
    struct Answers(Vec<Result<usize, Errno>>);

    impl Answers {
        fn next(&mut self, wanted: usize) -> Result<usize, Errno> {
            if self.0.is_empty() {
                return Ok(wanted);
            }
            self.0.remove(0).map(|count| count.min(wanted))
        }
    }

    #[test]
    fn interrupted_and_short_writes_go_on_where_they_ended() {
        let content: Vec<u8> = (0..100).collect();
        let mut file = [0; 110];
        let mut answers = Answers(vec![Err(Errno::INTR), Ok(1), Err(Errno::INTR), Ok(98)]);
        let write = |rest: &[u8], at: u64| {
            let count = answers.next(rest.len())?;
            let at = usize::try_from(at).unwrap();
            file[at..at + count].copy_from_slice(&rest[..count]);
            Ok(count)
        };
        write_all(&content, 10, write).unwrap();
        assert_eq!(file[10..], content);
    }

    #[test]
    fn a_write_that_fails_or_does_nothing_is_an_error() {
        let mut answers = Answers(vec![Ok(5), Err(Errno::NOSPC)]);
        let failed = write_all(&[1; 10], 0, |rest, _| answers.next(rest.len()));
        assert_eq!(failed.unwrap_err().kind(), io::ErrorKind::StorageFull);
        let mut answers = Answers(vec![Ok(5), Ok(0)]);
        let failed = write_all(&[1; 10], 0, |rest, _| answers.next(rest.len()));
        assert_eq!(failed.unwrap_err().kind(), io::ErrorKind::WriteZero);
    }

    #[test]
    fn interrupted_and_short_reads_go_on_until_the_end_of_the_file() {
        let file: Vec<u8> = (0..100).collect();
        let mut answers = Answers(vec![Err(Errno::INTR), Ok(3), Err(Errno::INTR), Ok(1)]);
        let mut out = [0xcc; 50];
        let read = |rest: &mut [u8], at: u64| {
            let at = usize::try_from(at).unwrap();
            let count = answers.next(rest.len())?.min(file.len() - at);
            rest[..count].copy_from_slice(&file[at..at + count]);
            Ok(count)
        };
        assert_eq!(read_all(&mut out, 60, read).unwrap(), 40);
        assert_eq!(out[..40], file[60..]);
        assert_eq!(out[40..], [0xcc; 10]);
    }
}
