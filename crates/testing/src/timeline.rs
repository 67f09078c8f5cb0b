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

    /// Number of the last step; 0 before the first.
    pub fn last(&self) -> usize {
        self.states.len() - 1
    }

    /// An app was committed: a cut must not take it back behind the last step.
    pub fn committed(&mut self, app: &str) {
        self.committed.insert(app.to_owned(), self.last());
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

/// Whether two parts are the same, link counts included. An inode that the timeline
/// holds is never changed in place, so the same inode is the same memory.
fn same(before: Option<&Part>, after: Option<&Part>) -> bool {
    let (Some(before), Some(after)) = (before, after) else {
        return before.is_none() && after.is_none();
    };
    before.len() == after.len()
        && before
            .iter()
            .zip(after)
            .all(|((path, one), (other_path, other))| {
                path == other_path && one.0 == other.0 && Arc::ptr_eq(&one.1, &other.1)
            })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Model;
    use crate::operations::{FileRef, Operation, Payload, RenameMode};

    /// A model and its timeline.
    struct Pair(Model, Timeline);

    impl Pair {
        fn new() -> Self {
            let model = Model::default();
            let timeline = Timeline::new(top_level_apps, model.state().clone());
            let mut pair = Self(model, timeline);
            for path in ["alpha", "beta"] {
                pair.run(Operation::MakeDirectory {
                    path: path.into(),
                    mode: 0o755,
                });
            }
            pair
        }

        fn run(&mut self, operation: Operation) {
            self.0.execute(&operation).unwrap();
            self.1.step(self.0.state());
        }

        fn create(&mut self, path: &str) {
            self.run(Operation::CreateFile {
                path: path.into(),
                mode: 0o644,
            });
        }

        fn write(&mut self, path: &str, tag: u32) {
            let data = Payload { tag, length: 100 };
            self.run(Operation::Write {
                file: FileRef::Path(path.into()),
                offset: 0,
                data,
            });
        }

        fn rename(&mut self, from: &str, to: &str) {
            let (from, to) = (from.into(), to.into());
            self.run(Operation::Rename {
                from,
                to,
                mode: RenameMode::Replace,
            });
        }

        fn tree(&self) -> Tree {
            self.0.tree()
        }

        fn explain(&self, found: &Tree) -> Result<Cut, String> {
            self.1.explain(
                found,
                Compare {
                    root: false,
                    ..Compare::ALL
                },
            )
        }
    }

    /// One app from one tree, the rest from another.
    fn mix(app: &str, of: &Tree, rest: &Tree) -> Tree {
        let mut mixed = of.part(|path, kind| top_level_apps(path, kind) == app);
        mixed
            .0
            .extend(rest.part(|path, kind| top_level_apps(path, kind) != app).0);
        mixed
    }

    #[test]
    fn apps_may_be_at_different_points() {
        let mut pair = Pair::new();
        let start = pair.tree();
        pair.create("alpha/a");
        let middle = pair.tree();
        pair.create("beta/a");
        pair.write("alpha/a", 1);
        let end = pair.tree();
        for (alpha, beta) in [
            (&start, &end),
            (&end, &start),
            (&middle, &end),
            (&end, &end),
        ] {
            let found = mix("alpha", alpha, beta);
            assert!(pair.explain(&found).is_ok());
        }
    }

    #[test]
    fn what_was_committed_may_not_be_missing() {
        let mut pair = Pair::new();
        pair.create("alpha/a");
        let before = pair.tree();
        pair.write("alpha/a", 1);
        pair.1.committed("alpha");
        let at_commit = pair.tree();
        pair.create("beta/a");
        assert!(pair.explain(&before).is_err());
        assert!(pair.explain(&at_commit).is_ok());
        pair.1.all_committed();
        assert!(
            pair.explain(&at_commit).is_err(),
            "beta is older than its commit"
        );
        assert!(pair.explain(&pair.tree()).is_ok());
    }

    #[test]
    fn a_state_that_never_was_is_found_out() {
        let mut pair = Pair::new();
        pair.create("alpha/a");
        pair.create("alpha/b");
        pair.write("alpha/a", 1);
        pair.write("alpha/b", 2);
        let mut later_write_only = pair.tree();
        later_write_only.0.get_mut("alpha/a").unwrap().content = crate::model::Content::default();
        let reason = pair.explain(&later_write_only).unwrap_err();
        assert!(reason.contains("never existed"), "{reason}");
        let mut stranger = pair.tree();
        let node = stranger.0["alpha/a"].clone();
        stranger.0.insert("gamma".into(), node);
        assert!(pair.explain(&stranger).is_err());
    }

    #[test]
    fn an_operation_across_apps_is_whole_or_not_there() {
        let mut pair = Pair::new();
        pair.create("alpha/a");
        // Without this alpha may also be at its start, where it has no file either.
        pair.1.committed("alpha");
        let before = pair.tree();
        pair.rename("alpha/a", "beta/a");
        let after = pair.tree();
        assert!(pair.explain(&before).is_ok());
        assert!(pair.explain(&after).is_ok());
        let twice = pair.explain(&mix("alpha", &before, &after)).unwrap_err();
        let lost = pair.explain(&mix("alpha", &after, &before)).unwrap_err();
        assert!(
            twice.contains("no choice") && lost.contains("no choice"),
            "{twice}\n{lost}"
        );
    }

    #[test]
    fn a_file_with_names_in_two_apps_ties_them() {
        let mut pair = Pair::new();
        pair.create("alpha/a");
        pair.run(Operation::Link {
            from: "alpha/a".into(),
            to: "beta/a".into(),
        });
        let linked = pair.tree();
        pair.write("beta/a", 1);
        let written = pair.tree();
        assert!(pair.explain(&mix("alpha", &linked, &written)).is_err());
        pair.run(Operation::Unlink {
            path: "beta/a".into(),
        });
        let unlinked = pair.tree();
        assert!(pair.explain(&mix("alpha", &written, &unlinked)).is_err());
        assert!(pair.explain(&unlinked).is_ok());
    }
}
