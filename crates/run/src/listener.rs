//! The kernel's interface for answering other processes' system calls.
#![allow(unsafe_code)]

use std::io;
use std::ops::Deref;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, opcode};

use crate::filter::{FilterOptions, program};
use crate::ledger::{Entry, Ledger};
use crate::received::Received;

/// `SECCOMP_FILTER_FLAG_…`.
const NEW_LISTENER: libc::c_ulong = 1 << 3;
const WAIT_KILLABLE: libc::c_ulong = 1 << 5;
/// This filter is no sandbox: the processor may speculate in the program as it does without.
const SPECULATION_STAYS: libc::c_ulong = 1 << 2;
/// `SECCOMP_USER_NOTIF_FLAG_CONTINUE`.
const CONTINUE: u32 = 1;
/// `SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP`.
const WAKE_AT_ONCE: u64 = 1;

const RECEIVE: Opcode = opcode::read_write::<Received>(b'!', 0);
const ANSWER: Opcode = opcode::read_write::<Reply>(b'!', 1);
const IS_VALID: Opcode = opcode::write::<u64>(b'!', 2);
const ADD_DESCRIPTOR: Opcode = opcode::write::<AddDescriptor>(b'!', 3);
const SET_FLAGS: Opcode = opcode::write::<u64>(b'!', 4);

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

/// A call that was taken up, to be answered once.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    received: Received,
    entry: Entry,
}

impl Deref for Call {
    type Target = Received;

    fn deref(&self) -> &Received {
        &self.received
    }
}

/// What waiting for a call has come to.
#[derive(Debug)]
pub(crate) enum Next {
    Call(Call),
    /// No process has the filter any more.
    Over,
    /// None has come in time.
    Late,
}

/// The receiving end of a filter.
#[derive(Debug)]
pub(crate) struct Listener {
    descriptor: OwnedFd,
    ledger: Ledger,
}

impl Listener {
    /// What was received from the process that has installed the filter.
    pub(crate) fn new(descriptor: OwnedFd, ledger: Ledger) -> Self {
        let listener = Self { descriptor, ledger };
        // Linux before 6.7 wakes whom it wants, five times as slowly.
        let _set = listener.control_value(SET_FLAGS, WAKE_AT_ONCE as usize);
        listener
    }

    /// What is known of the programs, whichever process has found it out.
    pub(crate) fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Waits for the next call until a moment, and then for `may_begin` to return before it takes the call up.
    /// Receiving would wait for a call as well, but take it up at once.
    pub(crate) fn next(&self, until: Option<Instant>, may_begin: impl Fn()) -> io::Result<Next> {
        loop {
            if let Some(end) = self.wait(until)? {
                return Ok(end);
            }
            may_begin();
            let entry = self.ledger.take().ok_or(Errno::NOBUFS)?;
            let receive = |into| self.control(RECEIVE, into).map(drop);
            match self.ledger.fill(&entry, receive) {
                Ok(received) => return Ok(Next::Call(Call { received, entry })),
                Err(error) => {
                    self.ledger.give_back(&entry);
                    // The thread is gone, or a signal has ended its call.
                    if !matches!(error, Errno::NOENT | Errno::INTR | Errno::AGAIN) {
                        return Err(error.into());
                    }
                }
            }
        }
    }

    /// Waits until there is a call; else why there is none.
    fn wait(&self, until: Option<Instant>) -> io::Result<Option<Next>> {
        loop {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let timeout = left.and_then(|left| Timespec::try_from(left).ok());
            let mut waited = [PollFd::new(&self.descriptor, PollFlags::IN)];
            match poll(&mut waited, timeout.as_ref()) {
                Ok(0) => return Ok(Some(Next::Late)),
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            let events = waited[0].revents();
            if events.contains(PollFlags::IN) {
                return Ok(None);
            }
            if events.intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL) {
                return Ok(Some(Next::Over));
            }
        }
    }

    /// Calls that a process has taken up which has ended since, each with the descriptor that its process has got for
    /// it. For who takes up calls from now on.
    pub(crate) fn left_over(&self) -> impl Iterator<Item = (Call, Option<u32>)> {
        let left = self.ledger.left_over().into_iter();
        left.map(|(entry, received, added)| (Call { received, entry }, added))
    }

    /// Whether the call still waits, so that its thread's number is still that thread's.
    pub(crate) fn is_waiting(&self, call: &Received) -> bool {
        let mut id = call.id;
        self.control(IS_VALID, &raw mut id).is_ok()
    }

    /// Answers a call; one that does not wait any more needs no answer.
    pub(crate) fn answer(&self, call: &Call, answer: Answer) {
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
            } => match self.add(call, &file, close_on_exec) {
                Ok(number) => reply.value = number.into(),
                Err(error) => reply.error = -error.raw_os_error(),
            },
        }
        let _waits_no_more = self.control(ANSWER, &raw mut reply);
        self.ledger.give_back(&call.entry);
    }

    /// Gives the process of a call a descriptor.
    ///
    /// The kernel can answer the call at the same time. But if this process is killed before the program's thread has
    /// taken the descriptor, that call then returns 0, which is another file.
    pub(crate) fn add(
        &self,
        call: &Call,
        file: &OwnedFd,
        close_on_exec: bool,
    ) -> Result<u32, Errno> {
        let mut add = AddDescriptor {
            id: call.id,
            flags: 0,
            source: file.as_raw_fd() as u32,
            target: 0,
            target_flags: if close_on_exec {
                libc::O_CLOEXEC as u32
            } else {
                0
            },
        };
        let number = self.control(ADD_DESCRIPTOR, &raw mut add)?;
        self.ledger.note_descriptor(&call.entry, number);
        Ok(number)
    }

    fn control<T>(&self, operation: Opcode, argument: *mut T) -> Result<u32, Errno> {
        // SAFETY: each operation is used with a pointer to the structure from which its number is made.
        result(unsafe { libc::ioctl(self.descriptor.as_raw_fd(), operation as _, argument) })
    }

    fn control_value(&self, operation: Opcode, argument: usize) -> Result<u32, Errno> {
        // SAFETY: the operation takes a number, and no memory.
        result(unsafe { libc::ioctl(self.descriptor.as_raw_fd(), operation as _, argument) })
    }
}

fn result(code: libc::c_int) -> Result<u32, Errno> {
    u32::try_from(code).map_err(|_| last_error())
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
