//! The kernel's interface for answering other processes' system calls.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, opcode};

use crate::filter::{FilterOptions, program};

/// `SECCOMP_FILTER_FLAG_…`.
const NEW_LISTENER: libc::c_ulong = 1 << 3;
const WAIT_KILLABLE: libc::c_ulong = 1 << 5;
/// This filter is no sandbox: the processor may speculate in the program as it does without.
const SPECULATION_STAYS: libc::c_ulong = 1 << 2;
/// `SECCOMP_USER_NOTIF_FLAG_CONTINUE`.
const CONTINUE: u32 = 1;
/// `SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP`.
const WAKE_AT_ONCE: u64 = 1;
/// `SECCOMP_ADDFD_FLAG_SEND`.
const ADD_AND_ANSWER: u32 = 2;

const RECEIVE: Opcode = opcode::read_write::<Received>(b'!', 0);
const ANSWER: Opcode = opcode::read_write::<Reply>(b'!', 1);
const IS_VALID: Opcode = opcode::write::<u64>(b'!', 2);
const ADD_DESCRIPTOR: Opcode = opcode::write::<AddDescriptor>(b'!', 3);
const SET_FLAGS: Opcode = opcode::write::<u64>(b'!', 4);

/// `struct seccomp_notif`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Received {
    id: u64,
    /// The thread; 0 if this process cannot see it.
    pub(crate) thread: u32,
    flags: u32,
    pub(crate) number: u32,
    pub(crate) architecture: u32,
    instruction: u64,
    pub(crate) arguments: [u64; 6],
}

/// `struct seccomp_notif_resp`.
#[repr(C)]
struct Reply {
    id: u64,
    value: i64,
    error: i32,
    flags: u32,
}

/// `struct seccomp_notif_addfd`.
#[repr(C)]
struct AddDescriptor {
    id: u64,
    flags: u32,
    source: u32,
    target: u32,
    target_flags: u32,
}

/// What a call is answered with.
#[derive(Debug)]
pub(crate) enum Answer {
    /// The kernel carries the call out, as if there was no supervisor.
    Continue,
    /// The call returns this.
    Value(i64),
    /// The call fails.
    Error(Errno),
    /// The call returns a descriptor of this file.
    Descriptor { file: OwnedFd, close_on_exec: bool },
}

/// The receiving end of a filter.
#[derive(Debug)]
pub(crate) struct Listener {
    descriptor: OwnedFd,
}

impl Listener {
    /// What was received from the process that has installed the filter.
    pub(crate) fn new(descriptor: OwnedFd) -> Self {
        let listener = Self { descriptor };
        // Linux before 6.7 wakes whom it wants, five times as slowly.
        let _set = listener.control_value(SET_FLAGS, WAKE_AT_ONCE as usize);
        listener
    }

    /// Waits for the next call, and then for `may_begin` to return before it takes the call up; `None` when
    /// no process has the filter any more. Receiving would wait for a call as well, but take it up at once.
    pub(crate) fn next(&self, may_begin: impl Fn()) -> io::Result<Option<Received>> {
        loop {
            let mut waited = [PollFd::new(&self.descriptor, PollFlags::IN)];
            match poll(&mut waited, None) {
                Err(Errno::INTR) => continue,
                result => result?,
            };
            let events = waited[0].revents();
            if !events.contains(PollFlags::IN) {
                if events.intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL) {
                    return Ok(None);
                }
                continue;
            }
            may_begin();
            let mut received = Received::default();
            match self.control(RECEIVE, &mut received) {
                Ok(()) => return Ok(Some(received)),
                // The thread is gone, or a signal has ended its call.
                Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Whether the call still waits, so that its thread's number is still that thread's.
    pub(crate) fn is_waiting(&self, call: &Received) -> bool {
        self.control(IS_VALID, &mut call.id.clone()).is_ok()
    }

    /// Answers a call; one that does not wait any more needs no answer.
    pub(crate) fn answer(&self, call: &Received, answer: Answer) {
        let mut reply = Reply {
            id: call.id,
            value: 0,
            error: 0,
            flags: 0,
        };
        match answer {
            Answer::Continue => reply.flags = CONTINUE,
            Answer::Value(value) => reply.value = value,
            Answer::Error(error) => reply.error = -error.raw_os_error(),
            Answer::Descriptor {
                file,
                close_on_exec,
            } => {
                let Err(error) = self.add(call, &file, close_on_exec) else {
                    return;
                };
                reply.error = -error.raw_os_error();
            }
        }
        let _waits_no_more = self.control(ANSWER, &mut reply);
    }

    fn add(&self, call: &Received, file: &OwnedFd, close_on_exec: bool) -> Result<(), Errno> {
        let mut add = AddDescriptor {
            id: call.id,
            flags: ADD_AND_ANSWER,
            source: file.as_raw_fd() as u32,
            target: 0,
            target_flags: if close_on_exec {
                libc::O_CLOEXEC as u32
            } else {
                0
            },
        };
        self.control(ADD_DESCRIPTOR, &mut add)
    }

    fn control<T>(&self, operation: Opcode, argument: &mut T) -> Result<(), Errno> {
        // SAFETY: each operation is used with the structure from which its number is made.
        result(unsafe {
            libc::ioctl(
                self.descriptor.as_raw_fd(),
                operation as _,
                std::ptr::from_mut(argument),
            )
        })
    }

    fn control_value(&self, operation: Opcode, argument: usize) -> Result<(), Errno> {
        // SAFETY: the operation takes a number, and no memory.
        result(unsafe { libc::ioctl(self.descriptor.as_raw_fd(), operation as _, argument) })
    }
}

fn result(code: libc::c_int) -> Result<(), Errno> {
    if code >= 0 { Ok(()) } else { Err(last_error()) }
}

fn last_error() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// Whether the kernel can pass calls to a supervisor, with structures of the sizes that are known
/// here.
pub(crate) fn is_available() -> bool {
    let mut sizes = [0_u16; 3];
    // SAFETY: the kernel writes a structure of three numbers of 16 bits.
    let code = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_GET_NOTIF_SIZES,
            0,
            sizes.as_mut_ptr(),
        )
    };
    let [request, reply, _] = sizes.map(usize::from);
    code == 0 && (request, reply) == (size_of::<Received>(), size_of::<Reply>())
}

/// Installs the filter for this thread and what it starts from now on; returns the listener, and
/// whether only a deadly signal interrupts a call that has been received.
pub(crate) fn install(options: FilterOptions) -> Result<(OwnedFd, bool), Errno> {
    let instructions = program(options);
    let flags = NEW_LISTENER | SPECULATION_STAYS;
    match install_with(&instructions, flags | WAIT_KILLABLE) {
        // Before Linux 5.19.
        Err(Errno::INVAL) => install_with(&instructions, flags).map(|fd| (fd, false)),
        result => result.map(|fd| (fd, true)),
    }
}

fn install_with(
    instructions: &[libc::sock_filter],
    flags: libc::c_ulong,
) -> Result<OwnedFd, Errno> {
    let program = libc::sock_fprog {
        len: instructions.len() as u16,
        filter: instructions.as_ptr().cast_mut(),
    };
    // SAFETY: the kernel reads the number of instructions that the structure states.
    let number = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            flags,
            &raw const program,
        )
    };
    if number < 0 {
        return Err(last_error());
    }
    // SAFETY: the kernel has just made the descriptor, which nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(number as RawFd) })
}

/// Tells the kernel that nothing which this process starts will have more rights than it has.
pub(crate) fn give_up_new_privileges() -> Result<(), Errno> {
    rustix::thread::set_no_new_privs(true)
}
