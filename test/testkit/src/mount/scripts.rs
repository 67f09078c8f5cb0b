//! Scripts on a real mount beside the model.

use std::path::Path;

use super::fixture::{Mount, Places};
use super::model_history::ModelHistory;
use super::program::Program;
use crate::harness::compare_trees;
use crate::layout::{DURABLE_ROOT, Layout};
use crate::model::State;
use crate::operations::{Event, Script};
use crate::target::{DirectoryTarget, Target as _};
use crate::tree::Compare;

/// Apps commit on their own all the time, so that a cut meets every stage.
const CONFIG: &str = "
apply_idle_ms = 300
[defaults]
age_max_ms = 40
";
/// `gamma` is durable, and what lies in no app.
const LAYOUT: Layout = DURABLE_ROOT;

/// Times of the root directory belong to no app, and the store's own directory
/// counts as a link of it in the lower filesystem.
const VIEW: Compare = Compare {
    root: false,
    ..Compare::ALL
};

/// Runs a script on a mount below `base`, which is an empty directory, and compares
/// with the model: every answer, the tree after every `tree_every` events, what every
/// power cut leaves, and at the end the unmounted store.
///
/// # Errors
/// What differs.
pub fn live_mounted(script: &Script, base: &Path, tree_every: usize) -> Result<(), String> {
    let mount = mount_below(base)?;
    let mut session = Session {
        target: open(&mount)?,
        history: ModelHistory::new(State::default(), LAYOUT),
        mount,
    };
    for (index, event) in script.events.iter().enumerate() {
        session
            .happen(event)
            .and_then(|()| match (index + 1) % tree_every {
                0 => compare_trees(session.history.model(), &mut session.target, VIEW),
                _ => Ok(()),
            })
            .map_err(|problem| format!("at event {index} ({event:?}): {problem}"))?;
    }
    session
        .end()
        .map_err(|problem| format!("at the end: {problem}"))
}

fn mount_below(base: &Path) -> Result<Mount, String> {
    let places = Places::below(base);
    places
        .make(&[CONFIG, LAYOUT.config].concat())
        .map_err(|error| error.to_string())?;
    let mut mount = Mount::new(Program::of_workspace(), places);
    mount.mount()?;
    Ok(mount)
}

fn open(mount: &Mount) -> Result<DirectoryTarget, String> {
    DirectoryTarget::new(&mount.places().mountpoint).map_err(|error| error.to_string())
}

/// A mount beside the model.
struct Session {
    mount: Mount,
    target: DirectoryTarget,
    history: ModelHistory,
}

impl Session {
    fn happen(&mut self, event: &Event) -> Result<(), String> {
        match event {
            Event::Do(operation) => self.history.execute(&mut self.target, operation)?,
            Event::SyncApp(app) => {
                if self.history.is_app(app) {
                    self.mount
                        .command(&["sync", "--commit-only", "--app", app])?;
                    self.history.committed(app);
                }
            }
            Event::SyncAll => {
                self.mount.command(&["sync", "--commit-only"])?;
                self.history.all_committed();
            }
            Event::Apply => {
                self.mount.command(&["sync"])?;
                self.history.all_committed();
            }
            Event::Cut => self.cut()?,
            // The daemon decides by itself.
            Event::Close(_) | Event::CommitNext | Event::TidyUp => {}
            Event::Kill(_) => return Err("kills have tests of their own".into()),
        }
        Ok(())
    }

    fn cut(&mut self) -> Result<(), String> {
        self.mount.drill()?;
        self.target.close_all();
        self.mount.mount()?;
        self.target = open(&self.mount)?;
        let found = self.target.tree().map_err(|error| error.to_string())?;
        self.history.explain(&found, VIEW)?;
        self.history = ModelHistory::new(State::from_tree(&found), LAYOUT);
        Ok(())
    }

    fn end(mut self) -> Result<(), String> {
        let model = self.history.model();
        compare_trees(model, &mut self.target, VIEW)?;
        drop(self.target);
        self.mount.umount()?;
        let store = &self.mount.places().store;
        let mut plain = DirectoryTarget::new(store).map_err(|error| error.to_string())?;
        compare_trees(model, &mut plain, VIEW)
            .map_err(|problem| format!("after the unmount: {problem}"))
    }
}
