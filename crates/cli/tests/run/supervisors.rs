//! The processes of a supervisor.

use std::fs;

use rustix::process::{Pid, Signal, kill_process};

use crate::fixture::{By, wait_until};

const WORKER: &str = "mobifs-run";
const GUARD: &str = "mobifs-run-keep";

/// What `/proc` shows of a process of a supervisor.
struct Shown {
    pid: Pid,
    parent: i32,
    is_worker: bool,
}

/// The processes of supervisors of commands that have this word.
fn shown(word: &str) -> Vec<Shown> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let read = |name: &str| fs::read_to_string(entry.path().join(name)).unwrap_or_default();
        let pid = entry.file_name().to_str().and_then(|pid| pid.parse().ok());
        let Some(pid) = pid.and_then(Pid::from_raw) else {
            continue;
        };
        let (name, words) = (read("comm"), read("cmdline"));
        let is_named_so = [WORKER, GUARD].contains(&name.trim());
        // Without a filter, such a process waits for the end of a control group.
        let supervises = is_named_so && !words.contains(By::Preload.word());
        if supervises && words.contains(word) {
            let stat = read("stat");
            let parent = stat.rsplit(") ").next().unwrap_or_default();
            let parent = parent
                .split(' ')
                .nth(1)
                .and_then(|parent| parent.parse().ok());
            found.push(Shown {
                pid,
                parent: parent.unwrap_or(0),
                is_worker: name.trim() == WORKER,
            });
        }
    }
    found
}

/// All processes of supervisors of commands that have this word.
pub(crate) fn supervisors(word: &str) -> Vec<Pid> {
    shown(word).iter().map(|process| process.pid).collect()
}

/// The outer guard, the inner guard and the worker, when there are all three.
pub(crate) fn whole(word: &str) -> Option<[Pid; 3]> {
    let shown = shown(word);
    let worker = shown.iter().find(|process| process.is_worker)?;
    let is_parent_of = |child: &Shown| {
        let parent = child.parent;
        move |process: &&Shown| process.pid.as_raw_nonzero().get() == parent
    };
    let inner = shown.iter().find(is_parent_of(worker))?;
    let outer = shown.iter().find(is_parent_of(inner))?;
    let is_whole = shown.len() == 3 && !inner.is_worker && !outer.is_worker;
    is_whole.then_some([outer.pid, inner.pid, worker.pid])
}

/// Waits until there are all three.
pub(crate) fn wait_until_whole(word: &str) -> [Pid; 3] {
    wait_until(|| whole(word).is_some());
    whole(word).unwrap()
}

/// How many processes of supervisors have ended that their parents, such processes as well, have not waited for.
pub(crate) fn zombies() -> usize {
    let is_one = |entry: &fs::DirEntry| -> Option<bool> {
        let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
        let (name, rest) = stat.split_once('(')?.1.rsplit_once(") ")?;
        let mut rest = rest.split(' ');
        let has_ended = rest.next()? == "Z";
        let parent = fs::read_to_string(format!("/proc/{}/comm", rest.next()?)).ok()?;
        let is_named_so = |name: &str| [WORKER, GUARD].contains(&name);
        Some(has_ended && is_named_so(name) && is_named_so(parent.trim()))
    };
    let all = fs::read_dir("/proc").unwrap().flatten();
    all.filter(|entry| is_one(entry) == Some(true)).count()
}

/// Kills all of them: none can start another one meanwhile.
pub(crate) fn kill_all(word: &str) {
    let all = wait_until_whole(word);
    for signal in [Signal::STOP, Signal::KILL] {
        for pid in all {
            kill_process(pid, signal).unwrap();
        }
    }
    wait_until(|| supervisors(word).is_empty());
}
