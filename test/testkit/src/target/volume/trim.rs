//! The kernel drops names, by itself or because it is asked to.

use super::VolumeTarget;

/// No path of a test has more names.
const DEPTH_MAX: u64 = 16;

impl VolumeTarget {
    /// The kernel forgets the names that it knows.
    pub fn forget_names(&mut self) {
        if let Some(names) = &self.names {
            names.borrow_mut().clear();
        }
        self.give_back();
    }

    /// Too much may be in memory: the volume evicts what it can, and the kernel forgets the objects
    /// it is asked for, until nothing more can be freed.
    ///
    /// # Errors
    /// If more is in memory afterwards than may be.
    pub fn trim(&mut self) -> Result<(), String> {
        let mut objects = u64::MAX;
        loop {
            let asked = self.volume.trim_step();
            let asked = asked.into_iter().map(|held| held.id).collect();
            if let Some(names) = &self.names {
                names.borrow_mut().prune(&asked, |id| self.is_in_use(id));
            }
            self.give_back();
            self.volume.do_housekeeping();
            let before = std::mem::replace(&mut objects, self.volume.status().memory.objects);
            if objects >= before {
                return self.check_trimmed(objects);
            }
        }
    }

    /// With nothing uncommitted, only what the program has open, directories and `O_PATH`
    /// included, and the directories above stay.
    fn check_trimmed(&self, objects: u64) -> Result<(), String> {
        let is_committed = self.volume.status().memory.used_bytes == 0;
        let in_use = 1 + (self.open.len() + self.held.len()) as u64 * DEPTH_MAX;
        let most = self.volume.objects_max() + in_use;
        if is_committed && objects > most {
            return Err(format!("{objects} objects are in memory, {most} may be"));
        }
        Ok(())
    }
}
