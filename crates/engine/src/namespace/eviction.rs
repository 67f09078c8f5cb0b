//! What leaves memory: unused objects, and deleted ones.
//!
//! Objects stay in memory when nothing uses them, because they may be used again, and as long
//! as the kernel has them in its own caches, which can be for ever: a walk over a
//! million files leaves a million references. So above a limit unused objects leave memory,
//! and the kernel is asked to forget what only its caches refer to. All is done in steps that
//! look at a bounded number of objects, in the order in which they came into memory.

use alloc::vec::Vec;

use mobifs_base::{Name, ObjectId};

use super::Namespace;
use crate::accounting::Accounting;
use crate::directory::Directory;
use crate::inode::Inode;

/// What an object takes in memory without its content, roughly: here, in the arena, and what
/// the store knows of it.
pub(crate) const OBJECT_MEMORY_BYTES: u64 = 2048;
/// Entries of listings that may be in memory for each object that may. An entry takes about a
/// quarter of the memory of an object.
const ENTRIES_PER_OBJECT: usize = 4;
/// How many entries are worth looking an object up again.
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
    /// The object is a directory.
    pub is_directory: bool,
}

/// References of the kernel and of programs that keep an object in memory.
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
    /// Objects that were looked at: 0 if no further step is needed.
    pub looked_at: usize,
    /// Objects and listings that left memory.
    pub evicted: usize,
    /// Objects that would leave memory if the kernel forgot them.
    pub kernel_held: Vec<KernelHeld>,
}

/// What the kernel and programs refer to.
impl Namespace {
    /// Objects that are looked up or open, and how often.
    pub(crate) fn references(&self) -> impl Iterator<Item = (ObjectId, References)> {
        let of = |inode: &Inode| References {
            lookups: inode.usage.lookups(),
            opens: inode.usage.opens(),
        };
        let counted = self.iter().map(move |(&id, inode)| (id, of(inode)));
        counted.filter(|(_, references)| *references != References::default())
    }

    /// The kernel dropped `count` references to an object.
    pub(crate) fn forget(&mut self, id: ObjectId, count: u64) {
        if let Some(inode) = self.get_mut(&id) {
            inode.usage.forget(count);
        }
    }

    /// An open object is closed.
    pub(crate) fn release(&mut self, id: ObjectId) {
        if let Some(inode) = self.get_mut(&id) {
            inode.usage.close();
        }
    }
}

/// What leaves memory at once.
impl Namespace {
    /// Frees an object without links as soon as it is not in use: its pages at once, itself when no
    /// transaction mentions it any more, and then the removed directories above it, any number of
    /// them, unless something else needs them.
    pub(crate) fn dispose_if_unused(&mut self, id: ObjectId, accounting: &mut Accounting) {
        let mut next = Some(id);
        while let Some(id) = next {
            next = if self.frees_pages_of(id, accounting) {
                self.take_out(id)
            } else {
                None
            };
        }
    }

    /// Frees the pages of an object without links that is not in use; whether the object itself
    /// can leave memory, too.
    fn frees_pages_of(&mut self, id: ObjectId, accounting: &mut Accounting) -> bool {
        let Some(inode) = self.get_mut(&id) else {
            return false;
        };
        if !inode.is_orphan() || inode.usage.is_referenced() || id == ObjectId::ROOT {
            return false;
        }
        accounting.drop_orphan_pages(inode.versions.drop_orphans());
        !inode.usage.is_needed()
    }

    /// Takes an object out of memory, and the removed directories above it that were in memory only
    /// for it.
    fn evict(&mut self, id: ObjectId, accounting: &mut Accounting) {
        if let Some(home) = self.take_out(id) {
            self.dispose_if_unused(home, accounting);
        }
    }

    /// Takes an object out of memory; the directory that it had its place in, if nothing else in
    /// memory has.
    fn take_out(&mut self, id: ObjectId) -> Option<ObjectId> {
        debug_assert!(id != ObjectId::ROOT, "the root stays");
        let inode = self.remove(&id)?;
        debug_assert!(
            !inode.usage.is_needed() && inode.usage.opens() == 0,
            "{id} is in use"
        );
        self.several_names.remove(&id);
        self.eviction_log.evicted(id);
        self.fetched.remove(&id);
        if inode.pinned {
            self.unpinned.push(id);
        }
        if inode.is_directory() || inode.is_orphan() {
            // A file stays known to the store as long as its directory's listing,
            // which names it, is in memory.
            self.forgotten.insert(id);
        }
        let home = self.get_mut(&inode.home)?;
        home.usage.remove_child();
        (home.usage.children() == 0).then_some(inode.home)
    }

    /// Directories whose listing, and deleted objects that, left memory since the last call. Until
    /// [`Namespace::forgotten`], no answer that names objects is accepted.
    pub(crate) fn take_forgotten(&mut self) -> Vec<ObjectId> {
        self.is_forgetting = !self.forgotten.is_empty();
        if self.is_forgetting {
            self.fetched.clear();
        }
        core::mem::take(&mut self.forgotten).into_iter().collect()
    }

