//! Keeping the number of objects in memory bounded.
//!
//! Objects stay in memory when nothing uses them, because they may be used again, and as long
//! as the kernel has them in its own caches, which can be for ever: a walk over a
//! million files leaves a million references. So above a limit unused objects leave memory,
//! and the kernel is asked to forget what only its caches refer to. All is done in steps that
//! look at a bounded number of objects, in the order in which they came into memory.

use alloc::vec::Vec;

use mobifs_base::{Name, ObjectId};

use super::Engine;
use crate::directory::Directory;
use crate::inode::Inode;

/// What an object takes in memory without its content, roughly: here, in the arena, and what
/// the store knows of it.
const OBJECT_MEMORY_BYTES: u64 = 2048;
/// Entries of listings that may be in memory for each object that may. An entry takes about a
/// quarter of the memory of an object.
const ENTRIES_PER_OBJECT: usize = 4;
/// So many entries are worth looking an object up again.
const ENTRIES_WORTH_AN_OBJECT: u64 = 64;

/// An object that is in memory only because the kernel has it in its caches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelHeld {
    /// The object.
    pub id: ObjectId,
    /// A directory that had an entry for it, and probably has.
    pub parent: ObjectId,
    /// The name of that entry.
    pub name: Option<Name>,
    /// It is a directory.
    pub is_directory: bool,
}

/// What an object is kept in memory for by the kernel and by programs, until they give it back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct References {
    /// How often it was looked up.
    pub lookups: u64,
    /// How often it is open.
    pub opens: u64,
}

/// What one step of [`Engine::trim`] did.
#[derive(Debug, Default)]
pub struct Trimmed {
    /// Objects that were looked at: 0 if there is no need to go on.
    pub looked_at: usize,
    /// Objects and listings that left memory.
    pub evicted: usize,
    /// Objects that would leave memory if the kernel forgot them.
    pub kernel_held: Vec<KernelHeld>,
}

impl Engine {
    /// Most objects that stay in memory although no program uses them: as many as were asked
    /// for, and no more than fit into the memory budget.
    pub(super) fn objects_max(&self) -> usize {
        let fit = self.limits.memory_budget_bytes / OBJECT_MEMORY_BYTES;
        let fit = usize::try_from(fit).unwrap_or(usize::MAX);
        self.limits.objects_max.min(fit)
    }

    /// Objects that may be in memory although no program uses them.
    pub fn objects_allowed(&self) -> u64 {
        self.objects_max() as u64
    }

    /// Whether more objects, or more entries of directories, than allowed are in memory, so
    /// that [`Engine::trim`] would look for some to let go.
    pub fn is_crowded(&self) -> bool {
        let objects_max = self.objects_max();
        self.inodes.len() > objects_max || self.has_many_entries(objects_max)
    }

    /// Whether more objects than allowed are in memory.
    pub fn has_many_objects(&self) -> bool {
        self.inodes.len() > self.objects_max()
    }

    fn has_many_entries(&self, objects_max: usize) -> bool {
        self.inodes.listed_entries() > objects_max.saturating_mul(ENTRIES_PER_OBJECT)
    }

    /// Objects that are looked up or open, and how often.
    pub fn references(&self) -> impl Iterator<Item = (ObjectId, References)> {
        let of = |inode: &Inode| References {
            lookups: inode.lookups,
            opens: inode.opens,
        };
        let counted = self.inodes.iter().map(move |(&id, inode)| (id, of(inode)));
        counted.filter(|(_, references)| *references != References::default())
    }

    /// Entries of all listings in memory.
    pub fn listed_entries(&self) -> u64 {
        self.inodes.listed_entries() as u64
    }

