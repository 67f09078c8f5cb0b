//! What planning and moving share: the limits, the planner, and the room that is taken.

use crate::device::Device;
use crate::error::DefragError;
use crate::ext4;
use crate::options::Options;
use crate::place::Place;
use crate::plan::{Limits, Planner, Reason};
use crate::report::Report;
use crate::scan::{Looks, Tree};
use crate::space::Space;

/// Making room may move so many times what then fits in. By remapping the content costs next to
/// nothing, but each time that room is made the filesystem is synchronised.
const ROOM_FACTOR: u64 = 4;

/// The part of the free room that is left to other programs.
const LEFT_PART: u64 = 4;
/// Moving takes metadata, so that some room is always left: this part of it, and so much at most.
const METADATA_PART: u64 = 16;
const METADATA_BYTES_MAX: u64 = 64 << 20;
/// Room that is always enough to work with, unless four times what is to move is more.
const POOL_BYTES_ENOUGH: u64 = 64 << 20;
pub(crate) struct Work<'a> {
    pub(crate) options: &'a Options,
    pub(crate) place: &'a Place,
    pub(crate) looks: Looks<'a>,
    pub(crate) device: Option<&'a Device>,
    pub(crate) report: &'a mut Report,
}

impl Work<'_> {
    pub(crate) fn limits(&self) -> Limits {
        Limits {
            piece_bytes_max: if self.options.takes_all {
                u64::MAX
            } else {
                self.options.model.small_piece_bytes()
            },
            room_factor: ROOM_FACTOR,
        }
    }

    /// What all rows have that are to be joined.
    pub(crate) fn wanted_bytes(&self, tree: &Tree) -> u64 {
        let wanted = tree.files.iter().filter(|file| file.layout.is_wanted);
        let layouts = wanted.map(|file| file.layout.clone()).collect();
        Planner::new(layouts, Space::default(), self.limits()).bytes_of_groups()
    }

    /// The planner has the layouts from then on, the tree no more.
    pub(crate) fn planner(&self, tree: &mut Tree, free: Space) -> Planner {
        let layouts = tree.files.iter_mut();
        let layouts = layouts
            .map(|file| std::mem::take(&mut file.layout))
            .collect();
        let mut planner = Planner::new(layouts, free, self.limits());
        if let Some(length) = self.options.free_run_bytes {
            planner.make_run(length.next_multiple_of(self.place.block_bytes));
        }
        planner
    }

    pub(crate) fn count(&mut self, bytes: u64, reason: Reason) {
        self.report.moves += 1;
        match reason {
            Reason::Join => self.report.joined_bytes += bytes,
            Reason::MakeRoom => self.report.room_bytes += bytes,
        }
    }

    /// How much free room is taken to work with, and how much is left to others.
    pub(crate) fn room(&self, wanted: u64) -> Result<(u64, u64), DefragError> {
        let (free_bytes, block) = (self.place.free_bytes, self.place.block_bytes);
        let path = || self.place.mountpoint.clone();
        let least = ext4::BLOCKS_MIN * block;
        let metadata = (free_bytes / METADATA_PART).min(METADATA_BYTES_MAX);
        let leave = self.options.leave_bytes.unwrap_or(free_bytes / LEFT_PART);
        let leave = leave.max(metadata);
        if free_bytes.saturating_sub(metadata) < least {
            let path = path();
            return Err(DefragError::NoRoom { path, free_bytes });
        }
        let mut room = free_bytes.saturating_sub(leave);
        if room < least {
            return Err(DefragError::LeavesTooMuch {
                path: path(),
                free_bytes,
                leave_bytes: leave,
            });
        }
        if self.options.free_run_bytes.is_none() {
            let enough = wanted.saturating_mul(ROOM_FACTOR).max(POOL_BYTES_ENOUGH);
            room = room.min(enough);
        }
        Ok((room - room % block, leave))
    }
}
