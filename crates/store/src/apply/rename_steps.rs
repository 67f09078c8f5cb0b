//! Moving many names without keeping readers waiting.

use parking_lot::RwLockWriteGuard;

use crate::locks::{Ranked, RankedRwLock};

/// Steps after which readers have their turn; each is a few system calls.
const STEPS: u32 = 32;

/// The right to move names, step by step.
///
/// Between two steps the table says of every object where it is, as after an apply that failed
/// at that point; so a look-up that waits may go on there. Without that, a look
/// at any object of any app waited until all names had moved.
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

    /// Between two steps, does something that moves no names and takes time: readers need not
    /// wait for it.
    pub(super) fn meanwhile<T>(&mut self, work: impl FnOnce() -> T) -> T {
        RwLockWriteGuard::unlocked_fair(self.tree.guard_mut(), work)
    }

    /// A step is complete: lets waiting look-ups in, from time to time.
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

    /// Lookups of any app waited while a filesystem made the names durable that had moved.
    #[test]
    fn readers_get_in_while_names_become_durable() {
        let tree = RankedRwLock::new(Order::new(), Rank::Names, ());
        let mut renames = RenameSteps::begin(&tree);
        assert!(tree.try_read().is_none());
        renames.meanwhile(|| assert!(tree.try_read().is_some()));
        assert!(tree.try_read().is_none());
    }

    /// An apply kept the lock from its first name to its last, for seconds.
    #[test]
    fn readers_get_in_between_two_steps() {
        let tree = RankedRwLock::new(Order::new(), Rank::Names, ());
        let was_in = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let mut renames = RenameSteps::begin(&tree);
            scope.spawn(|| {
                let _tree = tree.read();
                was_in.store(true, Ordering::SeqCst);
            });
            // For ever if no reader is let in.
            while !was_in.load(Ordering::SeqCst) {
                renames.end_step();
            }
            assert!(tree.try_read().is_none(), "it is ours again");
        });
    }
}
