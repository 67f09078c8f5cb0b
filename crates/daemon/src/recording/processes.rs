//! Which process a thread belongs to.

use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};

use mobifs_base::MonotonicNs;

/// Threads that are remembered, by the low bits of their numbers.
const SLOTS: usize = 1024;
/// Linux has no more processes and threads than this many bits can number.
const NUMBER_BITS: u32 = 22;
const NUMBER_MASK: u64 = (1 << NUMBER_BITS) - 1;

/// What was found out about threads. A number may come to mean another thread when its own has
/// ended, so nothing is believed for longer than the second in which it was found out.
#[derive(Debug)]
pub(super) struct Processes {
    /// From the top: the second (20 bits of it), thread, process (22 bits each); 0: nothing.
    slots: Box<[AtomicU64]>,
}

impl Default for Processes {
    fn default() -> Self {
        Self {
            slots: (0..SLOTS).map(|_| AtomicU64::new(0)).collect(),
        }
    }
}

impl Processes {
    /// The process of a thread that waits for an answer; 0 if it is unknown.
    pub(super) fn of(&self, thread: u32, now: MonotonicNs) -> u32 {
        let known = u64::from(thread);
        if thread == 0 || known > NUMBER_MASK {
            return 0;
        }
        let second = now.0 / 1_000_000_000;
        // Never 0 as a whole, for no thread has that number.
        let wanted = (second << NUMBER_BITS | known) << NUMBER_BITS;
        let slot = &self.slots[thread as usize % SLOTS];
        let found = slot.load(Ordering::Relaxed);
        if found & !NUMBER_MASK == wanted {
            return (found & NUMBER_MASK) as u32;
        }
        let process = process_of(thread).unwrap_or(0);
        slot.store(wanted | u64::from(process) & NUMBER_MASK, Ordering::Relaxed);
        process
    }
}

/// What the system says.
fn process_of(thread: u32) -> Option<u32> {
    let status = fs::read(format!("/proc/{thread}/status")).ok()?;
    let mut lines = status.split(|&byte| byte == b'\n');
    let number = lines.find_map(|line| line.strip_prefix(b"Tgid:"))?;
    std::str::from_utf8(number).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_of_this_process_are_known() {
        let processes = Processes::default();
        let own = std::process::id();
        let now = MonotonicNs(5_000_000_000);
        let thread = std::thread::spawn(|| rustix::thread::gettid().as_raw_nonzero().get());
        // It may have ended: then its name is unknown, or remembered.
        let other = thread.join().unwrap() as u32;
        assert!([0, own].contains(&processes.of(other, now)));
        let this = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        for _ in 0..2 {
            assert_eq!(processes.of(this, now), own);
        }
        assert_eq!(processes.of(0, now), 0);
        assert_eq!(processes.of(u32::MAX, now), 0);
    }

    #[test]
    fn a_cached_process_is_valid_for_one_second() {
        let processes = Processes::default();
        let this = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        let now = MonotonicNs(7_000_000_000);
        let own = processes.of(this, now);
        // As if the number had been another thread's, of process 3.
        let slot = &processes.slots[this as usize % SLOTS];
        slot.store(
            slot.load(Ordering::Relaxed) & !NUMBER_MASK | 3,
            Ordering::Relaxed,
        );
        assert_eq!(processes.of(this, MonotonicNs(now.0 + 999_999_999)), 3);
        assert_eq!(processes.of(this, MonotonicNs(now.0 + 1_000_000_000)), own);
    }
}
