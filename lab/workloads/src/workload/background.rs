//! Programs that run beside the one that is measured, until they are stopped.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use super::{OnPath as _, WorkloadError};

/// What runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Job {
    /// Directories and files are made and removed recursively, as fdtree does: metadata.
    Trees,
    /// Blocks of 4 KiB are written into a file of this size, over and over: data.
    Blocks {
        /// The size of the file.
        file_bytes: u64,
    },
}

/// Directories in a directory, files in a directory, and how deep.
const DIRECTORIES: usize = 3;
const FILES: usize = 4;
const LEVELS: usize = 3;
const BLOCK_BYTES: usize = 4096;

/// A running job. It ends with the value.
#[derive(Debug)]
pub struct Running {
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    thread: Option<JoinHandle<Result<(), WorkloadError>>>,
}

/// Starts a job in an existing directory.
pub fn start(directory: &Path, job: Job) -> Result<Running, WorkloadError> {
    let (stop, done) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU64::new(0)),
    );
    let directory = directory.to_owned();
    let worker = Worker {
        stop: Arc::clone(&stop),
        done: Arc::clone(&done),
    };
    let thread = thread::Builder::new().spawn(move || match job {
        Job::Trees => worker.trees(&directory),
        Job::Blocks { file_bytes } => worker.blocks(&directory, file_bytes),
    });
    let thread = thread.map_err(|error| WorkloadError::Wrong(error.to_string()))?;
    Ok(Running {
        stop,
        done,
        thread: Some(thread),
    })
}

impl Running {
    /// Stops it; how many entries or blocks it has written.
    pub fn stop(mut self) -> Result<u64, WorkloadError> {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            ended.map_err(|_| {
                WorkloadError::Wrong("a job in the background panicked".to_owned())
            })??;
        }
        Ok(self.done.load(Ordering::Relaxed))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // The caller has not asked for the result.
            let _ended = thread.join();
        }
    }
}

struct Worker {
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
}

impl Worker {
    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    fn count(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
    }

    fn trees(&self, directory: &Path) -> Result<(), WorkloadError> {
        let root = directory.join("tree");
        while self.goes_on() {
            let mut made = vec![root.clone()];
            self.tree(&root, LEVELS, &mut made)?;
            for directory in made.iter().rev().filter(|path| path.exists()) {
                for number in 0..FILES {
                    // Where it was stopped half-way, some are missing.
                    let _gone = fs::remove_file(directory.join(format!("f{number}")));
                }
                fs::remove_dir(directory).on(directory)?;
                self.count();
            }
        }
        Ok(())
    }

    fn tree(&self, at: &Path, levels: usize, made: &mut Vec<PathBuf>) -> Result<(), WorkloadError> {
        fs::create_dir(at).on(at)?;
        self.count();
        for number in 0..FILES {
            let path = at.join(format!("f{number}"));
            fs::write(&path, [b'f'; BLOCK_BYTES]).on(&path)?;
            self.count();
        }
        for number in (0..DIRECTORIES).take_while(|_| levels > 0 && self.goes_on()) {
            let below = at.join(format!("d{number}"));
            made.push(below.clone());
            self.tree(&below, levels - 1, made)?;
        }
        Ok(())
    }

    fn blocks(&self, directory: &Path, file_bytes: u64) -> Result<(), WorkloadError> {
        let path = directory.join("blocks");
        let file = File::create(&path).on(&path)?;
        let mut offset = 0;
        while self.goes_on() {
            file.write_all_at(&[b'b'; BLOCK_BYTES], offset).on(&path)?;
            offset = (offset + BLOCK_BYTES as u64) % file_bytes.max(BLOCK_BYTES as u64);
            self.count();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_work_until_they_are_stopped() {
        for job in [Job::Trees, Job::Blocks { file_bytes: 8192 }] {
            let directory = tempfile::tempdir().unwrap();
            let running = start(directory.path(), job).unwrap();
            while running.done.load(Ordering::Relaxed) < 400 {
                assert!(
                    !running.thread.as_ref().unwrap().is_finished(),
                    "{job:?} ended"
                );
                thread::yield_now();
            }
            assert!(running.stop().unwrap() >= 400);
            assert!(!directory.path().join("tree").exists());
        }
    }
}
