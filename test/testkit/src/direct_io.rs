//! Input and output past the kernel's cache (`O_DIRECT`), also asynchronous and many requests
//! at a time (`io_submit`), as databases and virtual machines do it.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// What offsets, lengths and addresses must be multiples of, on every disk.
pub const ALIGNMENT: usize = 4096;

/// `IOCB_CMD_PWRITE` of `<linux/aio_abi.h>`.
const COMMAND_PWRITE: u16 = 1;

/// Memory that `O_DIRECT` can use.
#[derive(Debug)]
pub struct AlignedBuffer {
    memory: Vec<u8>,
    start: usize,
    length: usize,
}

impl AlignedBuffer {
    /// A buffer of `length` zeros.
    pub fn zeroed(length: usize) -> Self {
        let memory = vec![0_u8; length + ALIGNMENT];
        let start = memory.as_ptr().align_offset(ALIGNMENT);
        Self {
            memory,
            start,
            length,
        }
    }

    /// These bytes.
    pub fn holding(bytes: &[u8]) -> Self {
        let mut buffer = Self::zeroed(bytes.len());
        buffer.bytes_mut().copy_from_slice(bytes);
        buffer
    }

    /// Its content.
    pub fn bytes(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.length]
    }

    /// The bytes, to be changed.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.length]
    }
}

/// Opens an open file once more, past the cache.
///
/// # Errors
/// What open(2) answers.
pub fn reopen(file: impl AsFd) -> Result<File, Errno> {
    let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    let flags = OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).map(File::from)
}

/// Reads up to `length` bytes from `offset` on, fewer only at the end of the file. `file` is
/// open with `O_DIRECT`.
///
/// # Errors
/// What pread(2) answers.
pub fn read(file: impl AsFd, offset: u64, length: usize) -> Result<Vec<u8>, Errno> {
    let mut buffer = AlignedBuffer::zeroed(length.next_multiple_of(ALIGNMENT));
    let mut done = 0;
    while done < length {
        let at = offset + done as u64;
        let count = rustix::io::pread(&file, &mut buffer.bytes_mut()[done..], at)?;
        done += count;
        // Only the end of the file is not a multiple.
        if count == 0 || !count.is_multiple_of(ALIGNMENT) {
            break;
        }
    }
    Ok(buffer.bytes()[..done.min(length)].to_vec())
}

/// Writes `data` from `offset` on, in requests of one page each that are submitted together,
/// and returns when all are answered: how many bytes were written. `file` is open with
/// `O_DIRECT`.
///
/// # Errors
/// That of the first request which failed; others may have succeeded.
pub fn write_together(file: impl AsFd, offset: u64, data: &AlignedBuffer) -> Result<u64, Errno> {
    let file = file.as_fd();
    let mut requests = Vec::new();
    for (at, page) in (offset..)
        .step_by(ALIGNMENT)
        .zip(data.bytes().chunks(ALIGNMENT))
    {
        requests.push(Request::write(file, at, page));
    }
    if requests.is_empty() {
        return Ok(0);
    }
    let queue = Queue::new(requests.len())?;
    // What was submitted is finished when the queue is dropped, also if this fails.
    queue.submit(&requests)?;
    queue.wait(requests.len())
}

/// `struct iocb`.
#[repr(C)]
#[derive(Debug, Default)]
struct Request {
    data: u64,
    /// The kernel's own key and flags, in an order that depends on the machine; both 0.
    key_and_flags: [u32; 2],
    command: u16,
    priority: i16,
    file: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    event_file: u32,
}

impl Request {
    fn write(file: BorrowedFd<'_>, offset: u64, data: &[u8]) -> Self {
        Self {
            command: COMMAND_PWRITE,
            // A descriptor in use is not negative.
            file: file.as_raw_fd().cast_unsigned(),
            buffer: data.as_ptr() as u64,
            bytes: data.len() as u64,
            offset: offset.cast_signed(),
            ..Self::default()
        }
    }
}

/// `struct io_event`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Event {
    data: u64,
    request: u64,
    result: i64,
    result2: i64,
}

/// A queue of the kernel. Dropping it waits for what is under way.
#[derive(Debug)]
struct Queue(libc::c_ulong);

impl Queue {
    fn new(requests: usize) -> Result<Self, Errno> {
        let mut context: libc::c_ulong = 0;
        // SAFETY: the kernel writes the number of a new context to `context`, and nothing else.
        let made = unsafe { libc::syscall(libc::SYS_io_setup, requests, &raw mut context) };
        checked(made).map(|_| Self(context))
    }

    fn submit(&self, requests: &[Request]) -> Result<(), Errno> {
        let pointers: Vec<*const Request> = requests.iter().map(std::ptr::from_ref).collect();
        let mut submitted = 0;
        while submitted < pointers.len() {
            let rest = &pointers[submitted..];
            // SAFETY: there are as many pointers as it says, each to a request; all requests,
            // their descriptors and the memory that they read outlive the queue, which waits
            // for them when it is dropped.
            let taken =
                unsafe { libc::syscall(libc::SYS_io_submit, self.0, rest.len(), rest.as_ptr()) };
            submitted += checked(taken)?;
        }
        Ok(())
    }

    fn wait(&self, requests: usize) -> Result<u64, Errno> {
        let mut events = vec![Event::default(); requests];
        let (mut answered, mut written) = (0, 0);
        let mut failed = None;
        while answered < requests {
            let room = &mut events[..requests - answered];
            let none = std::ptr::null_mut::<libc::timespec>();
            // SAFETY: the kernel writes at most as many events as there is room for.
            let count = unsafe {
                libc::syscall(
                    libc::SYS_io_getevents,
                    self.0,
                    1,
                    room.len(),
                    room.as_mut_ptr(),
                    none,
                )
            };
            let count = match checked(count) {
                Err(Errno::INTR) => continue,
                count => count?,
            };
            for event in &room[..count] {
                match u64::try_from(event.result) {
                    Ok(bytes) => written += bytes,
                    // Error numbers are small.
                    Err(_) => {
                        let errno = Errno::from_raw_os_error(-event.result as i32);
                        failed = failed.or(Some(errno));
                    }
                }
            }
            answered += count;
        }
        failed.map_or(Ok(written), Err)
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: the context is ours and not used any more.
        let _ended = unsafe { libc::syscall(libc::SYS_io_destroy, self.0) };
    }
}

/// The result of a system call that returns a count.
fn checked(result: libc::c_long) -> Result<usize, Errno> {
    usize::try_from(result).map_err(|_| {
        let error = std::io::Error::last_os_error();
        Errno::from_io_error(&error).unwrap_or(Errno::IO)
    })
}
