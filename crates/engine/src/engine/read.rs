//! Reading: which parts come from memory, and which from the store.

use alloc::vec::Vec;

use mobifs_base::{ContentSearch, ObjectId, PAGE_BYTES_U64, Page, PageIndex, Whence, search_layer};

use super::Engine;
use crate::error::Stop;
use crate::request::Moment;

/// One piece of a [`ReadPlan`]; pieces follow each other without gaps.
#[derive(Clone, Debug)]
pub enum ReadSegment {
    /// From a page in memory.
    Page {
        /// The page.
        page: Page,
        /// First byte of it.
        offset: usize,
        /// Number of bytes.
        length: usize,
    },
    /// Zeros.
    Zero {
        /// Number of bytes.
        length: usize,
    },
    /// From the store.
    Store {
        /// Offset in the file.
        offset: u64,
        /// Number of bytes.
        length: usize,
    },
}

/// Where the bytes of a read come from, at the moment the plan was made. Pages are
/// shared, so the plan can be carried out without the engine.
#[derive(Clone, Debug)]
pub struct ReadPlan {
    /// Bytes to be read: fewer than asked for only at the end of the file.
    pub length: usize,
    /// The pieces, in order.
    pub segments: Vec<ReadSegment>,
}

impl Engine {
    /// Plans a read.
    ///
    /// # Errors
    /// `IsDirectory`, `InvalidArgument` for other kinds, `CrossDevice`, `Stale`.
    pub fn read_plan(&self, id: ObjectId, offset: u64, length: usize) -> Result<ReadPlan, Stop> {
        self.namespace.check_file(id)?;
        let inode = self.namespace.inode(id)?;
        let available = inode.attributes.size.saturating_sub(offset);
        let length = usize::try_from(available).map_or(length, |available| available.min(length));
        let mut plan = ReadPlan {
            length,
            segments: Vec::new(),
        };
        let clean = inode.pages.is_empty()
            && inode.change.is_none()
            && inode.closed_zeroed.is_empty()
            && inode.known_to_store;
        if length > 0 && clean {
            plan.segments.push(ReadSegment::Store { offset, length });
            return Ok(plan);
        }
        let end = offset + length as u64;
        let mut position = offset;
        while position < end {
            let index = PageIndex::of_offset(position);
            let piece = (end.min(index.offset() + PAGE_BYTES_U64) - position) as usize;
            let segment = if let Some(slot) = inode.pages.get(&index) {
                let within = (position - index.offset()) as usize;
                ReadSegment::Page {
                    page: slot.page.clone(),
                    offset: within,
                    length: piece,
                }
            } else if inode.is_zero_below(index.offset()) {
                ReadSegment::Zero { length: piece }
            } else {
                ReadSegment::Store {
                    offset: position,
                    length: piece,
                }
            };
            plan.push(segment);
            position += piece as u64;
        }
        Ok(plan)
    }

    /// A file, symlink or directory was read: its access time moves on, as `relatime` has
    /// it (at most once a day, or after a change). By itself this makes nothing dirty: it
    /// is committed with the next change of the object.
    pub fn accessed(&mut self, id: ObjectId, moment: Moment) {
        const DAY_SECONDS: i64 = 24 * 60 * 60;
        if self.limits.read_only {
            return;
        }
        let moves = |inode: &crate::inode::Inode| {
            let times = &inode.attributes;
            times.atime <= times.mtime
                || times.atime <= times.ctime
                || moment.wall.seconds - times.atime.seconds >= DAY_SECONDS
        };
        if self.namespace.get(&id).is_some_and(moves)
            && let Some(inode) = self.namespace.get_mut(&id)
        {
            inode.attributes.atime = moment.wall;
        }
    }

    /// Looks for the first data or hole from `offset` on, as far as memory can answer.
    ///
    /// # Errors
    /// As [`Engine::read_plan`].
    pub fn search_content(
        &self,
        id: ObjectId,
        offset: u64,
        whence: Whence,
    ) -> Result<ContentSearch, Stop> {
        self.namespace.check_file(id)?;
        Ok(search_layer(self.namespace.inode(id)?, offset, whence))
    }
}

impl ReadPlan {
    /// Adds a piece, merging it with the one before where that is possible.
    fn push(&mut self, segment: ReadSegment) {
        match (self.segments.last_mut(), &segment) {
            (Some(ReadSegment::Zero { length }), ReadSegment::Zero { length: more })
            | (Some(ReadSegment::Store { length, .. }), ReadSegment::Store { length: more, .. }) => {
                *length += more;
            }
            _ => self.segments.push(segment),
        }
    }
}
