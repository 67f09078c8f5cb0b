//! Does the steps of a session, each thread its own ones at the same time. A step that is done already,
//! by a run that was interrupted, is not done again.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::content::{has_content, write_content};
use crate::database::{FULL_ADVICE, Open, Vfs};
use crate::error::{AgeError, OnPath as _};
use crate::plan::{FileToWrite, Session, Step};

/// Where steps are done.
#[derive(Debug)]
pub(crate) struct Executor<'e> {
    pub(crate) root: &'e Path,
    pub(crate) vfs: Vfs,
    /// Set from outside when the run is to end.
    pub(crate) stop: &'e AtomicBool,
    pub(crate) steps_done: AtomicU64,
}

impl Executor<'_> {
    pub(crate) fn session(&self, session: &Session) -> Result<(), AgeError> {
        self.thread(&session.before, &AtomicBool::new(false))?;
        let failed = AtomicBool::new(false);
        let results: Vec<Result<(), AgeError>> = std::thread::scope(|scope| {
            let threads: Vec<_> = session
                .threads
                .iter()
                .map(|steps| scope.spawn(|| self.thread(steps, &failed)))
                .collect();
            let results = threads.into_iter().map(|thread| {
                let result = thread.join();
                result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            });
            results.collect()
        });
        // The reason, rather than that others stopped because of it.
        let mut errors: Vec<AgeError> = results.into_iter().filter_map(Result::err).collect();
        errors.sort_by_key(|error| matches!(error, AgeError::Cancelled));
        if !errors.is_empty() {
            return Err(errors.swap_remove(0));
        }
        self.thread(&session.after, &failed)
    }

    fn thread(&self, steps: &[Step], failed: &AtomicBool) -> Result<(), AgeError> {
        let mut databases = HashMap::new();
        let mut done = Ok(());
        for step in steps {
            done = if self.stop.load(Ordering::Relaxed) || failed.load(Ordering::Relaxed) {
                Err(AgeError::Cancelled)
            } else {
                self.step(step, &mut databases)
            };
            if done.is_err() {
                failed.store(true, Ordering::Relaxed);
                break;
            }
            self.steps_done.fetch_add(1, Ordering::Relaxed);
        }
        let mut open: Vec<_> = databases.into_iter().collect();
        open.sort_unstable_by(|one: &(String, Open), other| one.0.cmp(&other.0));
        for (_, database) in open {
            let closed = database.close();
            done = done.and(closed);
        }
        done
    }

    fn step(&self, step: &Step, open: &mut HashMap<String, Open>) -> Result<(), AgeError> {
        let at = |path: &str| self.root.join(path);
        match step {
            Step::Directory(path) => fs::create_dir_all(at(path)).at("make", &at(path)),
            Step::Remove(path) => unless_gone(fs::remove_file(at(path))).at("delete", &at(path)),
            Step::RemoveTree(path) => {
                unless_gone(fs::remove_dir_all(at(path))).at("delete", &at(path))
            }
            Step::Write(file) => self.write(file).map_err(|error| {
                if error.is_no_room() {
                    return AgeError::Full {
                        path: at(&file.path),
                        advice: FULL_ADVICE,
                    };
                }
                error
            }),
            Step::Transaction(database, number) => {
                if !open.contains_key(&database.path) {
                    let opened = Open::new(self.root, database, self.vfs)?;
                    open.insert(database.path.clone(), opened);
                }
                match open.get_mut(&database.path) {
                    Some(open) => open.transaction(database, *number),
                    None => Ok(()),
                }
            }
        }
    }

    fn write(&self, file: &FileToWrite) -> Result<(), AgeError> {
        let path = self.root.join(&file.path);
        match File::open(&path) {
            Ok(found) => {
                if has_content(&found, file.seed, file.bytes).at("read", &path)? {
                    return Ok(());
                }
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error).at("open", &path),
        }
        let first = if file.renamed {
            self.root.join(format!("{}.tmp", file.path))
        } else {
            path.clone()
        };
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true);
        let new = options.open(&first).at("make", &first)?;
        write_content(&new, file.seed, 0, file.bytes).at("write", &first)?;
        if file.durable {
            new.sync_all().at("sync", &first)?;
        }
        if file.renamed {
            fs::rename(&first, &path).at("rename", &first)?;
        }
        Ok(())
    }
}

fn unless_gone(removed: std::io::Result<()>) -> std::io::Result<()> {
    match removed {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
