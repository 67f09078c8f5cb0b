//! The supervisor of a writer under `mobifs run`, of which single processes are killed.

use std::fs;
use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};

/// One that answers, and two that stand by.
const PROCESSES: usize = 3;

/// Kills one of the processes of the supervisor of a command that has this path in its words, if all of them are there:
/// whether there was one to kill.
pub(super) fn kill_one(path: &Path, which: usize) -> bool {
    let processes = processes(path);
    let chosen = processes.get(which % PROCESSES);
    processes.len() == PROCESSES
        && chosen.is_some_and(|pid| kill_process(*pid, Signal::KILL).is_ok())
}

fn processes(path: &Path) -> Vec<Pid> {
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let is_meant = |entry: &fs::DirEntry| {
        let read = |name: &str| fs::read(entry.path().join(name)).unwrap_or_default();
        let path = path.as_os_str().as_encoded_bytes();
        let words = read("cmdline");
        // One that has been killed, and is not gone, has no words.
        read("comm").starts_with(b"mobifs-run")
            && words.split(|byte| *byte == 0).any(|word| word == path)
    };
    let pid = |entry: fs::DirEntry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?);
    all.filter(is_meant).filter_map(pid).collect()
}
