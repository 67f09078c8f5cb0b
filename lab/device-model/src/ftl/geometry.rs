//! How much flash a device has and where things lie in it.
//!
//! A *block* here is what is erased at once: the blocks with the same number in all
//! planes of a die. A *row* is the pages with the same number in them: what one
//! multi-plane program fills. A *slot* is one 4 KiB mapping unit of a flash page.
//! Slots are numbered through: block, then row, then plane, then slot of the page.

use crate::address::PAGE_BYTES;
use crate::config::{Config, ConfigError};

/// Entries of a mapping page (S4 §5.3.3).
pub(crate) const ENTRIES_PER_MAP_PAGE: u32 = 1024;

/// Which blocks a pool has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pool {
    /// Multi-bit cells, and what else is opened in them in SLC mode.
    Main,
    /// The SLC cache.
    Slc,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    pub(crate) channels: u32,
    pub(crate) dies: u32,
    /// Slots of a flash page.
    pub(crate) slots_per_page: u32,
    pub(crate) slots_per_row: u32,
    pub(crate) slots_per_block: u32,
    /// Slots that a block in SLC mode uses.
    pub(crate) slots_per_slc_block: u32,
    pub(crate) logical_pages: u32,
    pub(crate) map_pages: u32,
    /// Numbers for pages of the log: twice as many as live at a time, because a
    /// compaction writes the new ones before it drops the old.
    pub(crate) log_numbers: u32,
    /// Whether mapping pages and the log use SLC mode.
    pub(crate) map_in_slc_mode: bool,
    /// The first blocks are the SLC cache's.
    pub(crate) slc_blocks: u32,
    pub(crate) blocks: u32,
    /// Blocks that may take garbage collection's output at a time.
    pub(crate) gc_frontiers: u32,
    /// Blocks that may take mapping pages at a time.
    pub(crate) map_frontiers: u32,
    /// Blocks that mapping pages and the log use before they are collected, three times what they
    /// fill: then a victim among them is two thirds obsolete. Data does not use them, because
    /// writing mapping pages must never wait for data to move.
    pub(crate) map_blocks: u32,
    /// Blocks beyond data, mapping and frontiers: what over-provisioning is.
    pub(crate) spare_blocks: u32,
}

impl Geometry {
    pub(crate) fn new(config: &Config, capacity_bytes: u64) -> Result<Self, ConfigError> {
        let logical_pages = logical_pages(capacity_bytes)?;
        let shape = &config.geometry;
        let channels = shape.channels.value;
        let dies = channels * shape.dies_per_channel.value;
        let slots_per_page = shape.page_bytes.value / PAGE_BYTES as u32;
        let slots_per_row = slots_per_page * shape.planes_per_die.value;
        let slots_per_block = slots_per_row * shape.pages_per_block.value;
        let slc_rows = (shape.pages_per_block.value / shape.bits_per_cell.value).max(1);
        let slots_per_slc_block = slots_per_row * slc_rows;
        let map_in_slc_mode = config.mapping.in_slc_mode.value;
        let map_pages = logical_pages.div_ceil(ENTRIES_PER_MAP_PAGE);
        let log_pages = config.remap.log_pages.value;
        let log_numbers = log_pages * 2;
        let log_entries = log_pages / 2 * config.remap.log_entries_per_page.value;
        if map_pages > log_entries {
            return Err(ConfigError::CapacityAbove {
                given_bytes: capacity_bytes,
                most_bytes: u64::from(log_entries)
                    * u64::from(ENTRIES_PER_MAP_PAGE)
                    * PAGE_BYTES as u64,
            });
        }

        let data_blocks = logical_pages.div_ceil(slots_per_block);
        let spare_share = shape.over_provisioning_percent.value / 100.0;
        // A victim must free a flash page at least, or padding would eat the gain.
        let padding_share = 2.0 * f64::from(slots_per_page) / f64::from(slots_per_block);
        let spare_blocks = (f64::from(data_blocks) * spare_share.max(padding_share)).ceil() as u32;
        let spare_blocks = spare_blocks.max(2);
        let slots_per_map_block = if map_in_slc_mode {
            slots_per_slc_block
        } else {
            slots_per_block
        };
        let map_blocks = (map_pages + log_numbers).div_ceil(slots_per_map_block) * 3 + 1;
        let gc_frontiers = dies;
        let map_frontiers = channels;
        let reserve = Self::reserve_of(gc_frontiers, map_frontiers);
        let main_blocks =
            data_blocks + spare_blocks + map_blocks + dies + gc_frontiers + map_frontiers + reserve;
        let slc_bytes = config.slc.as_ref().map_or(0, |slc| slc.cache_bytes.value);
        let slc_block_bytes = u64::from(slots_per_slc_block) * PAGE_BYTES as u64;
        let slc_blocks = slc_bytes.div_ceil(slc_block_bytes) as u32;
        let slc_blocks = slc_blocks.next_multiple_of(dies);
        let blocks = slc_blocks + main_blocks.next_multiple_of(dies);
        if u64::from(blocks) * u64::from(slots_per_block) >= u64::from(u32::MAX) {
            let why = "its flash has more than 2³² pages of 4 KiB";
            return Err(ConfigError::Capacity(capacity_bytes, why));
        }
        Ok(Self {
            channels,
            dies,
            slots_per_page,
            slots_per_row,
            slots_per_block,
            slots_per_slc_block,
            logical_pages,
            map_pages,
            log_numbers,
            map_in_slc_mode,
            slc_blocks,
            blocks,
            gc_frontiers,
            map_frontiers,
            map_blocks,
            spare_blocks,
        })
    }

