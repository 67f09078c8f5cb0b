//! Moving a volume step by step where no checkpointer thread runs
//! ([`crate::VolumeOptions::background`]): for tests that must be repeatable.

use std::collections::BTreeMap;

use mobifs_base::{MonotonicNs, ObjectId};
use mobifs_engine::{Commit, KernelHeld, References};

use super::{Volume, VolumeError};

impl Volume {
    /// Closes the open transaction of an app (named as in [`Volume::sync_app`])
    /// without committing it, as its policy may do at any moment.
    pub fn close_app(&self, name: &str) {
        let _point = self.shared.lock_engine().engine.close_app(name.as_bytes());
    }

    /// Commits the closed transaction that is next; false if there is none. Each second time it is
    /// committed with all that do not depend on it, as calls that wait at the same time have theirs.
    ///
    /// # Errors
    /// What the store said.
    pub fn commit_next(&self) -> Result<bool, VolumeError> {
        let shared = &self.shared;
        let commit_lock = shared.commit_lock.lock();
        if shared.commit_queue.is_group_due() {
            let group: Vec<Commit> = {
                let mut locked = shared.lock_engine();
                std::iter::from_fn(|| locked.engine.next_commit(None)).collect()
            };
            if group.is_empty() {
                return Ok(false);
            }
            let committed = shared.commit_group(&commit_lock, &group);
            if committed.is_ok() || group.len() == 1 {
                return Ok(committed.map(|()| true)?);
            }
        }
        let commit = shared.lock_engine().engine.next_commit(None);
        match commit {
            Some(commit) => Ok(shared.commit_one(&commit_lock, &commit).map(|()| true)?),
            None => Ok(false),
        }
    }

    /// What the checkpointer does at this moment: closes what is due, commits everything if a flush
    /// was requested, and what is closed and need not wait for the user. Returns when there will be
    /// something to do although no program does anything.
    pub fn checkpoint_step(&self) -> Option<MonotonicNs> {
        let shared = &self.shared;
        let close_at = shared.lock_engine().engine.tick(shared.moment().now);
        shared.run_pressure_flush();
        let commit_at = shared.commit_closed(|| false).until();
        [close_at, commit_at].into_iter().flatten().min()
    }

    /// How often transactions for which there was no room were merged with what frees some.
    pub fn merges(&self) -> u64 {
        self.shared.lock_engine().engine.merges()
    }

    /// Whether the arena, if there is one, has exactly what a successor needs.
    ///
    /// # Errors
    /// What it has, and should have.
    pub fn check_arena(&self) -> Result<(), String> {
        let mut locked = self.shared.lock_engine();
        let Some(arena) = self.arena() else {
            return Ok(());
        };
        arena.difference(&mut locked.engine).map_or(Ok(()), Err)
    }

    /// Objects that are looked up or open, and how often: what the kernel and programs still
    /// have to give back.
    pub fn references(&self) -> BTreeMap<ObjectId, References> {
        self.shared.lock_engine().engine.references().collect()
    }

    /// As the trimmer does where too much is in memory; what the kernel would be asked to
    /// forget.
    pub fn trim_step(&self) -> Vec<KernelHeld> {
        let mut asked = Vec::new();
        let _round = self.shared.trim_round_asking(|held| {
            asked.extend_from_slice(held);
            held.len()
        });
        asked
    }

    /// Objects that may be in memory although no program uses them.
    pub fn objects_max(&self) -> u64 {
        self.shared.lock_engine().engine.objects_allowed()
    }

    /// Evicts what is not in use, as the checkpointer and the trimmer do.
    pub fn do_housekeeping(&self) {
        let _round = self.shared.trim_round();
        self.shared.do_housekeeping();
    }
}
