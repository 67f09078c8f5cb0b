//! Requests of Linux's own asynchronous I/O (`io_submit`).
//!
//! A request for durability becomes one that reads or writes nothing: it completes as the other would,
//! by way of the same event. It is changed in the memory of the process, before the kernel goes on.

use std::os::fd::RawFd;

use mobifs_steered::Decisions;
use rustix::fs::{OFlags, fcntl_getfl};

use crate::calls::DURABLE_WRITE;
use crate::listener::Received;
use crate::target::{Found, Threads, mount_table_of, read_memory, write_memory};

const REQUESTS_MAX: u64 = 1024;
const REQUEST_BYTES: usize = 64;

/// Where fields of `struct iocb` lie.
const FLAGS_AT: usize = 12;
const OPERATION_AT: usize = 16;
const DESCRIPTOR_AT: usize = 20;
const BUFFER_AT: usize = 24;
const OFFSET_END: usize = 48;

/// `IOCB_CMD_…`.
const READ: u16 = 0;
const WRITE: u16 = 1;
const SYNC: u16 = 2;
const DATA_SYNC: u16 = 3;
const WRITE_VECTOR: u16 = 8;

/// Changes what need not be durable.
pub(crate) fn relax(call: &Received, threads: &mut Threads, decisions: &Decisions) -> Option<()> {
    let [_, count, pointers, ..] = call.arguments;
    // Where bytes have the other order, fields lie elsewhere.
    if count == 0 || count > REQUESTS_MAX || cfg!(target_endian = "big") {
        return None;
    }
    let mut addresses = vec![0; count as usize * size_of::<u64>()];
    read_memory(call.thread, pointers, &mut addresses).ok()?;
    for address in addresses.chunks_exact(size_of::<u64>()) {
        let address = u64::from_ne_bytes(address.try_into().ok()?);
        let mut request = [0; REQUEST_BYTES];
        read_memory(call.thread, address, &mut request).ok()?;
        if let Some(relaxed) = relaxed(&request, call.thread, threads, decisions) {
            // Read-only memory: the request keeps its meaning.
            let _left = write_memory(call.thread, address, &relaxed);
        }
    }
    Some(())
}

fn relaxed(
    request: &[u8; REQUEST_BYTES],
    thread: u32,
    threads: &mut Threads,
    decisions: &Decisions,
) -> Option<[u8; REQUEST_BYTES]> {
    let operation = u16::from_ne_bytes(request.get(OPERATION_AT..)?.get(..2)?.try_into().ok()?);
    let flags = u32::from_ne_bytes(request.get(FLAGS_AT..)?.get(..4)?.try_into().ok()?);
    let number = RawFd::from_ne_bytes(request.get(DESCRIPTOR_AT..)?.get(..4)?.try_into().ok()?);
    let is_sync = matches!(operation, SYNC | DATA_SYNC)
        && flags == 0
        && request
            .get(BUFFER_AT..OFFSET_END)?
            .iter()
            .all(|&byte| byte == 0);
    let is_durable_write = matches!(operation, WRITE | WRITE_VECTOR) && flags & DURABLE_WRITE != 0;
    if !is_sync && !is_durable_write {
        return None;
    }
    let Found::Same(file) = threads.descriptor(thread, number)? else {
        return None;
    };
    let table = mount_table_of(thread);
    if !decisions.is_relaxed(&file, table.as_str()) {
        threads.discard(file);
        return None;
    }
    let mut relaxed = *request;
    if is_sync {
        // A pending error stays to be reported by the request.
        decisions.answer(&file, table.as_str())?.ok()?;
        let access = fcntl_getfl(&file).ok()? & OFlags::RWMODE;
        let empty = if access == OFlags::WRONLY {
            WRITE
        } else {
            READ
        };
        put(&mut relaxed, OPERATION_AT, &empty.to_ne_bytes());
    } else {
        let flags = flags & !DURABLE_WRITE;
        put(&mut relaxed, FLAGS_AT, &flags.to_ne_bytes());
    }
    Some(relaxed)
}

fn put(request: &mut [u8; REQUEST_BYTES], at: usize, field: &[u8]) {
    if let Some(place) = request.get_mut(at..at + field.len()) {
        place.copy_from_slice(field);
    }
}
