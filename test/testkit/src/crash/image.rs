//! What becomes durable, and what is found after a crash.

use std::sync::Arc;

use mobifs_base::FileKind;

use super::effect::{Effect, Fate, InodeKey, SECTOR, close};
use super::{CrashLower, Filesystem};

impl CrashLower {
    /// The filesystem as it is found after a crash now, with the fate of each pending
    /// effect chosen by `chooser` (oldest first) and completed by what the landing
    /// ones imply. It shares nothing with this one.
    pub fn crash_image(&self, chooser: &mut dyn FnMut(&Effect) -> Fate) -> Self {
        let filesystem = self.0.filesystem.lock();
        let mut land: Vec<bool> = filesystem
            .pending
            .iter()
            .map(|effect| chooser(effect) == Fate::Land)
            .collect();
        let image = filesystem.image(&mut land);
        {
            let mut found = image.0.filesystem.lock();
            found.capabilities = filesystem.capabilities;
            found.refusals = filesystem.refusals;
            found.copies = filesystem.copies;
        }
        image
    }

    /// A filesystem to which everything was copied that is in this one: the same but for the
    /// numbers of inodes, which are assigned anew. `below` chooses a number less than its argument.
    pub fn copy(&self, below: &mut dyn FnMut(u64) -> u64) -> Self {
        let filesystem = self.0.filesystem.lock();
        let mut state = filesystem.live.clone();
        let mut keys: Vec<InodeKey> = state.inodes.keys().copied().collect();
        keys.sort_unstable();
        let mut numbers: Vec<u64> = keys.iter().map(|key| state.inodes[key].number).collect();
        // Numbers that other objects had are the hardest case; now and then all are new.
        let above = if below(4) == 0 { 1 << 8 } else { 0 };
        for key in keys {
            let chosen = below(numbers.len() as u64);
            let number = numbers.swap_remove(usize::try_from(chosen).unwrap_or(0)) + above;
            if let Some(inode) = state.inode_mut(key) {
                inode.number = number;
            }
        }
        let copy = Self::from_state(state, filesystem.next_key);
        {
            let mut made = copy.0.filesystem.lock();
            made.capabilities = filesystem.capabilities;
            made.refusals = filesystem.refusals;
            made.copies = filesystem.copies + 1;
        }
        copy
    }

    /// As [`CrashLower::kill_image`], and the planned fault, the count of calls and the hook move
    /// to the successor's. The killed process's handles do nothing here any more.
    pub fn hand_over(&self) -> Self {
        let image = self.kill_image();
        {
            let mut filesystem = self.0.filesystem.lock();
            image.0.filesystem.lock().faults = std::mem::take(&mut filesystem.faults);
            filesystem.owner_lives = Some(Box::new(|| false));
        }
        *image.0.hook.lock() = self.0.hook.lock().take();
        image
    }

    /// The filesystem as the successor of a killed process finds it: everything that was
    /// done is there, and what was not durable is not durable still. Nothing is open, so
    /// what has no link is gone. It shares nothing with this one.
    pub fn kill_image(&self) -> Self {
        let filesystem = self.0.filesystem.lock();
        let mut image = Self::from_state(filesystem.live.clone(), filesystem.next_key);
        if let Some(shared) = Arc::get_mut(&mut image.0) {
            let found = shared.filesystem.get_mut();
            found.durable = filesystem.durable.clone();
            found.pending.clone_from(&filesystem.pending);
            found.next_number = filesystem.next_number;
            found.free_numbers.clone_from(&filesystem.free_numbers);
            found.unlinked.clone_from(&filesystem.unlinked);
            found.has_given_up = filesystem.has_given_up;
            found.moving.clone_from(&filesystem.moving);
            found.space = filesystem.space;
            found.capabilities = filesystem.capabilities;
            found.refusals = filesystem.refusals;
            found.copies = filesystem.copies;
            // Its clock goes on.
            found.operations = filesystem.operations;
            found.release_numbers();
        }
        image
    }
}

impl Filesystem {
    fn close(&self, land: &mut [bool]) {
        let predecessor = |key: InodeKey| {
            let inode = self
                .live
                .inodes
                .get(&key)
                .or_else(|| self.durable.inodes.get(&key));
            inode.and_then(|inode| inode.predecessor)
        };
        close(self.pending.iter(), land, predecessor);
    }

