//! How long a worker runs before others have their turn.
//!
//! A request is answered within microseconds, but a worker whose CPU is busy has to wait for it,
//! as a rule until the slice of the thread that runs there is over: milliseconds, several of them
//! for an operation of several requests. The scheduler lets a thread that asks for shorter slices
//! run sooner after it was woken, and gives it no more of the CPU in all (Linux 6.12; older kernels
//! ignore it). Still shorter ones bring little more and take more switches: with 100 µs the median of small
//! operations on a busy machine rose by half. Like all of a thread's policy a slice needs no privilege,
//! and `SCHED_IDLE` and back (see [`super::priority`]) leaves it as it is.

use rustix::io::Errno;

/// A third of what a thread has by default on two CPUs.
const SLICE_NS: u64 = 1_000_000;

/// What the system calls take, in its first version.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    bytes: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    /// The slice of a thread with the default policy.
    runtime_ns: u64,
    deadline_ns: u64,
    period_ns: u64,
}

/// The size of [`Attributes`].
const BYTES: u32 = 48;
const _: () = assert!(size_of::<Attributes>() == BYTES as usize);

/// The calling thread asks for short slices. A refusal (of a filter, or by a policy that has none)
/// costs only speed.
pub(super) fn shorten() {
    let shortened = attributes().and_then(|attributes| {
        set(&Attributes {
            runtime_ns: SLICE_NS,
            ..attributes
        })
    });
    if let Err(errno) = shortened {
        tracing::debug!(%errno, "a worker has slices of the usual length");
    }
}

/// Those of the calling thread.
fn attributes() -> Result<Attributes, Errno> {
    let mut found = Attributes::default();
    // SAFETY: the kernel fills at most so many bytes of `found`, which any bytes are.
    let failed = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut found, BYTES, 0) };
    if failed == 0 { Ok(found) } else { Err(errno()) }
}

fn set(attributes: &Attributes) -> Result<(), Errno> {
    // SAFETY: `attributes` lives during the call, which reads the size that it names.
    let failed = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const *attributes, 0) };
    if failed == 0 { Ok(()) } else { Err(errno()) }
}

/// Why the last system call of this thread failed.
fn errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_slice_changes() {
        let (before, after) = std::thread::spawn(|| {
            let before = attributes().unwrap();
            shorten();
            (before, attributes().unwrap())
        })
        .join()
        .unwrap();
        assert_eq!(
            (after.policy, after.nice, after.priority, after.flags),
            (before.policy, before.nice, before.priority, before.flags)
        );
        if before.runtime_ns == 0 && after.runtime_ns == 0 {
            mobifs_skip::skip("this kernel has no slices of a thread's own (Linux 6.12)");
            return;
        }
        assert_eq!(after.runtime_ns, SLICE_NS);
        let others = std::thread::spawn(|| attributes().unwrap().runtime_ns);
        assert_ne!(others.join().unwrap(), SLICE_NS, "of this thread alone");
    }
}
