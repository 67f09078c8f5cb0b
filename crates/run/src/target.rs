//! Looking into the thread whose call waits.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::mpsc::{SyncSender, sync_channel};

use mobifs_steered::Look;
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags, open, statx};
use rustix::io::Errno;
use rustix::process::{ForeignRawFd, Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

/// `PIDFD_THREAD` (Linux 6.9).
const OF_THREAD: u32 = libc::O_EXCL as u32;
/// How many threads are remembered: those whose numbers differ by less are, all of them.
const KNOWN_MAX: usize = 256;
/// The longest path that the kernel takes, with its NUL.
const PATH_BYTES_MAX: usize = 4096;
/// Memory is read up to borders of this size, as what comes after may not be there.
const PAGE_BYTES: u64 = 4096;

/// A descriptor of another process.
#[derive(Debug)]
pub(crate) enum Found {
    /// The same open file description.
    Same(OwnedFd),
    /// The same file, where the kernel lets this process see no more (Yama, or a thread before
    /// Linux 6.9).
    Seen(OwnedFd),
}

impl AsFd for Found {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Same(file) | Self::Seen(file) => file.as_fd(),
        }
    }
}

/// How many descriptors wait to be closed.
const DISCARDED_MAX: usize = 256;

/// Threads that have made calls.
#[derive(Debug, Default)]
pub(crate) struct Threads {
    /// To the thread that closes descriptors, when there is one.
    discarded: Option<SyncSender<OwnedFd>>,
    /// By the last digits of their numbers. A thread that has got the number of one that has ended is not
    /// taken for it: the kernel knows.
    known: Vec<Option<(u32, OwnedFd)>>,
}

impl Threads {
    /// The file of a thread's descriptor, if it is open for more than its path.
    pub(crate) fn descriptor(&mut self, thread: u32, number: RawFd) -> Option<Found> {
        if number < 0 {
            return None;
        }
        match self.same(thread, number) {
            Ok(file) => Some(Found::Same(file)),
            Err(Errno::BADF) => None,
            Err(_) => seen(thread, number).ok().map(Found::Seen),
        }
    }

    /// Closes a descriptor of a file on any filesystem. Network filesystems and FUSE write back or ask
    /// their server at each close, and the server may be a process that waits for an answer from here.
    pub(crate) fn discard(&mut self, file: OwnedFd) {
        // Another thread takes longer than this look.
        if Look::at(&file).is_ok_and(|look| look.is_closed_at_once()) {
            return;
        }
        let sender = self.discarded.get_or_insert_with(|| {
            let (sender, receiver) = sync_channel(DISCARDED_MAX);
            // Without the thread, descriptors are closed where they are.
            let _closer = std::thread::Builder::new().spawn(move || receiver.iter().for_each(drop));
            sender
        });
        let _closed_here = sender.try_send(file);
    }

    fn same(&mut self, thread: u32, number: RawFd) -> Result<OwnedFd, Errno> {
        let place = thread as usize % KNOWN_MAX;
        if let Some(Some((known, handle))) = self.known.get(place)
            && *known == thread
        {
            match descriptor_of(handle, number) {
                Err(Errno::SRCH) => {}
                result => return result,
            }
        }
        let new = handle(thread)?;
        let file = descriptor_of(&new, number);
        self.known.resize_with(KNOWN_MAX, || None);
        if let Some(known) = self.known.get_mut(place) {
            *known = Some((thread, new));
        }
        file
    }
}

fn descriptor_of(thread: &OwnedFd, number: RawFd) -> Result<OwnedFd, Errno> {
    pidfd_getfd(thread, number as ForeignRawFd, PidfdGetfdFlags::empty())
}

fn handle(thread: u32) -> Result<OwnedFd, Errno> {
    let thread = i32::try_from(thread).ok().and_then(Pid::from_raw);
    let thread = thread.ok_or(Errno::SRCH)?;
    match pidfd_open(thread, PidfdFlags::from_bits_retain(OF_THREAD)) {
        // The first thread of a process has a handle on older kernels, too.
        Err(Errno::INVAL) => pidfd_open(thread, PidfdFlags::empty()),
        result => result,
    }
}

fn seen(thread: u32, number: RawFd) -> Result<OwnedFd, Errno> {
    let link = format!("/proc/{thread}/fd/{number}");
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let file = open(link.as_str(), flags, Mode::empty())?;
    // The link's mode tells what the descriptor is open for.
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    let about = statx(rustix::fs::CWD, link.as_str(), flags, StatxFlags::MODE)?;
    if about.stx_mode & 0o600 == 0 {
        return Err(Errno::BADF);
    }
    Ok(file)
}

/// Where the mounts are listed that a thread sees. Made for each call, and read for few: so without
/// the allocator and the formatter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MountTable {
    path: [u8; MOUNT_TABLE_BYTES],
}

/// `/proc/4294967295/mountinfo` and a NUL.
const MOUNT_TABLE_BYTES: usize = 27;

