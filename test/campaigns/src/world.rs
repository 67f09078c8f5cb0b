//! Random operations over several apps, some of them across apps, beside the model.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use mobifs_base::FileKind;
use mobifs_testkit::layout::{DURABLE_ROOT, Layout};
use mobifs_testkit::model::State;
use mobifs_testkit::mount::{ModelHistory, Program};
use mobifs_testkit::operations::{Event, Profile, generate_on};
use mobifs_testkit::target::DirectoryTarget;
use mobifs_testkit::tree::{Compare, Tree};

use crate::history;
use crate::trouble::Trouble;

/// The apps of the world: objects in no other app are durable, too.
pub(crate) const LAYOUT: Layout = DURABLE_ROOT;
/// More operations than fit between two cuts.
const OPERATIONS: usize = 1500;

/// Works until the disk fails or it is stopped. Stops with the value.
pub struct World {
    cutting: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    thread: Option<JoinHandle<Result<ModelHistory, Trouble>>>,
}

/// The part of a tree that belongs to no history.
fn part(tree: &Tree) -> Tree {
    let apps: Vec<String> = history::all().iter().map(history::History::app).collect();
    tree.part(|path, _: FileKind| {
        let top = path.split('/').next().unwrap_or(path);
        !apps.iter().any(|app| app == top)
    })
}

impl World {
    /// Works on the mount at `root`, whose tree is known and committed. An error is not
    /// one of the world as soon as `cutting` is set.
    ///
    /// # Errors
    /// The mount cannot be opened.
    pub fn start(
        program: &Program,
        root: &Path,
        known: &Tree,
        seed: u64,
        cutting: &Arc<AtomicBool>,
    ) -> Result<Self, Trouble> {
        let state = State::from_tree(&part(known));
        let profile = Profile {
            length: OPERATIONS,
            cross_percent: 20,
            checkpoints: true,
            large: false,
            ..Profile::default()
        };
        let mut worker = Worker {
            events: generate_on(&profile, state.clone(), seed),
            model: ModelHistory::new(state, LAYOUT),
            target: DirectoryTarget::new(root).map_err(|error| error.to_string())?,
            program: program.clone(),
            root: root.to_owned(),
        };
        let stop = Arc::new(AtomicBool::new(false));
        let done = Arc::new(AtomicU64::new(0));
        let flags = (Arc::clone(cutting), Arc::clone(&stop), Arc::clone(&done));
        let thread = std::thread::spawn(move || {
            let (cutting, stop, done) = flags;
            for event in std::mem::take(&mut worker.events) {
                if stop.load(Ordering::SeqCst) {
                    break;
                }
                if let Err(problem) = worker.happen(&event) {
                    if !cutting.load(Ordering::SeqCst) {
                        let problem = format!("before the power was cut: {event:?}: {problem}");
                        return Err(Trouble::Violation(problem));
                    }
                    break;
                }
                done.fetch_add(1, Ordering::SeqCst);
            }
            Ok(worker.model)
        });
        Ok(Self {
            cutting: Arc::clone(cutting),
            stop,
            done,
            thread: Some(thread),
        })
    }

    /// Operations that have returned.
    pub fn done(&self) -> u64 {
        self.done.load(Ordering::SeqCst)
    }

    /// Stops between two operations; returns the history that the tree must agree with.
    ///
    /// # Errors
    /// An operation answered something else than the model.
    pub fn stop(mut self) -> Result<Past, Trouble> {
        self.stop.store(true, Ordering::SeqCst);
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(model)) => Ok(Past(model?)),
            _ => Err(Trouble::Failed("the world's thread is gone".into())),
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.cutting.store(true, Ordering::SeqCst);
        self.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            let _joined = thread.join();
        }
    }
}

/// Everything that a world did.
pub struct Past(ModelHistory);

impl Past {
    /// All of it was committed.
    pub fn all_committed(&mut self) {
        self.0.all_committed();
    }

    /// Every operation on a line of its own, with the step it was.
    pub fn story(&self) -> String {
        let executed = self.0.executed().iter();
        executed
            .map(|(step, operation)| format!("{step}: {operation:?}\n"))
            .collect()
    }

    /// Checks the tree that a power cut left: every app at one point of its history, what
    /// was committed is there, operations across apps are whole.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(&self, found: &Tree, compare: Compare) -> Result<(), Trouble> {
        let explained = self.0.explain(&part(found), compare);
        explained.map_err(|problem| Trouble::Violation(format!("the world: {problem}")))
    }
}

struct Worker {
    events: Vec<Event>,
    model: ModelHistory,
    target: DirectoryTarget,
    program: Program,
    root: std::path::PathBuf,
}

impl Worker {
    fn happen(&mut self, event: &Event) -> Result<(), String> {
        match event {
            Event::Do(operation) => self.model.execute(&mut self.target, operation)?,
            Event::SyncApp(app) if self.model.is_app(app) => {
                self.sync(&["sync", "--commit-only", "--app", app])?;
                self.model.committed(app);
            }
            Event::SyncAll => {
                self.sync(&["sync", "--commit-only"])?;
                self.model.all_committed();
            }
            Event::Apply => {
                self.sync(&["sync"])?;
                self.model.all_committed();
            }
            // Left to the daemon's policies.
            Event::SyncApp(_) | Event::Close(_) | Event::CommitNext | Event::TidyUp => {}
            Event::Cut | Event::Kill(_) => {
                return Err("a world has no cuts and kills of its own".into());
            }
        }
        Ok(())
    }

    fn sync(&self, words: &[&str]) -> Result<(), String> {
        self.program.run(words, &[&self.root]).map(drop)
    }
}
