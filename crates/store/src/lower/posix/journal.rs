//! Direct, aligned I/O for the journal file.

use std::io;

use mobifs_base::FileKind;
use rustix::fs::{self, AtFlags, IFlags, Mode, OFlags, StatxFlags};
use rustix::io::{Errno, pread, pwrite, retry_on_intr};

use super::handle::Access;
use super::handle::PosixHandle;
use super::root::PosixLower;
use super::{flagged, magic};
use crate::lower::{Create, JOURNAL_BLOCK_BYTES, JournalBuffer};

/// [`JOURNAL_BLOCK_BYTES`] as an offset.
const BLOCK: u64 = JOURNAL_BLOCK_BYTES as u64;

impl PosixLower {
    pub(super) fn open_journal_file(
        &self,
        directory: &PosixHandle,
        name: &[u8],
    ) -> io::Result<(PosixHandle, bool)> {
        let is_new = match self.create_entry(directory, name, &Create::Regular) {
            Ok(()) => true,
            // It may exist, and a read-only filesystem may hold one to look at.
            Err(error)
                if [Errno::EXIST, Errno::ROFS]
                    .map(|errno| Some(errno.raw_os_error()))
                    .contains(&error.raw_os_error()) =>
            {
                false
            }
            Err(error) => return Err(error),
        };
        let plain = self.open_entry(directory, name, true)?;
        if plain.kind != FileKind::Regular {
            return Err(Errno::INVAL.into());
        }
        if is_new {
            overwrite_in_place(&plain);
        }
        let open = |access| {
            let flags = access | OFlags::DIRECT | OFlags::NOCTTY | OFlags::CLOEXEC;
            fs::open(plain.path().as_str(), flags, Mode::empty())
        };
        let opened = match open(OFlags::RDWR) {
            Err(Errno::ACCESS | Errno::ROFS | Errno::PERM) => {
                open(OFlags::RDONLY).map(|fd| (fd, Access::Read))
            }
            other => other.map(|fd| (fd, Access::ReadWrite)),
        };
        match opened {
            Ok((fd, access)) => {
                let mut handle = PosixHandle::new(fd, FileKind::Regular, access);
                handle.direct = true;
                match direct_block_bytes(&handle)? {
                    Some(bytes) if bytes as usize <= JOURNAL_BLOCK_BYTES => Ok((handle, true)),
                    // Accepted but not done, or with larger units than ours.
                    _ => Ok((plain, false)),
                }
            }
            Err(Errno::INVAL | Errno::NOTSUP) => Ok((plain, false)),
            Err(other) => Err(other.into()),
        }
    }
}

/// Has the filesystem overwrite a new file in its blocks where it would write elsewhere by default:
/// a commit, and with it a mount, must not need room on a full disk. btrfs gives up its checksums
/// for that; the journal has its own.
fn overwrite_in_place(file: &PosixHandle) {
    let ask = || {
        if magic::magic(fs::fstatfs(file.fd())?.f_type) != magic::BTRFS_MAGIC {
            return Ok(());
        }
        let flags = fs::ioctl_getflags(file.fd())?;
        // What is compressed is written elsewhere.
        fs::ioctl_setflags(file.fd(), (flags - IFlags::COMPRESSED) | IFlags::NOCOW)
    };
    if let Err(errno) = ask() {
        tracing::info!(
            %errno,
            "cannot set NOCOW on the journal: each commit takes new blocks"
        );
    }
}

/// The alignment that direct I/O really needs on this file; none where the kernel
/// takes the flag but goes through its page cache.
fn direct_block_bytes(file: &PosixHandle) -> io::Result<Option<u32>> {
    let found = fs::statx(file.fd(), "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN)?;
    if StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::DIOALIGN) {
        let bytes = found.stx_dio_mem_align.max(found.stx_dio_offset_align);
        return Ok((bytes > 0).then_some(bytes));
    }
    // Kernels before 6.1 and filesystems that do not report it: those in memory have no device to
    // go to directly, the others honour the flag when they accept it.
    let in_memory = magic::is_memory_filesystem(fs::fstatfs(file.fd())?.f_type);
    Ok((!in_memory).then_some(512))
}

/// Reads through a direct descriptor, by way of an aligned buffer where `out` is not
/// aligned itself.
pub(super) fn read(file: &PosixHandle, out: &mut [u8], offset: u64) -> io::Result<usize> {
    let aligned = offset.is_multiple_of(BLOCK)
        && out.len().is_multiple_of(JOURNAL_BLOCK_BYTES)
        && out.as_ptr().addr().is_multiple_of(JOURNAL_BLOCK_BYTES);
    if aligned {
        return read_aligned(file, out, offset);
    }
    let start = offset - offset % BLOCK;
    let skip = usize::try_from(offset - start).unwrap_or(0);
    let mut buffer = JournalBuffer::zeroed(skip + out.len());
    let found = read_aligned(file, buffer.as_bytes_mut(), start)?;
    let count = found.saturating_sub(skip).min(out.len());
    out[..count].copy_from_slice(&buffer.as_bytes()[skip..skip + count]);
    Ok(count)
}

