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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_runs_on_a_usable_cpu_only() {
        let all = usable();
        let last = *all.last().unwrap();
        let seen = std::thread::spawn(move || {
            pin_to(last);
            usable()
        });
        assert_eq!(seen.join().unwrap(), vec![last]);
        assert_eq!(usable(), all, "other threads keep theirs");
    }
}