    /// One step towards the limits, if they are exceeded: looks at no more than `objects_max`
    /// objects, lets those that nothing uses leave memory, and the listings of directories
    /// that nothing in memory lies in, and names those that only the kernel still refers to.
    ///
    /// Above the limit an eighth more than necessary is taken, so that not each new object
    /// makes a step necessary.
    pub fn trim(&mut self, objects_max: usize) -> Trimmed {
        let mut trimmed = Trimmed::default();
        let limit = self.objects_max();
        if !self.is_crowded() {
            return trimmed;
        }
        let target = limit - limit / 8;
        while trimmed.looked_at < objects_max.min(self.inodes.len()) {
            let excess = self.inodes.len().saturating_sub(target);
            let is_enough = excess <= trimmed.kernel_held.len();
            if is_enough && !self.has_many_entries(target) {
                break;
            }
            let Some(id) = self.inodes.next_in_turn() else {
                break;
            };
            trimmed.looked_at += 1;
            let Some(inode) = self.inodes.get(&id) else {
                continue;
            };
            if id != ObjectId::ROOT && is_unused(inode) {
                // Those above become unused with it. Each in its turn would take a round for each.
                let left = objects_max - trimmed.looked_at;
                let evicted = self.evict_upwards(id, left + 1, |_| true);
                trimmed.looked_at += evicted - 1;
                trimmed.evicted += evicted;
            } else if is_idle(inode) {
                trimmed.evicted += 1;
                self.unload_listing(id);
            }
            if let Some(inode) = self.inodes.get(&id)
                && id != ObjectId::ROOT
                && is_kernel_held(inode)
                && (!is_enough || self.keeps_many_entries(inode))
            {
                trimmed.kernel_held.push(KernelHeld {
                    id,
                    parent: inode.home,
                    name: inode.name.clone(),
                    is_directory: inode.is_directory(),
                });
            }
        }
        trimmed
    }

    /// Whether an object is one of few that keep a large listing in memory. For the sake of
    /// listings the kernel is asked only for these: of a large directory that is in use it would
    /// forget everything again and again, for nothing.
    fn keeps_many_entries(&self, inode: &Inode) -> bool {
        self.inodes.get(&inode.home).is_some_and(|home| {
            let entries = home.directory().map_or(0, Directory::len) as u64;
            entries >= home.residents.saturating_mul(ENTRIES_WORTH_AN_OBJECT)
        })
    }

    /// The entries of a directory that nothing in memory lies in leave memory.
    fn unload_listing(&mut self, id: ObjectId) {
        if self.inodes.unload(id) {
            self.forgotten.insert(id);
            self.departures.left(id);
        }
    }

    /// If too much is in memory, an object that has lost its last user leaves it at once, and
    /// so do the directories above that are there only for it.
    pub(super) fn evict_if_crowded(&mut self, id: ObjectId) {
        self.evict_upwards(id, usize::MAX, Self::is_crowded);
    }

    /// Takes an unused object out of memory, and the directories above it that are unused then:
    /// so many, and as long as there is need. Answers how many left.
    fn evict_upwards(
        &mut self,
        id: ObjectId,
        objects_max: usize,
        is_needed: impl Fn(&Self) -> bool,
    ) -> usize {
        let (mut at, mut evicted) = (id, 0);
        while at != ObjectId::ROOT
            && evicted < objects_max
            && is_needed(self)
            && let Some(inode) = self.inodes.get(&at)
            && is_unused(inode)
        {
            let home = inode.home;
            self.evict(at);
            (at, evicted) = (home, evicted + 1);
        }
        evicted
    }
}

/// Whether an object can be had from the store again at any time.
fn is_unused(inode: &Inode) -> bool {
    inode.lookups == 0 && is_only_looked_up(inode)
}

/// Whether only the kernel's caches, or programs through them, use an object.
fn is_kernel_held(inode: &Inode) -> bool {
    inode.lookups > 0 && is_only_looked_up(inode)
}

fn is_only_looked_up(inode: &Inode) -> bool {
    inode.opens == 0
        && inode.holds == 0
        && inode.residents == 0
        && inode.change.is_none()
        && inode.pages.is_empty()
        && inode.known_to_store
        && !inode.is_orphan()
}

/// Whether a directory's listing can be had from the store again at any time.
fn is_idle(inode: &Inode) -> bool {
    inode.residents == 0
        && inode.holds == 0
        && inode.change.is_none()
        && inode.known_to_store
        && !inode.is_orphan()
        && inode.directory().is_some()
}
