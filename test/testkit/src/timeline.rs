//! The history of a filesystem, app by app, and what a power cut may leave of it.

mod super_journals;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use mobifs_base::FileKind;

use crate::layout::Layout;
use crate::model::{Body, Inode, InodeNumber, Model, State};
use crate::operations::{FileRef, Operation};
use crate::tree::{Compare, Mtime, Tree};
use super_journals::{Demand, SuperJournals};

/// Objects by path, shared with the state that they come from: of one app, or all.
type Part = BTreeMap<String, (InodeNumber, Arc<Inode>)>;

/// The object that an `fsync` is of, and the app whose class decides whether it waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Synced {
    /// The object.
    pub object: InodeNumber,
    /// The app.
    pub app: String,
}

/// Everything that happened to a filesystem since it was mounted.
#[derive(Debug)]
pub struct Timeline {
    layout: Layout,
    /// The state after every step; the first is that at the mount.
    states: Vec<State>,
    /// The apps whose trees a step changed; nothing at the first.
    changed: Vec<BTreeSet<String>>,
    parts: BTreeMap<String, Part>,
    /// All objects after the last step.
    paths: Part,
    /// The last step in which the tree of an app changed by an object: by its content and
    /// attributes, by an entry that names it, or by one of its own entries.
    changes: BTreeMap<InodeNumber, BTreeMap<String, usize>>,
    /// The app of an object that never had two names, the last one of one without a name.
    homes: BTreeMap<InodeNumber, Option<String>>,
    /// The step that an app must not fall back behind.
    committed: BTreeMap<String, usize>,
    super_journals: SuperJournals,
    demands: Vec<Demand>,
}

/// Which step of the timeline each app shows after a cut.
pub type Cut = BTreeMap<String, usize>;

impl Timeline {
    /// A timeline that starts at `state`, all of which is committed.
    pub fn new(layout: Layout, state: State) -> Self {
        let paths = state.paths();
        let mut timeline = Self {
            layout,
            parts: parts(&layout, &paths),
            states: vec![state],
            changed: vec![BTreeSet::new()],
            paths,
            changes: BTreeMap::new(),
            homes: BTreeMap::new(),
            committed: BTreeMap::new(),
            super_journals: SuperJournals::default(),
            demands: Vec::new(),
        };
        timeline.record_homes();
        timeline
    }

    /// Whether a directory at this path is an app.
    pub fn may_be_app(&self, path: &str) -> bool {
        self.layout.app_of(path, FileKind::Directory) == path
    }

    /// Adds the state after one operation.
    pub fn step(&mut self, state: &State) {
        let paths = state.paths();
        let parts = parts(&self.layout, &paths);
        let apps: BTreeSet<&String> = self.parts.keys().chain(parts.keys()).collect();
        let mut changed: BTreeSet<String> = apps
            .into_iter()
            .filter(|app| !same(&self.layout, self.parts.get(*app), parts.get(*app)))
            .cloned()
            .collect();
        let number = self.states.len();
        let (demands, mut together) =
            (self.super_journals).step(&self.layout, number, &self.paths, &paths);
        self.demands.extend(demands);
        changed.append(&mut together);
        self.parts = parts;
        self.states.push(state.clone());
        self.changed.push(changed);
        let before = std::mem::replace(&mut self.paths, paths);
        self.record_changes(&before);
        self.record_homes();
    }

    /// Notes by which objects the last step changed which apps.
    fn record_changes(&mut self, before: &Part) {
        let step = self.states.len() - 1;
        let mut noted = BTreeSet::new();
        for (one, other) in [(before, &self.paths), (&self.paths, before)] {
            let others: BTreeMap<InodeNumber, &Arc<Inode>> = other
                .values()
                .map(|(number, inode)| (*number, inode))
                .collect();
            for (path, (number, inode)) in one {
                let app = self.layout.app_of(path, inode.kind());
                let there = others.get(number);
                if there.is_none_or(|there| !Arc::ptr_eq(there, inode)) {
                    noted.insert((*number, app));
                }
                let entries = there.map(|there| (&inode.body, &there.body));
                let Some((Body::Directory(entries), Body::Directory(others))) = entries else {
                    continue;
                };
                let differing = entries
                    .iter()
                    .filter(|(name, child)| others.get(*name) != Some(child));
                for (name, child) in differing {
                    let path = join(path, name);
                    let app = self.layout.app_of(&path, one[&path].1.kind());
                    noted.extend([(*number, app.clone()), (*child, app)]);
                }
            }
        }
        for (object, app) in noted {
            self.changes.entry(object).or_default().insert(app, step);
        }
    }

