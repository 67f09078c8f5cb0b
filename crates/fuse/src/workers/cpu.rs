//! Which CPUs the workers run on.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The CPUs that this thread may use, ascending; never empty.
pub(crate) fn usable() -> Vec<usize> {
    let cpus: Vec<usize> = match sched_getaffinity(None) {
        Ok(set) => (0..CpuSet::MAX_CPU)
            .filter(|&cpu| set.is_set(cpu))
            .collect(),
        Err(errno) => {
            tracing::warn!(%errno, "cannot ask which CPUs may be used; using one worker");
            Vec::new()
        }
    };
    if cpus.is_empty() { vec![0] } else { cpus }
}

/// Binds the calling thread to one CPU: a request that stays on its sender's CPU is
/// answered several times faster than one that crosses to another. A refusal (the
/// CPU went offline, a policy forbids it) costs only speed.
pub(crate) fn pin_to(cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    if let Err(errno) = sched_setaffinity(None, &set) {
        tracing::warn!(%errno, cpu, "cannot pin a worker to its CPU");
    }
}

/// The CPU on which a thread runs or last ran, as `/proc` shows (proc_pid_stat(5),
/// field 39); none if the thread is gone or hidden.
pub(crate) fn of_thread(thread: u32) -> Option<usize> {
    status_field(thread, 39)?.parse().ok()
}

/// Whether a thread runs or would run if it had a CPU (proc_pid_stat(5), field 3); false
/// if it is gone or hidden.
pub(crate) fn is_wanted_by(thread: u32) -> bool {
    status_field(thread, 3).is_some_and(|state| state == "R")
}

/// A field of a thread's line in `/proc`, the third or a later one, counted from 1.
fn status_field(thread: u32, field: usize) -> Option<String> {
    const FIRST_AFTER_NAME: usize = 3;
    let line = std::fs::read_to_string(format!("/proc/{thread}/stat")).ok()?;
    // The name may contain anything, also blanks and parentheses.
    let (_, after_name) = line.rsplit_once(')')?;
    let mut fields = after_name.split_ascii_whitespace();
    fields.nth(field - FIRST_AFTER_NAME).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_runs_on_a_usable_cpu_only() {
        let all = usable();
        let last = *all.last().unwrap();
        let seen = std::thread::spawn(move || {
            pin_to(last);
            let thread = rustix::thread::gettid().as_raw_nonzero().get();
            (usable(), of_thread(thread.unsigned_abs()))
        });
        assert_eq!(seen.join().unwrap(), (vec![last], Some(last)));
        assert_eq!(usable(), all, "other threads keep theirs");
        assert_eq!(of_thread(u32::MAX), None);
    }

    #[test]
    fn a_thread_that_waits_wants_no_cpu() {
        let me = rustix::thread::gettid()
            .as_raw_nonzero()
            .get()
            .unsigned_abs();
        assert!(is_wanted_by(me) && !is_wanted_by(u32::MAX));
        let other = std::thread::spawn(move || while is_wanted_by(me) {});
        other.join().unwrap();
    }
}