    const fn reserve_of(gc_frontiers: u32, map_frontiers: u32) -> u32 {
        gc_frontiers + map_frontiers + 3
    }

    /// Free blocks that host writes must leave: garbage collection needs them to go on.
    pub(crate) const fn reserve_blocks(&self) -> u32 {
        Self::reserve_of(self.gc_frontiers, self.map_frontiers)
    }

    pub(crate) const fn slots(&self) -> u32 {
        self.blocks * self.slots_per_block
    }

    pub(crate) const fn block_of(&self, slot: u32) -> u32 {
        slot / self.slots_per_block
    }

    /// Blocks are dealt to the dies in turn.
    pub(crate) const fn die_of(&self, block: u32) -> u32 {
        block % self.dies
    }

    pub(crate) const fn channel_of(&self, die: u32) -> u32 {
        die % self.channels
    }

    pub(crate) const fn pool_of(&self, block: u32) -> Pool {
        if block < self.slc_blocks {
            Pool::Slc
        } else {
            Pool::Main
        }
    }

    /// The mapping page that has a logical page's entry.
    pub(crate) const fn map_page_of(lpn: u32) -> u32 {
        lpn / ENTRIES_PER_MAP_PAGE
    }

    /// The number that stands beside a mapping page in the cells.
    pub(crate) const fn owner_of_map_page(&self, map_page: u32) -> u32 {
        self.logical_pages + map_page
    }

    /// The number that stands beside a page of the log in the cells.
    pub(crate) const fn owner_of_log_page(&self, number: u32) -> u32 {
        self.logical_pages + self.map_pages + number
    }

    pub(crate) const fn owners(&self) -> u32 {
        self.logical_pages + self.map_pages + self.log_numbers
    }

    pub(crate) fn owner(&self, owner: u32) -> Owner {
        if owner < self.logical_pages {
            Owner::Data(owner)
        } else if owner < self.logical_pages + self.map_pages {
            Owner::Map(owner - self.logical_pages)
        } else {
            Owner::Log(owner - self.logical_pages - self.map_pages)
        }
    }
}

/// The owner of a slot's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// A logical page.
    Data(u32),
    /// A mapping page.
    Map(u32),
    /// A page of the log.
    Log(u32),
}

fn logical_pages(capacity_bytes: u64) -> Result<u32, ConfigError> {
    let page = PAGE_BYTES as u64;
    let refuse = |why| Err(ConfigError::Capacity(capacity_bytes, why));
    if !capacity_bytes.is_multiple_of(page) {
        return refuse("it must be a multiple of 4,096");
    }
    match u32::try_from(capacity_bytes / page) {
        Ok(0) => refuse("it must be at least 4,096"),
        Ok(pages) if pages < 1 << 30 => Ok(pages),
        _ => refuse("it must be below 4 TiB"),
    }
}