    /// Notes where the objects are after the last step.
    fn record_homes(&mut self) {
        let mut named = BTreeMap::new();
        for (path, (number, inode)) in &self.paths {
            let app = self.layout.app_of(path, inode.kind());
            let one = named.entry(*number).or_insert_with(|| Some(app.clone()));
            if *one != Some(app) {
                *one = None;
            }
        }
        for (number, app) in named {
            let home = self.homes.entry(number).or_insert_with(|| app.clone());
            if home.is_some() {
                *home = app;
            }
        }
    }

    /// What an `fsync` that has succeeded is of; none if it is no `fsync`, or if its file has,
    /// or had, names in several apps and is not reached by one of them.
    pub fn synced_by(&self, model: &Model, operation: &Operation) -> Option<Synced> {
        let object = model.synced_by(operation)?;
        let path = match operation {
            Operation::Fsync {
                file: FileRef::Path(path),
            }
            | Operation::FsyncDirectory { path } => Some(path),
            _ => None,
        };
        let app = match path {
            Some(path) => {
                let kind = model.state().inode(object).kind();
                self.layout.app_of(path, kind)
            }
            None => self.homes.get(&object)?.clone()?,
        };
        Some(Synced { object, app })
    }

    /// An `fsync` has returned that had to wait: its app is committed, and every app as far as
    /// it was changed by the object.
    pub fn synced(&mut self, synced: &Synced) {
        self.committed(&synced.app);
        for (app, step) in self.changes.get(&synced.object).into_iter().flatten() {
            let floor = self.committed.entry(app.clone()).or_default();
            *floor = (*floor).max(*step);
        }
    }

    /// Number of the last step; 0 before the first.
    pub fn last(&self) -> usize {
        self.states.len() - 1
    }

    /// An app was committed: a cut must not undo the last step.
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
                .map(|(path, node)| self.layout.app_of(path, node.kind)),
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
        let found = self.part(found, app);
        let floor = self.committed.get(app).copied().unwrap_or(0);
        let versions: Vec<usize> = (0..self.states.len())
            .filter(|&step| step == 0 || self.changed[step].contains(app))
            .collect();
        let mut differences = Vec::new();
        let mut steps = Vec::new();
        for (index, &step) in versions.iter().enumerate().rev() {
            // The version lasts until the next one starts.
            let lasts_until = versions.get(index + 1).map_or(usize::MAX, |next| next - 1);
            let tree = self.part(&self.states[step].tree(), app);
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

    /// The tree of one app, without what other apps change of its directories.
    fn part(&self, tree: &Tree, app: &str) -> Tree {
        let mut part = tree.part(|path, kind| self.layout.app_of(path, kind) == app);
        for (path, node) in &mut part.0 {
            if node.kind == FileKind::Directory && self.layout.hosts_apps(path) {
                (node.nlink, node.mtime) = (0, Mtime::Any);
            }
        }
        part
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
        }) && self.demands.iter().all(|Demand { of, needs }| {
            let shows = |(app, step): &(String, usize)| cut.get(app).map(|chosen| chosen >= step);
            shows(of) != Some(true) || shows(needs) != Some(false)
        })
    }
}

fn join(directory: &str, name: &str) -> String {
    if directory.is_empty() {
        name.to_owned()
    } else {
        format!("{directory}/{name}")
    }
}

fn parts(layout: &Layout, paths: &Part) -> BTreeMap<String, Part> {
    let mut parts: BTreeMap<String, Part> = BTreeMap::new();
    for (path, found) in paths {
        // The root directory itself is of no app: its times change with every app
        // that comes or goes.
        if !path.is_empty() {
            let app = layout.app_of(path, found.1.kind());
            let part = parts.entry(app).or_default();
            part.insert(path.clone(), found.clone());
        }
    }
    parts
}

/// Whether two parts are the same, link counts included. An inode that the timeline
/// holds is never changed in place, so the same inode is the same memory.
fn same(layout: &Layout, before: Option<&Part>, after: Option<&Part>) -> bool {
    let (Some(before), Some(after)) = (before, after) else {
        return before.is_none() && after.is_none();
    };
    before.len() == after.len()
        && before
            .iter()
            .zip(after)
            .all(|((path, one), (other_path, other))| {
                let is_same = || {
                    Arc::ptr_eq(&one.1, &other.1)
                        || (layout.hosts_apps(path) && same_host(&one.1, &other.1))
                };
                path == other_path && one.0 == other.0 && is_same()
            })
}

