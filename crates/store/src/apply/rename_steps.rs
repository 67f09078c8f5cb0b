//! Renaming many entries without blocking look-ups.

use parking_lot::RwLockWriteGuard;

use crate::locks::{Ranked, RankedRwLock};

/// Steps after which waiting look-ups may run; each is a few system calls.
const STEPS: u32 = 32;

/// The lock for renames, which is held step by step.
///
/// Between two steps the table has the place of every object, as after an apply that failed at that
/// point; so a waiting look-up may run then. Without that, a look-up of any object of any app
/// waited until all renames were done.
pub(super) struct RenameSteps<'a> {
    tree: Ranked<RwLockWriteGuard<'a, ()>>,
    steps: u32,
}

impl<'a> RenameSteps<'a> {
    pub(super) fn begin(tree: &'a RankedRwLock<()>) -> Self {
        Self {
            tree: tree.write(),
            steps: 0,
        }
    }

    /// Runs slow work without renames between two steps: look-ups need not wait for it.
    pub(super) fn meanwhile<T>(&mut self, work: impl FnOnce() -> T) -> T {
        RwLockWriteGuard::unlocked_fair(self.tree.guard_mut(), work)
    }

    /// A step is complete: from time to time waiting look-ups run.
    pub(super) fn end_step(&mut self) {
        self.steps += 1;
        if self.steps.is_multiple_of(STEPS) {
            RwLockWriteGuard::bump(self.tree.guard_mut());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::locks::{Order, Rank};

    /// Look-ups of any app waited while a filesystem made renames durable.
    #[test]
    fn look_ups_run_while_renames_become_durable() {
        let tree = RankedRwLock::new(Order::new(), Rank::Names, ());
        let mut renames = RenameSteps::begin(&tree);
        assert!(tree.try_read().is_none());
        renames.meanwhile(|| assert!(tree.try_read().is_some()));
        assert!(tree.try_read().is_none());
    }

    /// An apply kept the lock from its first name to its last, for seconds.
    #[test]
    fn look_ups_run_between_two_steps() {
        let tree = RankedRwLock::new(Order::new(), Rank::Names, ());
        let was_in = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let mut renames = RenameSteps::begin(&tree);
            scope.spawn(|| {
                let _tree = tree.read();
                was_in.store(true, Ordering::SeqCst);
            });
            // For ever if no reader gets the lock.
            while !was_in.load(Ordering::SeqCst) {
                renames.end_step();
            }
            assert!(tree.try_read().is_none(), "the lock is held again");
        });
    }
}