impl MountTable {
    /// The table of a thread.
    pub(crate) fn of(thread: u32) -> Self {
        let mut path = [0; MOUNT_TABLE_BYTES];
        let mut at = 0;
        let mut put = |bytes: &mut dyn Iterator<Item = u8>| {
            for byte in bytes {
                if let Some(place) = path.get_mut(at) {
                    *place = byte;
                }
                at += 1;
            }
        };
        put(&mut b"/proc/".iter().copied());
        let length = thread.checked_ilog10().unwrap_or(0);
        let digit = |power: u32| b'0' + (thread / 10_u32.pow(power) % 10) as u8;
        put(&mut (0..=length).rev().map(digit));
        put(&mut b"/mountinfo".iter().copied());
        Self { path }
    }

    pub(crate) fn path(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.path).unwrap_or_default()
    }
}

/// Fills `into` with another process's memory.
pub(crate) fn read_memory(thread: u32, address: u64, into: &mut [u8]) -> Result<(), Errno> {
    let local = libc::iovec {
        iov_base: into.as_mut_ptr().cast(),
        iov_len: into.len(),
    };
    let remote = remote(address, into.len())?;
    // SAFETY: the kernel writes no more than the slice holds; where it reads is checked by it.
    let count = unsafe {
        libc::process_vm_readv(
            thread as libc::pid_t,
            &raw const local,
            1,
            &raw const remote,
            1,
            0,
        )
    };
    all(count, into.len())
}

fn remote(address: u64, bytes: usize) -> Result<libc::iovec, Errno> {
    let address = usize::try_from(address).map_err(|_| Errno::FAULT)?;
    Ok(libc::iovec {
        iov_base: std::ptr::without_provenance_mut(address),
        iov_len: bytes,
    })
}

fn all(count: isize, wanted: usize) -> Result<(), Errno> {
    if usize::try_from(count) == Ok(wanted) {
        Ok(())
    } else {
        Err(Errno::FAULT)
    }
}

/// The path at an address of another process, without its NUL.
pub(crate) fn read_path(thread: u32, address: u64) -> Result<Vec<u8>, Errno> {
    let mut path = Vec::new();
    while path.len() < PATH_BYTES_MAX {
        let at = address.checked_add(path.len() as u64).ok_or(Errno::FAULT)?;
        let start = path.len();
        let count = (PAGE_BYTES - at % PAGE_BYTES) as usize;
        let count = count.min(PATH_BYTES_MAX - start);
        path.resize(start + count, 0);
        let new = path.get_mut(start..).ok_or(Errno::FAULT)?;
        read_memory(thread, at, new)?;
        if let Some(end) = path.iter().position(|&byte| byte == 0) {
            path.truncate(end);
            return Ok(path);
        }
    }
    Err(Errno::NAMETOOLONG)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;

    use super::*;

    fn own() -> u32 {
        rustix::thread::gettid().as_raw_nonzero().get() as u32
    }

    #[test]
    fn descriptors_of_other_threads_are_found_as_what_they_are() {
        let file = tempfile::tempfile().unwrap();
        let path = open("/", OFlags::PATH, Mode::empty()).unwrap();
        let mut threads = Threads::default();
        let found = threads.descriptor(own(), file.as_raw_fd());
        assert!(matches!(found, Some(Found::Same(_))), "{found:?}");
        assert!(threads.descriptor(own(), 9_999).is_none());
        assert!(threads.descriptor(own(), -1).is_none());
        assert!(seen(own(), file.as_raw_fd()).is_ok());
        assert_eq!(seen(own(), path.as_raw_fd()).unwrap_err(), Errno::BADF);
    }

    #[test]
    fn tables_of_mounts_are_found_by_number() {
        for thread in [0, 1, 9, 10, 4_194_304, u32::MAX] {
            let table = MountTable::of(thread);
            let expected = format!("/proc/{thread}/mountinfo");
            assert_eq!(table.path().to_str().unwrap(), expected);
        }
    }

    /// Threads whose numbers have their last digits in common are told apart.
    #[test]
    fn a_thread_is_not_taken_for_another() {
        let file = tempfile::tempfile().unwrap();
        let mut threads = Threads::default();
        let number = file.as_raw_fd();
        for _ in 0..2 {
            assert!(threads.descriptor(own(), number).is_some());
            // Such a thread hardly lives.
            let other = own() + KNOWN_MAX as u32 * 16_384;
            assert!(threads.descriptor(other, number).is_none());
        }
    }

    #[test]
    fn a_path_is_read_to_its_end_and_no_further() {
        let path = std::ffi::CString::new("/a/path".repeat(500)).unwrap();
        let read = read_path(own(), path.as_ptr() as u64).unwrap();
        assert_eq!(read, path.as_bytes());
        assert_eq!(read_path(own(), 8), Err(Errno::FAULT));
    }

    /// A path of 4096 characters was opened that the kernel refuses: its NUL lay in the page that was
    /// read last.
    #[test]
    fn a_path_is_no_longer_than_the_kernel_takes() {
        let read = |length: usize| {
            // Wherever in a page it begins.
            let mut room = vec![b'x'; 3 * 4096];
            [0, 1, 4095].map(|start: usize| {
                room.fill(b'x');
                room[start + length] = 0;
                read_path(own(), room[start..].as_ptr() as u64).map(|path| path.len())
            })
        };
        assert_eq!(read(4095), [Ok(4095); 3]);
        assert_eq!(read(4096), [Err(Errno::NAMETOOLONG); 3]);
    }
}
