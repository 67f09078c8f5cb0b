//! The invariants of the FTL. Tests ask for them after every operation.

use hashbrown::HashMap;
use thiserror::Error;

use super::geometry::{Owner, Pool};
use super::{BlockState, Ftl, Stream};

/// An invariant that does not hold: a fault of the model.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct InvariantError(pub String);

fn hold(ok: bool, message: impl FnOnce() -> String) -> Result<(), InvariantError> {
    if ok {
        Ok(())
    } else {
        Err(InvariantError(message()))
    }
}

impl Ftl {
    /// Checks, in time proportional to the device:
    ///
    /// * each mapped page, mapping page and page of the log is in one programmed slot of
    ///   a block that is not erased, and slots have several only of pages that share them;
    /// * the number beside the content of a slot is its owner's, or an override says
    ///   whose it is as well;
    /// * each block's count of current owners is right;
    /// * free lists, frontiers and states agree; the mapping cache keeps its size.
    pub(crate) fn check(&self) -> Result<(), InvariantError> {
        self.check_places()?;
        self.check_lists()
    }

    /// The part of it that holds as soon as the mapping is rebuilt.
    pub(super) fn check_places(&self) -> Result<(), InvariantError> {
        let mut valid = vec![0_u32; self.cells.blocks.len()];
        let mut taken = HashMap::<u32, u32, foldhash::fast::FixedState>::default();
        for owner in 0..self.geometry.owners() {
            let kind = self.geometry.owner(owner);
            let Some(slot) = self.place_of(kind) else {
                continue;
            };
            self.check_place(owner, kind, slot)?;
            let other = taken.insert(slot, owner);
            let is_data = matches!(kind, Owner::Data(_));
            let other = other.filter(|&other| {
                !(is_data && matches!(self.geometry.owner(other), Owner::Data(_)))
            });
            hold(other.is_none(), || {
                format!("slot {slot} has {other:?} and {owner}")
            })?;
            valid[self.geometry.block_of(slot) as usize] += 1;
        }
        for (number, block) in self.cells.blocks.iter().enumerate() {
            hold(block.valid == valid[number], || {
                format!(
                    "block {number} counts {} current owners and has {}",
                    block.valid, valid[number]
                )
            })?;
        }
        for (slot, lpn) in &self.log.overrides {
            hold(self.map.slot(*lpn) == Some(*slot), || {
                format!("an override says that slot {slot} has page {lpn}; the map disagrees")
            })?;
        }
        Ok(())
    }

    fn check_place(&self, owner: u32, kind: Owner, slot: u32) -> Result<(), InvariantError> {
        let block = &self.cells.blocks[self.geometry.block_of(slot) as usize];
        let offset = slot % self.geometry.slots_per_block;
        hold(
            block.state != BlockState::Free && offset < block.next_slot,
            || format!("{kind:?} is in slot {slot}, which is not programmed"),
        )?;
        let beside = self.cells.owner(slot);
        let is_its = match kind {
            Owner::Data(lpn) => {
                (beside == Some(owner)) != self.log.overrides.contains(&(slot, lpn))
            }
            Owner::Map(_) | Owner::Log(_) => beside == Some(owner),
        };
        hold(is_its, || {
            format!(
                "{kind:?} is in slot {slot}, which belongs to {beside:?} and no override agrees"
            )
        })
    }

    fn check_lists(&self) -> Result<(), InvariantError> {
        let listed: u32 = self.free_blocks(Pool::Main) + self.free_blocks(Pool::Slc);
        let free = self.cells.blocks.iter();
        let free = free.filter(|block| block.state == BlockState::Free).count() as u32;
        hold(listed == free, || {
            format!("{free} blocks are erased, {listed} are listed")
        })?;
        let in_list = self.free.iter().flatten().flatten();
        for &(erases, number) in in_list {
            let block = &self.cells.blocks[number as usize];
            hold(
                block.state == BlockState::Free && block.erases == erases && block.next_slot == 0,
                || format!("block {number} is listed as erased and is not"),
            )?;
        }
        let used = self.cells.blocks.iter();
        let used = used.filter(|b| b.state != BlockState::Free && b.stream == Stream::Map);
        let (used, counted) = (used.count(), self.map_blocks_used);
        hold(used as u32 == counted, || {
            format!("{used} blocks have mapping pages, {counted} are counted")
        })?;
        let frontiers: Vec<u32> = self.frontiers.iter().flatten().flatten().copied().collect();
        let open = self.cells.blocks.iter();
        let open = open.filter(|block| block.state == BlockState::Open).count();
        hold(open == frontiers.len(), || {
            format!("{open} blocks are open, {} are frontiers", frontiers.len())
        })?;
        let all_open = frontiers
            .iter()
            .all(|&number| self.cells.blocks[number as usize].state == BlockState::Open);
        hold(all_open, || "a frontier is not open".to_owned())?;
        let cached = self.map.cached_pages().count() as u32;
        hold(
            cached == self.map.cached() && cached <= self.map.capacity,
            || format!("{cached} mapping pages are cached"),
        )?;
        let changed = (0..self.geometry.map_pages).filter(|&page| self.map.is_changed(page));
        let uncached = changed.filter(|&page| !self.map.is_cached(page)).count();
        hold(uncached == 0, || {
            format!("{uncached} changed mapping pages are not in the cache")
        })
    }
}
