//! A dry run: what would move with the room that is free now, and what would be refused. Files stay as they are; what
//! a filesystem refuses is tried on files without a name, as a run does before it begins.

use std::path::Path;

use mobifs_fragmentation::{free_extents_of, shown};
use rustix::fs::{Access, AtFlags, CWD, Mode as FileMode, OFlags, accessat, openat};
use rustix::io::Errno;

use crate::error::DefragError;
use crate::ext4;
use crate::mover::Mover;
use crate::plan::{Reason, Step};
use crate::report::{Limit, Planned, PlannedFile, written_by_copying, written_by_remapping};
use crate::scan::Tree;
use crate::space::Space;
use crate::work::Work;

/// Files that are named.
const NAMED: usize = 20;

/// What a file would get.
#[derive(Clone, Copy, Debug, Default)]
struct Change {
    moved_bytes: u64,
    fewer: u64,
}

/// The free room of the filesystem; none where the kernel does not say it.
pub(crate) fn free_room(directory: &Path) -> Result<Option<Space>, DefragError> {
    let at = |error: std::io::Error| DefragError::at(directory, error);
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let opened = openat(CWD, directory, flags, FileMode::empty());
    let extents = free_extents_of(&opened.map_err(|errno| at(errno.into()))?).map_err(at)?;
    Ok(extents.map(|extents| {
        let mut free = Space::default();
        let ranges = extents.iter();
        ranges.for_each(|&(start, length)| free.add(start, length));
        free
    }))
}

impl Work<'_> {
    /// Says what would be done with the room that is free now.
    pub(crate) fn plan_only(&mut self, tree: &mut Tree) -> Result<(), DefragError> {
        self.check(tree)?;
        let free = free_room(&self.place.directory)?;
        let mut changes = vec![Change::default(); tree.files.len()];
        if let Some(free) = free.filter(|_| self.place.filesystem == "ext4") {
            self.plan_on_ext4(tree, free, &mut changes);
        } else {
            // The filesystem chooses the places itself: each group becomes one piece at best.
            let groups = self.planner(tree, Space::default()).groups(u64::MAX);
            for (number, groups) in groups {
                for (_, bytes, pieces) in groups {
                    self.count(bytes, Reason::Join);
                    if let Some(change) = changes.get_mut(number) {
                        change.moved_bytes += bytes;
                        change.fewer += pieces as u64 - 1;
                    }
                }
            }
        }
        self.say(tree, &changes);
        Ok(())
    }

    /// What a run would refuse.
    fn check(&self, tree: &Tree) -> Result<(), DefragError> {
        let place = self.place;
        let wanted = self.wanted_bytes(tree);
        if wanted == 0 && self.options.free_run_bytes.is_none() {
            return Ok(());
        }
        // Files without a name would be made there.
        if place.filesystem != "f2fs" {
            let access = accessat(CWD, &place.directory, Access::WRITE_OK, AtFlags::EACCESS);
            if let Err(errno @ (Errno::ACCESS | Errno::PERM)) = access {
                return Err(DefragError::at(&place.directory, errno));
            }
        }
        if place.is_read_only {
            return Ok(());
        }
        if place.filesystem == "ext4" {
            self.room(wanted)?;
            ext4::check(place)
        } else {
            Mover::new(place, self.looks).map(|_| ())
        }
    }

    fn plan_on_ext4(&mut self, tree: &mut Tree, free: Space, changes: &mut [Change]) {
        let pieces = tree.files.iter().map(|file| file.layout.pieces.len());
        let pieces: Vec<usize> = pieces.collect();
        let mut planner = self.planner(tree, free);
        while let Some(step) = planner.next_step() {
            if let Step::Move(step) = step {
                self.count(step.bytes(), step.reason);
                if let Some(change) = changes.get_mut(step.file) {
                    change.moved_bytes += step.bytes();
                }
            }
        }
        let after = planner.files().iter().map(|layout| layout.pieces.len());
        for ((change, before), after) in changes.iter_mut().zip(pieces).zip(after) {
            change.fewer = before.saturating_sub(after) as u64;
        }
        if let Some(run) = &mut self.report.free_run {
            run.ends_with(planner.free_at_the_end().largest());
        }
    }

    fn say(&mut self, tree: &Tree, changes: &[Change]) {
        let mut sums = tree.sums;
        let mut named = Vec::new();
        for (file, change) in tree.files.iter().zip(changes) {
            let after = file.extents.saturating_sub(change.fewer).max(file.least);
            sums.change(file.extents, after, file.least);
            if change.moved_bytes > 0 {
                named.push((file.extents.saturating_sub(after), change.moved_bytes, file));
            }
        }
        named.sort_by(|a, b| {
            b.0.cmp(&a.0)
                .then(b.1.cmp(&a.1))
                .then(a.2.path.cmp(&b.2.path))
        });
        let moves = self.report.moves;
        let moved = self.report.joined_bytes + self.report.room_bytes;
        let can_remap = self.report.is_served && self.place.filesystem == "ext4";
        let first = named.iter().take(NAMED).map(|&(fewer, moved_bytes, file)| {
            use std::os::unix::ffi::OsStrExt as _;
            PlannedFile {
                path: shown(tree.path(file).as_os_str().as_bytes()),
                moved_bytes,
                extents: file.extents,
                extents_after: file.extents - fewer,
                saved_ms: fewer as f64 * self.options.model.piece_ms,
            }
        });
        let copied_bytes = written_by_copying(moved, moves);
        let remapped_bytes = can_remap.then(|| written_by_remapping(moved, moves));
        let most = self.options.flash_writes_max_bytes;
        self.report.planned = Some(Planned {
            files: named.len() as u64,
            first: first.collect(),
            copied_bytes,
            remapped_bytes,
            limit: most.and_then(|most| Limit::of(most, copied_bytes, remapped_bytes)),
        });
        self.report.after = sums.state();
    }
}
