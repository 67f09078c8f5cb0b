//! The memory that WAL mode shares among connections: one process, so it is ordinary memory.

use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use crate::interface::abi::{self, Code, SHM_LOCKS};

/// The shared memory of one database, and the locks in it.
#[derive(Debug, Default)]
pub(crate) struct SharedMemory {
    /// Never moved, and freed only when no connection maps any.
    regions: Vec<Box<[AtomicU64]>>,
    users: usize,
    /// Readers of each lock.
    shared: [usize; SHM_LOCKS],
    /// Whether a lock has a writer.
    exclusive: [bool; SHM_LOCKS],
}

/// The locks of one connection, as bits.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Mapping {
    shared: u8,
    exclusive: u8,
}

impl Mapping {
    /// Whether this lock is held exclusively.
    pub(crate) const fn has_exclusive(self, lock: usize) -> bool {
        self.exclusive & 1 << lock != 0
    }
}

/// What is done to a range of locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Take them, with other readers.
    Share,
    /// Take them alone.
    Exclude,
    /// Release them.
    Release,
}

impl SharedMemory {
    /// A connection begins to use it.
    pub(crate) const fn join(&mut self) -> Mapping {
        self.users += 1;
        Mapping {
            shared: 0,
            exclusive: 0,
        }
    }

    /// A connection ends its use. The last one frees everything.
    pub(crate) fn leave(&mut self, mut mapping: Mapping) {
        let _released = self.change(&mut mapping, (0, SHM_LOCKS), Change::Release);
        self.users -= 1;
        if self.users == 0 {
            self.regions.clear();
        }
    }

    /// Where region number `index` of `bytes` bytes is; none if it is not there and `extend`
    /// is not set. It stays there until the last connection leaves.
    pub(crate) fn map(&mut self, index: usize, bytes: usize, extend: bool) -> Option<NonNull<u8>> {
        while extend && self.regions.len() <= index {
            let words = bytes.div_ceil(size_of::<AtomicU64>());
            self.regions
                .push((0..words).map(|_| AtomicU64::new(0)).collect());
        }
        let region = self.regions.get(index)?;
        // SQLite writes to it; atomics may be written through a shared reference.
        Some(NonNull::from(&region[..]).cast())
    }

    /// Changes the locks from `first` on, `count` of them, all or none.
    ///
    /// # Errors
    /// `SQLITE_BUSY`.
    pub(crate) fn change(
        &mut self,
        mapping: &mut Mapping,
        (first, count): (usize, usize),
        change: Change,
    ) -> Result<(), Code> {
        let range = first..first + count;
        let is_free = |lock: usize| {
            let own_share = usize::from(mapping.shared & 1 << lock != 0);
            let is_own = mapping.has_exclusive(lock);
            match change {
                Change::Release => true,
                Change::Share => is_own || !self.exclusive[lock],
                Change::Exclude => {
                    is_own || (!self.exclusive[lock] && self.shared[lock] == own_share)
                }
            }
        };
        if !range.clone().all(is_free) {
            return Err(abi::BUSY);
        }
        for lock in range {
            let bit = 1 << lock;
            match change {
                Change::Share if (mapping.shared | mapping.exclusive) & bit == 0 => {
                    self.shared[lock] += 1;
                    mapping.shared |= bit;
                }
                Change::Exclude if mapping.exclusive & bit == 0 => {
                    self.exclusive[lock] = true;
                    mapping.exclusive |= bit;
                }
                Change::Release => {
                    if mapping.exclusive & bit != 0 {
                        self.exclusive[lock] = false;
                    }
                    if mapping.shared & bit != 0 {
                        self.shared[lock] -= 1;
                    }
                    mapping.exclusive &= !bit;
                    mapping.shared &= !bit;
                }
                _ => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_share_and_a_writer_is_alone() {
        let mut memory = SharedMemory::default();
        let (mut one, mut other) = (memory.join(), memory.join());
        memory.change(&mut one, (3, 1), Change::Share).unwrap();
        memory.change(&mut other, (3, 1), Change::Share).unwrap();
        assert_eq!(
            memory.change(&mut one, (3, 1), Change::Exclude),
            Err(abi::BUSY)
        );
        memory.change(&mut other, (3, 1), Change::Release).unwrap();
        // A range is taken whole or not at all.
        memory.change(&mut other, (4, 1), Change::Exclude).unwrap();
        assert_eq!(
            memory.change(&mut one, (2, 3), Change::Exclude),
            Err(abi::BUSY)
        );
        memory.change(&mut other, (2, 1), Change::Exclude).unwrap();
        memory.leave(other);
        memory.change(&mut one, (2, 3), Change::Exclude).unwrap();
        assert!(one.has_exclusive(4));
        memory.leave(one);
        assert_eq!((memory.shared, memory.exclusive), ([0; 8], [false; 8]));
    }

    #[test]
    fn regions_stay_until_the_last_connection_leaves() {
        let mut memory = SharedMemory::default();
        let (one, other) = (memory.join(), memory.join());
        assert_eq!(memory.map(0, 32 << 10, false), None);
        let first = memory.map(0, 32 << 10, true).unwrap();
        memory.map(5, 32 << 10, true).unwrap();
        assert_eq!(memory.map(0, 32 << 10, false), Some(first));
        memory.leave(one);
        assert_eq!(memory.map(0, 32 << 10, false), Some(first));
        memory.leave(other);
        assert_eq!(memory.map(0, 32 << 10, false), None);
    }
}