    fn image(&self, land: &mut [bool]) -> CrashLower {
        loop {
            self.close(land);
            let mut state = self.durable.clone();
            for (effect, _) in self.pending.iter().zip(&*land).filter(|&(_, &land)| land) {
                state.apply(effect);
            }
            if !state.drop_unreachable().is_empty() && self.order_directory_renames(land) {
                continue;
            }
            for inode in state.inodes.values_mut() {
                let (size, last) = (inode.size, inode.sectors.last_key_value());
                if last.is_some_and(|(&last, _)| (last + 1) * SECTOR > size) {
                    Arc::make_mut(inode).cut_content(size);
                }
                if inode.predecessor.is_some() {
                    Arc::make_mut(inode).predecessor = None;
                }
            }
            return CrashLower::from_state(state, self.next_key);
        }
    }

    /// Two moves of directories, of which only the later landed, can make a cycle, which no
    /// filesystem allows: then the moves land in order. Returns whether that adds anything.
    fn order_directory_renames(&self, land: &mut [bool]) -> bool {
        let is_move = |effect: &Effect| {
            matches!(
                effect,
                Effect::Rename {
                    kind: FileKind::Directory,
                    ..
                }
            )
        };
        let mut later_lands = false;
        let mut added = false;
        for (effect, land) in self.pending.iter().zip(land.iter_mut()).rev() {
            if is_move(effect) {
                added |= later_lands && !*land;
                *land |= later_lands;
                later_lands = *land;
            }
        }
        added
    }

    /// Makes the effects that `chosen` names durable, with all that they imply.
    pub(super) fn make_durable(&mut self, chosen: impl Fn(&Effect) -> bool) {
        self.forget_lost();
        if self.gives_up {
            return self.give_up(chosen);
        }
        self.conclude_moves(&chosen);
        let mut land: Vec<bool> = self.pending.iter().map(chosen).collect();
        self.close(&mut land);
        // In the durable state a cycle could not be undone any more.
        while self.order_directory_renames(&mut land) {
            self.close(&mut land);
        }
        let mut land = land.into_iter();
        let pending = std::mem::take(&mut self.pending);
        for effect in pending {
            if land.next() == Some(true) {
                self.durable.apply(&effect);
            } else {
                self.pending.push(effect);
            }
        }
    }

    /// Makes everything durable.
    pub(super) fn make_all_durable(&mut self) {
        self.forget_lost();
        if self.gives_up {
            return self.give_up(|_| true);
        }
        self.conclude_moves(|_| true);
        self.release_numbers();
        let pending = std::mem::take(&mut self.pending);
        if self.has_given_up {
            pending.iter().for_each(|effect| self.durable.apply(effect));
        } else {
            self.durable = self.live.clone();
        }
    }

    /// The content of the chosen effects never reaches the medium, though
    /// memory shows it. Holes are the filesystem's own metadata: they wait for the next sync,
    /// like sizes and names.
    fn give_up(&mut self, chosen: impl Fn(&Effect) -> bool) {
        let before = self.pending.len();
        let is_content = |effect: &Effect| {
            matches!(
                effect,
                Effect::Sector {
                    content: Some(_),
                    ..
                }
            )
        };
        self.pending
            .retain(|effect| !(is_content(effect) && chosen(effect)));
        self.has_given_up |= self.pending.len() < before;
        self.lose_moved(chosen);
    }

    /// Key and number of a new inode, and the inode that had the number before.
    pub(super) fn new_inode(&mut self) -> (InodeKey, u64, Option<InodeKey>) {
        self.release_numbers();
        let (number, predecessor) = self.free_numbers.pop_first().unwrap_or_else(|| {
            self.next_number += 1;
            (self.next_number - 1, None)
        });
        let key = self.next_key;
        self.next_key += 1;
        (key, number, predecessor)
    }

    /// Gives the numbers of inodes that are unlinked and closed free.
    pub(super) fn release_numbers(&mut self) {
        let candidates = std::mem::take(&mut self.unlinked);
        for key in candidates {
            let open = self
                .open
                .get(&key)
                .is_some_and(|open| Arc::strong_count(open) > 1);
            if open {
                self.unlinked.push(key);
            } else if let Some(inode) = self.live.inodes.remove(&key) {
                self.open.remove(&key);
                self.free_numbers.insert(inode.number, Some(key));
            }
        }
    }
}