    /// Whether [`Namespace::take_forgotten`] would return any.
    pub(crate) fn has_forgotten(&self) -> bool {
        !self.forgotten.is_empty()
    }

    /// The store has forgotten what [`Namespace::take_forgotten`] named.
    pub(crate) fn forgotten(&mut self) {
        self.is_forgetting = false;
        self.eviction_log.all_evicted();
    }

    /// Pinned objects that went out of use since the last call: to be unpinned.
    pub(crate) fn take_unpinned(&mut self) -> Vec<ObjectId> {
        core::mem::take(&mut self.unpinned)
    }

    /// Whether [`Namespace::take_unpinned`] would return any.
    pub(crate) const fn has_unpinned(&self) -> bool {
        !self.unpinned.is_empty()
    }
}

/// What leaves memory where too much is in it.
impl Namespace {
    /// Whether more objects, or more entries of directories, than allowed are in memory.
    pub(crate) fn is_crowded(&self, limit: usize) -> bool {
        self.len() > limit || self.has_many_entries(limit)
    }

    const fn has_many_entries(&self, limit: usize) -> bool {
        self.listed_entries() > limit.saturating_mul(ENTRIES_PER_OBJECT)
    }

    /// One step towards the limit; see [`crate::Engine::trim`].
    pub(crate) fn trim(
        &mut self,
        limit: usize,
        objects_max: usize,
        accounting: &mut Accounting,
    ) -> Trimmed {
        let mut trimmed = Trimmed::default();
        if !self.is_crowded(limit) {
            return trimmed;
        }
        let target = limit - limit / 8;
        while trimmed.looked_at < objects_max.min(self.len()) {
            let excess = self.len().saturating_sub(target);
            let is_enough = excess <= trimmed.kernel_held.len();
            if is_enough && !self.has_many_entries(target) {
                break;
            }
            let Some(id) = self.next_to_evict() else {
                break;
            };
            trimmed.looked_at += 1;
            let Some(inode) = self.get(&id) else {
                continue;
            };
            if id != ObjectId::ROOT && is_unused(inode) {
                // Directories above become unused with it. One per round would take many rounds.
                let rest = objects_max - trimmed.looked_at;
                let evicted = self.evict_upwards(id, rest + 1, accounting, |_| true);
                trimmed.looked_at += evicted - 1;
                trimmed.evicted += evicted;
            } else if is_idle(inode) {
                trimmed.evicted += 1;
                self.unload_listing(id);
            }
            if let Some(inode) = self.get(&id)
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

    /// Whether an object is one of few that keep a large listing in memory. To free listings the
    /// kernel is asked only to forget these: otherwise it would forget all entries of a large
    /// directory in use again and again, without effect.
    fn keeps_many_entries(&self, inode: &Inode) -> bool {
        self.get(&inode.home).is_some_and(|home| {
            let entries = home.directory().map_or(0, Directory::len) as u64;
            entries
                >= home
                    .usage
                    .children()
                    .saturating_mul(ENTRIES_WORTH_AN_OBJECT)
        })
    }

    /// Evicts the listing of a directory without entries in memory.
    fn unload_listing(&mut self, id: ObjectId) {
        if self.unload(id) {
            self.forgotten.insert(id);
            self.eviction_log.evicted(id);
        }
    }

    /// If too much is in memory, an object that has lost its last user leaves it at once, and
    /// so do the directories above that are there only for it.
    pub(crate) fn evict_if_crowded(
        &mut self,
        id: ObjectId,
        limit: usize,
        accounting: &mut Accounting,
    ) {
        self.evict_upwards(id, usize::MAX, accounting, |this| this.is_crowded(limit));
    }

    /// Takes an unused object out of memory, and the directories above it that are unused then: at
    /// most so many, and only while the limit is exceeded. Returns how many were evicted.
    fn evict_upwards(
        &mut self,
        id: ObjectId,
        objects_max: usize,
        accounting: &mut Accounting,
        is_needed: impl Fn(&Self) -> bool,
    ) -> usize {
        let (mut at, mut evicted) = (id, 0);
        while at != ObjectId::ROOT
            && evicted < objects_max
            && is_needed(self)
            && let Some(inode) = self.get(&at)
            && is_unused(inode)
        {
            let home = inode.home;
            self.evict(at, accounting);
            (at, evicted) = (home, evicted + 1);
        }
        evicted
    }
}

/// Whether an object can be had from the store again at any time.
fn is_unused(inode: &Inode) -> bool {
    inode.usage.lookups() == 0 && is_only_looked_up(inode)
}

/// Whether only the kernel's caches, or programs through them, use an object.
fn is_kernel_held(inode: &Inode) -> bool {
    inode.usage.lookups() > 0 && is_only_looked_up(inode)
}

fn is_only_looked_up(inode: &Inode) -> bool {
    inode.usage.opens() == 0
        && !inode.usage.is_needed()
        && inode.versions.is_all_in_store()
        && !inode.is_orphan()
}

/// Whether a directory's listing can be had from the store again at any time.
fn is_idle(inode: &Inode) -> bool {
    !inode.usage.is_needed()
        && inode.versions.is_all_in_store()
        && !inode.is_orphan()
        && inode.directory().is_some()
}