fn read_aligned(file: &PosixHandle, out: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < out.len() {
        let at = offset + done as u64;
        let count = retry_on_intr(|| pread(file.fd(), &mut out[done..], at))?;
        done += count;
        // A part of a block is the end of the file; going on from there would be an unaligned read.
        if count == 0 || count % JOURNAL_BLOCK_BYTES != 0 {
            break;
        }
    }
    Ok(done)
}

/// Writes whole blocks. See [`crate::lower::Lower::journal_write`].
pub(super) fn write(
    file: &PosixHandle,
    blocks: &JournalBuffer,
    offset: u64,
    durable: bool,
) -> io::Result<()> {
    let call = |rest: &[u8], at: u64, durable: bool| {
        if durable {
            flagged::write_durably(file.fd(), rest, at)
        } else {
            pwrite(file.fd(), rest, at)
        }
    };
    let flush_after = write_blocks(blocks.as_bytes(), offset, durable, call)?;
    if flush_after { flush(file) } else { Ok(()) }
}

/// Calls `write` until all blocks are written, however many it writes at a time. Returns whether a
/// flush has to follow, because the filesystem cannot make one write durable.
fn write_blocks(
    content: &[u8],
    offset: u64,
    durable: bool,
    mut write: impl FnMut(&[u8], u64, bool) -> Result<usize, Errno>,
) -> io::Result<bool> {
    if !offset.is_multiple_of(BLOCK) {
        return Err(Errno::INVAL.into());
    }
    let mut each_durable = durable;
    let mut flush_after = false;
    let mut done = 0;
    while done < content.len() {
        let rest = &content[done..];
        let at = offset + done as u64;
        match retry_on_intr(|| write(rest, at, each_durable)) {
            Ok(count) if count > 0 && count % JOURNAL_BLOCK_BYTES == 0 => done += count,
            Ok(count) if count == rest.len() => done += count,
            // Part of a block: writing the block again from its start is harmless.
            Ok(count) if count > JOURNAL_BLOCK_BYTES => {
                done += count - count % JOURNAL_BLOCK_BYTES;
            }
            Ok(_) => {
                return Err(io::Error::new(
                    io::ErrorKind::WriteZero,
                    "the journal write made no progress",
                ));
            }
            Err(Errno::NOTSUP | Errno::NOSYS | Errno::INVAL) if each_durable => {
                // The filesystem cannot make one write durable: write, then flush.
                each_durable = false;
                flush_after = true;
            }
            Err(other) => return Err(other.into()),
        }
    }
    Ok(flush_after)
}

pub(super) fn flush(file: &PosixHandle) -> io::Result<()> {
    Ok(retry_on_intr(|| fs::fdatasync(file.fd()))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The arguments of the system call: offset, bytes and whether to be durable.
    type Asked = Vec<(u64, usize, bool)>;

    fn ask(answers: &[Result<usize, Errno>], durable: bool) -> (io::Result<bool>, Asked) {
        let mut asked = Asked::new();
        let mut answers = answers.iter();
        let content = [7; 4 * JOURNAL_BLOCK_BYTES];
        let done = write_blocks(&content, BLOCK, durable, |rest, at, durable| {
            asked.push((at, rest.len(), durable));
            answers.next().copied().unwrap_or(Ok(rest.len()))
        });
        (done, asked)
    }

    #[test]
    fn interrupted_and_short_journal_writes_go_on_at_a_block() {
        let answers = [Err(Errno::INTR), Ok(4096), Err(Errno::INTR), Ok(6000)];
        let (done, asked) = ask(&answers, true);
        assert!(!done.unwrap());
        let expected = [
            (4096, 16_384, true),
            (4096, 16_384, true),
            (8192, 12_288, true),
            (8192, 12_288, true),
            (12_288, 8192, true),
        ];
        assert_eq!(asked, expected);
    }

    #[test]
    fn a_filesystem_without_durable_writes_is_written_and_flushed() {
        let (done, asked) = ask(&[Ok(4096), Err(Errno::NOTSUP)], true);
        assert!(done.unwrap());
        let expected = [
            (4096, 16_384, true),
            (8192, 12_288, true),
            (8192, 12_288, false),
        ];
        assert_eq!(asked, expected);
    }

    #[test]
    fn a_journal_write_that_fails_or_gets_nowhere_is_an_error() {
        for answer in [Err(Errno::IO), Err(Errno::NOSPC), Ok(0), Ok(512)] {
            for durable in [false, true] {
                let (done, asked) = ask(&[Ok(4096), answer], durable);
                done.unwrap_err();
                assert_eq!(asked.len(), 2, "{answer:?}");
            }
        }
    }
}
