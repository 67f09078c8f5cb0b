//! A durable write (`RWF_DSYNC`, `RWF_SYNC`) made as one that is not.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};

use mobifs_steered::Decisions;
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::Errno;

use crate::calls::DURABLE_WRITE;
use crate::listener::Answer;
use crate::received::Received;
use crate::same_credentials::{Twin, has_no_size_limit};
use crate::target::{Found, MountTable, Threads, read_memory};

/// What is copied at most; a larger write is made by the process itself.
const BYTES_MAX: usize = 4 << 20;
const PIECES_MAX: u64 = 1024;
const PIECE_BYTES: usize = 2 * size_of::<usize>();
const RWF_APPEND: u32 = libc::RWF_APPEND as u32;

/// Makes the write; `None` where that would not be certain to be the same.
pub(crate) fn write_relaxed(
    call: &Received,
    decisions: &Decisions,
    is_waiting: &dyn Fn() -> bool,
) -> Option<Answer> {
    let [number, vector, count, low, high, flags] = call.arguments;
    let found = Threads::default().descriptor(call.thread, number as RawFd)?;
    let Found::Same(file) = found else {
        return None;
    };
    let how = fcntl_getfl(&file).ok()?;
    // What is written past the cache has to lie in memory as it does with the process.
    let is_direct = how.contains(OFlags::DIRECT);
    // If the supervisor is killed, the write may be made twice.
    let appends = how.contains(OFlags::APPEND) || flags as u32 & RWF_APPEND != 0;
    if is_direct || appends || is_at_position(low, high) {
        return None;
    }
    if !decisions.is_relaxed(&file, MountTable::of(call.thread).path()) {
        return None;
    }
    let bytes = gather(call.thread, vector, count)?;
    Twin::of(call.thread)?;
    if !has_no_size_limit(call.thread) || !is_waiting() {
        return None;
    }
    let flags = flags as u32 & !DURABLE_WRITE;
    Some(match write(&file, &bytes, (low, high), flags) {
        Ok(count) => Answer::Value(count),
        Err(error) => Answer::Error(error),
    })
}

/// Whether a write goes to where the descriptor is, and moves it on: the offset is -1. Where a word has 64 bits, the
/// lower one is all of it.
fn is_at_position(low: u64, high: u64) -> bool {
    let (low, high) = (low as usize, high as usize);
    low == usize::MAX && (usize::BITS == u64::BITS || high == usize::MAX)
}

/// What the process has to write.
fn gather(thread: u32, vector: u64, count: u64) -> Option<Vec<u8>> {
    if count == 0 || count > PIECES_MAX {
        return None;
    }
    let mut pieces = vec![0; count as usize * PIECE_BYTES];
    read_memory(thread, vector, &mut pieces).ok()?;
    let mut bytes = Vec::new();
    for piece in pieces.chunks_exact(PIECE_BYTES) {
        let (address, length) = piece.split_at(PIECE_BYTES / 2);
        let address = usize::from_ne_bytes(address.try_into().ok()?);
        let length = usize::from_ne_bytes(length.try_into().ok()?);
        let start = bytes.len();
        let end = start.checked_add(length).filter(|&end| end <= BYTES_MAX)?;
        bytes.resize(end, 0);
        read_memory(thread, address as u64, bytes.get_mut(start..)?).ok()?;
    }
    (!bytes.is_empty()).then_some(bytes)
}

fn write(file: &OwnedFd, bytes: &[u8], place: (u64, u64), flags: u32) -> Result<i64, Errno> {
    let piece = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    // SAFETY: the descriptor is open, and the kernel reads no more than the slice holds.
    let count = unsafe {
        libc::syscall(
            libc::SYS_pwritev2,
            file.as_raw_fd(),
            &raw const piece,
            1,
            place.0 as libc::c_ulong,
            place.1 as libc::c_ulong,
            flags,
        )
    };
    if count < 0 {
        let error = std::io::Error::last_os_error();
        return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO));
    }
    Ok(count as i64)
}
