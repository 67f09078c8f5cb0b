//! The supervisor's turn on a processor.
//!
//! A program waits while the supervisor decides on its call, so whatever delays the supervisor delays
//! the program twice: until the answer, and by the switches that it takes. Two things do on a busy
//! machine. Other processes that are ready come first; and the program, which has slept meanwhile, is
//! given the processor as soon as it is answered, before the supervisor has got to its next wait, and
//! takes two more switches. A short slice makes the scheduler choose the supervisor at once, and leave
//! it there for its few microseconds; a better nice value, which only the administrator may give,
//! helps against others. Neither takes more of a processor than the programs' calls need.
#![allow(unsafe_code)]

use rustix::io::Errno;

/// The shortest slice that the scheduler gives (Linux 6.12; others pass it over), in nanoseconds.
const SLICE_NS: u64 = 100_000;
/// By how many steps the supervisor's niceness is better than the command's.
const NICE_STEPS: i32 = 5;
const NICE_MIN: i32 = -20;
/// The policy of threads that ask for none, which the libc of Android does not name.
const SCHED_OTHER: u32 = 0;

/// `struct sched_attr`, as Linux 3.14 has it.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Attributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime_ns: u64,
    deadline_ns: u64,
    period_ns: u64,
}

/// Takes the calling thread ahead of others, as far as it may. A command that was started with another
/// policy than the default has its supervisor under that one.
pub(crate) fn raise() {
    let Ok(before) = attributes() else { return };
    if before.policy != SCHED_OTHER {
        return;
    }
    let short = Attributes {
        runtime_ns: SLICE_NS,
        ..before
    };
    let nice = (before.nice - NICE_STEPS).max(NICE_MIN);
    // Without the right to the nice value, the slice alone.
    let _raised = set_attributes(Attributes { nice, ..short }).or_else(|_| set_attributes(short));
}

fn attributes() -> Result<Attributes, Errno> {
    let mut found = Attributes::default();
    // SAFETY: the kernel writes to the structure no more than the size that is passed.
    let code = unsafe {
        libc::syscall(
            libc::SYS_sched_getattr,
            0,
            &raw mut found,
            size_of::<Attributes>(),
            0,
        )
    };
    result(code).map(|()| found)
}

fn set_attributes(mut wanted: Attributes) -> Result<(), Errno> {
    wanted.size = size_of::<Attributes>() as u32;
    // SAFETY: the kernel reads from the structure as many bytes as its first field says.
    result(unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const wanted, 0) })
}

fn result(code: libc::c_long) -> Result<(), Errno> {
    if code == 0 {
        return Ok(());
    }
    let error = std::io::Error::last_os_error();
    Err(Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_raised_thread_keeps_its_policy_and_is_no_worse() {
        // The nice value belongs to the thread.
        let raised = std::thread::spawn(|| {
            let before = attributes().unwrap();
            raise();
            (before, attributes().unwrap())
        });
        let (before, after) = raised.join().unwrap();
        assert_eq!(after.policy, before.policy);
        if before.policy != SCHED_OTHER {
            return;
        }
        let may_raise = rustix::process::geteuid().is_root();
        let wanted = (before.nice - NICE_STEPS).max(NICE_MIN);
        assert!(after.nice == wanted || (!may_raise && after.nice == before.nice));
    }
}