/// Whether two versions of a directory differ at most in what its entries change.
fn same_host(one: &Inode, other: &Inode) -> bool {
    let attributes = |inode: &Inode| (inode.mode, inode.uid, inode.gid);
    one.kind() == FileKind::Directory
        && other.kind() == FileKind::Directory
        && attributes(one) == attributes(other)
        && one.xattrs == other.xattrs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{NESTED, TOP_LEVEL};
    use crate::operations::{Payload, RenameMode};

    /// A model and its timeline.
    struct Pair(Model, Timeline);

    impl Pair {
        fn new() -> Self {
            let model = Model::default();
            let timeline = Timeline::new(TOP_LEVEL, model.state().clone());
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
        let mut mixed = of.part(|path, kind| TOP_LEVEL.app_of(path, kind) == app);
        mixed.0.extend(
            rest.part(|path, kind| TOP_LEVEL.app_of(path, kind) != app)
                .0,
        );
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
    fn the_steps_of_a_joint_transaction_must_not_be_out_of_order() {
        const SUPER: &str = "alpha/db-mj00000190A";
        let mut pair = Pair::new();
        pair.create("beta/db-journal");
        let before = pair.tree();
        pair.create(SUPER);
        pair.write("beta/db-journal", 1);
        let named = pair.tree();
        assert!(pair.explain(&mix("alpha", &named, &before)).is_ok());
        let found = pair.explain(&mix("beta", &named, &before));
        assert!(found.is_err(), "the journal names what is not there");
        pair.create("beta/db");
        let changed = pair.tree();
        pair.run(Operation::Unlink { path: SUPER.into() });
        let removed = pair.tree();
        assert!(pair.explain(&mix("beta", &removed, &named)).is_ok());
        let found = pair.explain(&mix("alpha", &removed, &named));
        assert!(found.is_err(), "it is committed, and a database is not");
        pair.run(Operation::Unlink {
            path: "beta/db-journal".into(),
        });
        let ended = pair.tree();
        assert!(pair.explain(&mix("alpha", &ended, &removed)).is_ok());
        let found = pair.explain(&mix("beta", &ended, &changed));
        assert!(found.is_err(), "a database cannot be rolled back any more");
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

    #[test]
    fn an_fsync_of_a_directory_covers_entries_of_other_apps() {
        let mut pair = Pair::new();
        let before = pair.tree();
        pair.run(Operation::MakeDirectory {
            path: "gamma".into(),
            mode: 0o755,
        });
        pair.create("gamma/a");
        pair.create("beta/a");
        let after = pair.tree();
        let made = |tree: &Tree| mix("gamma", tree, &before);
        let mut at_first = made(&after);
        at_first.0.remove("gamma/a");
        let fsync = Operation::FsyncDirectory {
            path: String::new(),
        };
        pair.run(fsync.clone());
        assert!(pair.explain(&before).is_ok(), "no class was asked");
        let synced = pair.1.synced_by(&pair.0, &fsync).unwrap();
        assert_eq!(synced.app, crate::layout::ROOT_APP);
        pair.1.synced(&synced);
        assert!(pair.explain(&before).is_err(), "gamma is missing");
        assert!(
            pair.explain(&at_first).is_ok(),
            "its content was not asked for"
        );
        assert!(pair.explain(&after).is_ok());
    }

    #[test]
    fn times_of_a_directory_with_apps_in_it_tie_no_apps() {
        let mut model = Model::default();
        let mut timeline = Timeline::new(NESTED, model.state().clone());
        let mut trees = vec![model.tree()];
        for path in ["alpha", "alpha/b", "alpha/c"] {
            let make = Operation::MakeDirectory {
                path: path.into(),
                mode: 0o755,
            };
            model.execute(&make).unwrap();
            timeline.step(model.state());
            trees.push(model.tree());
        }
        let compare = Compare {
            root: false,
            ..Compare::ALL
        };
        assert!(
            trees
                .iter()
                .all(|tree| timeline.explain(tree, compare).is_ok())
        );
        let mut without_nested = model.tree();
        without_nested.0.remove("alpha/b");
        assert!(timeline.explain(&without_nested, compare).is_ok());
        let nested = Synced {
            object: model.state().paths()["alpha/b"].0,
            app: "alpha/b".into(),
        };
        timeline.synced(&nested);
        assert!(timeline.explain(&without_nested, compare).is_err());
    }
}
