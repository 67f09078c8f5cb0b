//! The history of a filesystem, app by app, and what a power cut may leave of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use mobifs_types::FileKind;

use crate::model::{Inode, InodeNumber, State};
use crate::tree::{Compare, Tree};

/// Names the app that the object at a path belongs to.
pub type AppRule = fn(path: &str, kind: FileKind) -> String;

/// The app of everything that lies in no other.
pub const ROOT_APP: &str = ".";

/// The default rule: every top-level directory is an app.
pub fn top_level_apps(path: &str, kind: FileKind) -> String {
    match path.split_once('/') {
        Some((app, _)) => app.to_owned(),
        None if path.is_empty() || kind != FileKind::Directory => ROOT_APP.to_owned(),
        None => path.to_owned(),
    }
}

/// Objects of one app by path, shared with the states that they come from.
type Part = BTreeMap<String, (InodeNumber, Arc<Inode>)>;

/// Everything that happened to a filesystem since it was mounted.
#[derive(Debug)]
pub struct Timeline {
    rule: AppRule,
    /// The state after every step; the first is that at the mount.
    states: Vec<State>,
    /// The apps whose trees a step changed; nothing at the first.
    changed: Vec<BTreeSet<String>>,
    parts: BTreeMap<String, Part>,
    /// The step that an app must not fall behind.
    committed: BTreeMap<String, usize>,
}

/// Which step of the timeline each app shows after a cut.
pub type Cut = BTreeMap<String, usize>;

impl Timeline {
    /// A timeline that starts at `state`, all of which is committed.
    pub fn new(rule: AppRule, state: State) -> Self {
        let parts = parts(rule, &state);
        Self {
            rule,
            states: vec![state],
            changed: vec![BTreeSet::new()],
            parts,
            committed: BTreeMap::new(),
        }
    }

    /// Adds what one operation made of the filesystem.
    pub fn step(&mut self, state: &State) {
        let parts = parts(self.rule, state);
        let apps: BTreeSet<&String> = self.parts.keys().chain(parts.keys()).collect();
        let changed = apps
            .into_iter()
            .filter(|app| !same(self.parts.get(*app), parts.get(*app)))
            .cloned()
            .collect();
        self.parts = parts;
        self.states.push(state.clone());
        self.changed.push(changed);
    }

    /// An app was committed: a cut must not take it back behind the last step.
    pub fn committed(&mut self, app: &str) {
        self.committed.insert(app.to_owned(), self.states.len() - 1);
    }

    /// All apps were committed.
    pub fn all_committed(&mut self) {
        let mut apps: BTreeSet<String> = self.changed.iter().flatten().cloned().collect();
        apps.extend(self.parts.keys().cloned());
        for app in apps {
            self.committed(&app);
        }
    }

    /// Checks a tree found after a power cut: every app must show its tree as it was
    /// after some step not older than its last commit, and of every operation that
    /// changed several apps all or none must show it.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn explain(&self, found: &Tree, compare: Compare) -> Result<Cut, String> {
        let mut apps: BTreeSet<String> = self.changed.iter().flatten().cloned().collect();
        apps.extend(self.parts.keys().cloned());
        apps.extend(
            found
                .0
                .iter()
                .map(|(path, node)| (self.rule)(path, node.kind)),
        );
        let mut candidates = Vec::new();
        for app in apps {
            let steps = self.candidates(&app, found, compare)?;
            candidates.push((app, steps));
        }
        // Few choices first; from the latest to the earliest.
        candidates.sort_by_key(|(_, steps)| steps.len());
        let mut cut = Cut::new();
        if self.choose(&candidates, &mut cut) {
            return Ok(cut);
        }
        Err(format!(
            "every app shows a state that existed, but no choice of states shows every \
             operation across apps in all of them or in none; candidates: {candidates:?}, \
             operations across apps: {:?}",
            self.changed
                .iter()
                .enumerate()
                .filter(|(_, apps)| apps.len() > 1)
                .collect::<Vec<_>>()
        ))
    }

    /// Steps after which the app's tree was what was found, latest first.
    fn candidates(&self, app: &str, found: &Tree, compare: Compare) -> Result<Vec<usize>, String> {
        let found = found.part(|path, kind| (self.rule)(path, kind) == app);
        let floor = self.committed.get(app).copied().unwrap_or(0);
        let versions: Vec<usize> = (0..self.states.len())
            .filter(|&step| step == 0 || self.changed[step].contains(app))
            .collect();
        let mut differences = Vec::new();
        let mut steps = Vec::new();
        for (index, &step) in versions.iter().enumerate().rev() {
            // The version lasts until the next one starts.
            let lasts_until = versions.get(index + 1).map_or(usize::MAX, |next| next - 1);
            let tree = self.states[step]
                .tree()
                .part(|path, kind| (self.rule)(path, kind) == app);
            let is_new_enough = lasts_until >= floor;
            match tree.difference(&found, compare) {
                None if is_new_enough => steps.push(step),
                None => differences.push(format!("step {step}: equal, but older than the commit")),
                Some(difference) => differences.push(format!("step {step}: {difference}")),
            }
        }
        if steps.is_empty() {
            return Err(format!(
                "app {app:?} shows a state that never existed at or after its last commit \
                 (step {floor}); differences by step, latest first:\n  {}",
                differences.join("\n  ")
            ));
        }
        Ok(steps)
    }

    fn choose(&self, candidates: &[(String, Vec<usize>)], cut: &mut Cut) -> bool {
        let Some(((app, steps), rest)) = candidates.split_first() else {
            return true;
        };
        for &step in steps {
            cut.insert(app.clone(), step);
            if self.is_consistent(app, cut) && self.choose(rest, cut) {
                return true;
            }
        }
        cut.remove(app);
        false
    }

    /// Whether the choice for `app` fits the earlier choices.
    fn is_consistent(&self, app: &str, cut: &Cut) -> bool {
        self.changed.iter().enumerate().all(|(step, changed)| {
            !changed.contains(app)
                || changed
                    .iter()
                    .filter_map(|other| cut.get(other))
                    .all(|&chosen| (chosen >= step) == (cut[app] >= step))
        })
    }
}

fn parts(rule: AppRule, state: &State) -> BTreeMap<String, Part> {
    let mut parts: BTreeMap<String, Part> = BTreeMap::new();
    for (path, found) in state.paths() {
        // The root directory itself is of no app: its times change with every app
        // that comes or goes.
        if !path.is_empty() {
            let app = rule(&path, found.1.kind());
            parts.entry(app).or_default().insert(path, found);
        }
    }
    parts
}

/// Whether two parts are the same, link counts included.
fn same(before: Option<&Part>, after: Option<&Part>) -> bool {
    let (Some(before), Some(after)) = (before, after) else {
        return before.is_none() && after.is_none();
    };
    before.len() == after.len()
        && before
            .iter()
            .zip(after)
            .all(|((path, one), (other_path, other))| {
                path == other_path && one.0 == other.0 && one.1.changes == other.1.changes
            })
}
