//! Snapshots of a steered btrfs that a power cut has left: those that are called exact have to be one point in
//! time.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use mobifs_testkit::mount::succeed;
use mobifs_testkit::random::Random;

use super::oracle::{Log, Promise, judge};
use super::recorded::{Listed, Recorded};
use crate::trouble::{OnPath as _, Trouble};

/// Where they lie.
const DIRECTORY: &str = ".mobifs-history";
/// At the end of names of those that are not one point in time.
const INEXACT: &str = "-inexact";
/// The name of one that is being taken.
const NEW: &str = "new";
/// Most snapshots that are compared after each cut.
const COMPARED_MAX: usize = 3;

/// What was found.
#[derive(Debug, Default)]
pub(super) struct Looked {
    /// How many exact ones were compared.
    pub(super) exact: u64,
    pub(super) problems: Vec<String>,
}

/// The names of the snapshots of a mount, in order; none where there is no history yet.
pub(super) fn names(root: &Path) -> Vec<String> {
    let entries = fs::read_dir(root.join(DIRECTORY)).into_iter().flatten();
    let names = entries.flatten().map(|entry| entry.file_name());
    let mut names: Vec<String> = names
        .map(|name| name.to_string_lossy().into_owned())
        .filter(|name| name != NEW)
        .collect();
    names.sort();
    names
}

/// Whether those are there that were there before the last commit, and some of the exact ones are one point in
/// time: the last one, and others at random.
pub(super) fn examine(
    root: &Path,
    recorded: &Recorded,
    cut_ns: u64,
    scratch: &Path,
    random: &mut Random,
) -> Result<Looked, Trouble> {
    let mut looked = Looked::default();
    let there = names(root);
    let before = |listed: &&Listed| listed.returned_ns <= cut_ns;
    let listed = recorded.snapshots.iter().rfind(before);
    for name in listed.into_iter().flat_map(|listed| &listed.names) {
        if !there.contains(name) {
            looked.problems.push(format!("the snapshot {name} is lost"));
        }
    }
    let mut exact = there;
    exact.retain(|name| !name.ends_with(INEXACT));
    while exact.len() > COMPARED_MAX {
        // The last one stays.
        exact.remove(random.below(exact.len() as u64 - 1) as usize);
    }
    for name in exact {
        looked.exact += 1;
        let problems = compare(&root.join(DIRECTORY).join(&name), &recorded.logs, scratch)?;
        let problems = problems.into_iter();
        let problems = problems.map(|problem| format!("the exact snapshot {name}: {problem}"));
        looked.problems.extend(problems);
    }
    Ok(looked)
}

fn compare(snapshot: &Path, logs: &[Log], scratch: &Path) -> Result<Vec<String>, Trouble> {
    let mut problems = Vec::new();
    let mut found = Vec::new();
    for log in logs {
        let app = log.app();
        // Programs recover what they find, and a snapshot is read-only.
        let copy = copied(&snapshot.join(&app), scratch)?;
        match log.writer.check(&copy) {
            Ok(there) => found.push((waits_for_nothing(log), there)),
            Err(problem) => problems.push(format!("{app}: {problem}")),
        }
        if copy.exists() {
            fs::remove_dir_all(&copy).on(&copy)?;
        }
    }
    let promise = Promise {
        cut_ns: u64::MAX,
        age_max_ns: u64::MAX,
        keeps_order: true,
    };
    problems.extend(judge(&found, &[], promise).1);
    Ok(problems)
}

/// A snapshot is older than the last call that returned.
fn waits_for_nothing(log: &Log) -> Log {
    Log {
        is_durable: false,
        ..log.clone()
    }
}

fn copied(app: &Path, scratch: &Path) -> Result<PathBuf, Trouble> {
    let copy = scratch.join("snapshot");
    if app.exists() {
        succeed(Command::new("cp").arg("-a").args([app, &copy]))?;
    }
    Ok(copy)
}
