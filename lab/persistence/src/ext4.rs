//! What must be known of an ext4 to read its journal: where that lies, and what each block of the filesystem is.

use std::cell::RefCell;

use crate::bytes::{ReadAt, be32, le16, le32, raw_crc32c};
use crate::error::PersistError;
use crate::jbd2::{self, Log, Superblock};
use crate::kind::{Kind, kind_of_content};

const SUPERBLOCK_AT: u64 = 1024;
const SUPERBLOCK_BYTES: usize = 1024;
const MAGIC: u16 = 0xef53;
const LUKS: &[u8] = b"LUKS\xba\xbe";

const COMPAT_HAS_JOURNAL: u32 = 4;
const INCOMPAT_JOURNAL_DEV: u32 = 8;
const INCOMPAT_META_BG: u32 = 0x10;
const INCOMPAT_64BIT: u32 = 0x80;
/// What ext4 has up to Linux 6.18: filetype, recover, meta_bg, extents, 64bit, mmp, flex_bg, ea_inode, dirdata,
/// csum_seed, largedir, inline_data, encrypt, casefold.
const INCOMPAT_KNOWN: u32 = 0x3_f7d6;
const RO_COMPAT_SPARSE_SUPER: u32 = 1;
const RO_COMPAT_METADATA_CSUM: u32 = 0x400;
const CHECKSUM_AT: usize = 0x3fc;
const COMPAT_SPARSE_SUPER2: u32 = 0x200;

const INODE_IS_ENCRYPTED: u32 = 0x800;
const INODE_HAS_EXTENTS: u32 = 0x8_0000;
const EXTENT_MAGIC: u16 = 0xf30a;
const EXTENT_DEPTH_MAX: u16 = 5;
const BLOCK_MAP_AT: usize = 0x28;
const BLOCK_MAP_BYTES: usize = 60;
/// More groups than any image that is looked at has.
const GROUPS_MAX: u64 = 1 << 20;
/// A tree of extents has fewer nodes, unless it is forged and has one of them many times.
const NODES_MAX: u32 = 1 << 16;
/// A journal is at most this many blocks here; forged ones cost no more memory.
const JOURNAL_BLOCKS_MAX: u64 = 1 << 24;

/// Where the tables of a group are.
#[derive(Clone, Copy, Debug)]
struct Group {
    block_bitmap: u64,
    inode_bitmap: u64,
    inode_table: u64,
}

/// A run of blocks: of the journal, and where they are in the filesystem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) journal_block: u32,
    pub(crate) place: u64,
    pub(crate) blocks: u32,
}

/// The layout of a filesystem.
#[derive(Debug)]
pub struct Layout {
    block_bytes: u32,
    blocks: u64,
    first_data_block: u64,
    blocks_per_group: u64,
    table_blocks: u64,
    descriptor_blocks: u64,
    reserved_descriptor_blocks: u64,
    descriptors_per_block: u64,
    /// From this block of descriptors on each is in the groups that it describes (`meta_bg`).
    first_meta_block: Option<u64>,
    is_sparse: bool,
    sparse_2: Option<[u32; 2]>,
    groups: Vec<Group>,
    journal: Vec<Run>,
    journal_blocks: u64,
    /// Nodes of the journal's extents that may still be read.
    nodes_left: u32,
}

impl Layout {
    /// Reads it.
    ///
    /// # Errors
    /// It is no ext3 or ext4 with an internal journal, or damaged.
    pub fn read(image: &(impl ReadAt + ?Sized)) -> Result<Self, PersistError> {
        let mut start = [0; 6];
        if image.read_at(&mut start, 0).is_ok() && start == *LUKS {
            return Err(PersistError::Encrypted("the device (LUKS)"));
        }
        let mut superblock = [0; SUPERBLOCK_BYTES];
        let read = image.read_at(&mut superblock, SUPERBLOCK_AT);
        if read.is_err() || le16(&superblock, 0x38) != MAGIC {
            return Err(PersistError::NotAJournal);
        }
        let mut layout = Self::of_superblock(&superblock)?;
        layout.read_groups(image, &superblock)?;
        layout.read_journal(image, &superblock)?;
        Ok(layout)
    }

    fn of_superblock(superblock: &[u8]) -> Result<Self, PersistError> {
        let (compat, incompat, ro_compat) = (
            le32(superblock, 0x5c),
            le32(superblock, 0x60),
            le32(superblock, 0x64),
        );
        let sum = raw_crc32c(!0, &superblock[..CHECKSUM_AT]);
        if ro_compat & RO_COMPAT_METADATA_CSUM != 0 && sum != le32(superblock, CHECKSUM_AT) {
            let what = "superblock of the filesystem: its checksum is wrong";
            return Err(PersistError::Damaged(what.to_owned()));
        }
        if incompat & INCOMPAT_JOURNAL_DEV != 0 {
            return Err(PersistError::JournalDevice);
        }
        if incompat & !INCOMPAT_KNOWN != 0 {
            return Err(PersistError::NewerFilesystem(incompat & !INCOMPAT_KNOWN));
        }
        if compat & COMPAT_HAS_JOURNAL == 0 {
            return Err(PersistError::NoJournal);
        }
        if le32(superblock, 0xe0) == 0 {
            let uuid = superblock[0xd0..0xe0].iter();
            let uuid: String = uuid.map(|byte| format!("{byte:02x}")).collect();
            return Err(PersistError::External(uuid));
        }
        let log = le32(superblock, 0x18);
        let is_64bit = incompat & INCOMPAT_64BIT != 0;
        let high = if is_64bit { le32(superblock, 0x150) } else { 0 };
        let block_bytes = if log <= 6 { 1024 << log } else { 0 };
        let inode_bytes = u64::from(le16(superblock, 0x58)).max(128);
        let inodes_per_group = u64::from(le32(superblock, 0x28));
        let layout = Self {
            block_bytes,
            blocks: u64::from(high) << 32 | u64::from(le32(superblock, 0x04)),
            first_data_block: u64::from(le32(superblock, 0x14)),
            blocks_per_group: u64::from(le32(superblock, 0x20)),
            table_blocks: (inodes_per_group * inode_bytes).div_ceil(u64::from(block_bytes.max(1))),
            descriptor_blocks: 0,
            reserved_descriptor_blocks: u64::from(le16(superblock, 0xce)),
            descriptors_per_block: 0,
            first_meta_block: (incompat & INCOMPAT_META_BG != 0)
                .then(|| u64::from(le32(superblock, 0x104))),
            is_sparse: ro_compat & RO_COMPAT_SPARSE_SUPER != 0,
            sparse_2: (compat & COMPAT_SPARSE_SUPER2 != 0)
                .then(|| [le32(superblock, 0x24c), le32(superblock, 0x250)]),
            groups: Vec::new(),
            journal: Vec::new(),
            journal_blocks: 0,
            nodes_left: NODES_MAX,
        };
        let is_consistent = block_bytes != 0
            && layout.blocks_per_group > 0
            && inodes_per_group > 0
            && layout.blocks > layout.first_data_block
            && layout.group_count() <= GROUPS_MAX;
        if !is_consistent {
            let what = "superblock of the filesystem: its sizes make no sense";
            return Err(PersistError::Damaged(what.to_owned()));
        }
        Ok(layout)
    }

    /// Bytes of a block.
    #[must_use]
    pub const fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    const fn group_count(&self) -> u64 {
        (self.blocks - self.first_data_block).div_ceil(self.blocks_per_group)
    }

    fn read_block(
        &self,
        image: &(impl ReadAt + ?Sized),
        block: u64,
    ) -> Result<Vec<u8>, PersistError> {
        let mut content = vec![0; self.block_bytes as usize];
        let offset = block.checked_mul(u64::from(self.block_bytes));
        let read = offset.map(|offset| image.read_at(&mut content, offset));
        match read {
            Some(Ok(())) if block < self.blocks => Ok(content),
            _ => Err(PersistError::Damaged(format!(
                "block {block} is outside of the filesystem, or cannot be read"
            ))),
        }
    }

    fn read_groups(
        &mut self,
        image: &(impl ReadAt + ?Sized),
        superblock: &[u8],
    ) -> Result<(), PersistError> {
        let is_64bit = le32(superblock, 0x60) & INCOMPAT_64BIT != 0;
        let size = if is_64bit {
            u64::from(le16(superblock, 0xfe)).max(32)
        } else {
            32
        };
        let per_block = u64::from(self.block_bytes) / size;
        if per_block == 0 {
            let what = "superblock of the filesystem: group descriptors are larger than a block";
            return Err(PersistError::Damaged(what.to_owned()));
        }
        self.descriptors_per_block = per_block;
        self.descriptor_blocks = self.group_count().div_ceil(per_block);
        for index in 0..self.descriptor_blocks {
            let block = if self.first_meta_block.is_some_and(|first| index >= first) {
                self.own_descriptors(index * per_block)
            } else {
                self.superblock_of(0) + 1 + index
            };
            let content = self.read_block(image, block)?;
            let left = self.group_count() - self.groups.len() as u64;
            for descriptor in content.chunks_exact(size as usize).take(left as usize) {
                let number = |low: usize, high: usize| {
                    let high = if size >= 64 {
                        le32(descriptor, high)
                    } else {
                        0
                    };
                    u64::from(high) << 32 | u64::from(le32(descriptor, low))
                };
                self.groups.push(Group {
                    block_bitmap: number(0, 0x20),
                    inode_bitmap: number(4, 0x24),
                    inode_table: number(8, 0x28),
                });
            }
        }
        Ok(())
    }

    fn read_journal(
        &mut self,
        image: &(impl ReadAt + ?Sized),
        superblock: &[u8],
    ) -> Result<(), PersistError> {
        let number = u64::from(le32(superblock, 0xe0)) - 1;
        let per_group = u64::from(le32(superblock, 0x28));
        let inode_bytes = u64::from(le16(superblock, 0x58)).max(128);
        let damaged = |what: &str| PersistError::Damaged(format!("the journal's inode: {what}"));
        let group = usize::try_from(number / per_group).ok();
        let group = group.and_then(|group| self.groups.get(group));
        let table = group
            .ok_or_else(|| damaged("there is no such inode"))?
            .inode_table;
        let at = number % per_group * inode_bytes;
        let block = table.saturating_add(at / u64::from(self.block_bytes));
        let content = self.read_block(image, block)?;
        let start = (at % u64::from(self.block_bytes)) as usize;
        let Some(inode) = content.get(start..start + 128) else {
            return Err(damaged("it goes on after its block"));
        };
        let flags = le32(inode, 0x20);
        if flags & INODE_IS_ENCRYPTED != 0 {
            return Err(PersistError::Encrypted("the journal's inode"));
        }
        let size = u64::from(le32(inode, 0x6c)) << 32 | u64::from(le32(inode, 4));
        self.journal_blocks = size / u64::from(self.block_bytes);
        if !(2..=JOURNAL_BLOCKS_MAX).contains(&self.journal_blocks) {
            return Err(damaged("its size makes no sense"));
        }
        let map = &inode[BLOCK_MAP_AT..BLOCK_MAP_AT + BLOCK_MAP_BYTES];
        if flags & INODE_HAS_EXTENTS != 0 {
            self.read_extents(image, map, EXTENT_DEPTH_MAX + 1)?;
        } else {
            self.read_pointers(image, map)?;
        }
        self.journal.sort_unstable_by_key(|run| run.journal_block);
        let mapped: u64 = self.journal.iter().map(|run| u64::from(run.blocks)).sum();
        if mapped < self.journal_blocks {
            return Err(damaged("it has holes"));
        }
        Ok(())
    }

    fn read_extents(
        &mut self,
        image: &(impl ReadAt + ?Sized),
        node: &[u8],
        depth_max: u16,
    ) -> Result<(), PersistError> {
        const ENTRY_BYTES: usize = 12;
        let damaged =
            || PersistError::Damaged("the journal's inode: its extents make no sense".to_owned());
        let (entries, depth) = (usize::from(le16(node, 2)), le16(node, 6));
        let fits = (entries + 1) * ENTRY_BYTES <= node.len() && self.nodes_left > 0;
        self.nodes_left = self.nodes_left.saturating_sub(1);
        if le16(node, 0) != EXTENT_MAGIC || depth >= depth_max || !fits {
            return Err(damaged());
        }
        for entry in node[ENTRY_BYTES..].chunks_exact(ENTRY_BYTES).take(entries) {
            if depth > 0 {
                let child = u64::from(le16(entry, 8)) << 32 | u64::from(le32(entry, 4));
                let content = self.read_block(image, child)?;
                self.read_extents(image, &content, depth)?;
                continue;
            }
            let length = le16(entry, 4);
            let place = u64::from(le16(entry, 6)) << 32 | u64::from(le32(entry, 8));
            // Longer ones are not written yet, which a journal never has.
            if length == 0 || length > 0x8000 || place + u64::from(length) > self.blocks {
                return Err(damaged());
            }
            self.push(Run {
                journal_block: le32(entry, 0),
                place,
                blocks: u32::from(length),
            })?;
        }
        Ok(())
    }

    /// As many runs as a journal can have; a forged tree of extents has more.
    fn push(&mut self, run: Run) -> Result<(), PersistError> {
        if self.journal.len() as u64 >= self.journal_blocks {
            let what = "the journal's inode: it has more extents than blocks";
            return Err(PersistError::Damaged(what.to_owned()));
        }
        self.journal.push(run);
        Ok(())
    }

    /// The map of ext3: 12 blocks, then one, two and three levels of blocks of pointers.
    fn read_pointers(
        &mut self,
        image: &(impl ReadAt + ?Sized),
        map: &[u8],
    ) -> Result<(), PersistError> {
        const DIRECT: usize = 12;
        for (index, pointer) in map.chunks_exact(4).enumerate() {
            let levels = index.saturating_sub(DIRECT - 1);
            self.read_pointer(image, u64::from(le32(pointer, 0)), levels)?;
        }
        Ok(())
    }

    fn read_pointer(
        &mut self,
        image: &(impl ReadAt + ?Sized),
        place: u64,
        levels: usize,
    ) -> Result<(), PersistError> {
        let next = self.journal.len() as u64;
        if next >= self.journal_blocks {
            return Ok(());
        }
        if levels == 0 {
            if place == 0 || place >= self.blocks {
                let what = format!("the journal's inode: its block {next} is at {place}");
                return Err(PersistError::Damaged(what));
            }
            return self.push(Run {
                journal_block: next as u32,
                place,
                blocks: 1,
            });
        }
        let content = self.read_block(image, place)?;
        for pointer in content.chunks_exact(4) {
            self.read_pointer(image, u64::from(le32(pointer, 0)), levels - 1)?;
        }
        Ok(())
    }

    /// Where a block of the journal is in the filesystem.
    pub(crate) fn place_of(&self, journal_block: u32) -> Option<u64> {
        let after = self
            .journal
            .partition_point(|run| run.journal_block <= journal_block);
        let run = self.journal.get(after.checked_sub(1)?)?;
        let offset = journal_block - run.journal_block;
        (offset < run.blocks).then(|| run.place + u64::from(offset))
    }

    /// The runs of the journal.
    pub(crate) fn journal_runs(&self) -> &[Run] {
        &self.journal
    }

    fn group_start(&self, group: u64) -> u64 {
        self.first_data_block + group * self.blocks_per_group
    }

    /// Where the superblock of a group is that has one: in its first block, but in group 0 at its place on the
    /// device. With blocks of 1 KiB that is block 1, also where the group begins with block 0 (`bigalloc`).
    fn superblock_of(&self, group: u64) -> u64 {
        match group {
            0 => SUPERBLOCK_AT / u64::from(self.block_bytes),
            _ => self.group_start(group),
        }
    }

    /// Where a group with `meta_bg` has the block of descriptors that it belongs to, or a copy of it.
    fn own_descriptors(&self, group: u64) -> u64 {
        match self.has_superblock(group) {
            true => self.superblock_of(group) + 1,
            false => self.group_start(group),
        }
    }

    /// Whether a block of a group is for descriptors: after a superblock, or with `meta_bg` in the first, second
    /// and last of the groups that it describes.
    fn is_of_descriptors(&self, group: u64, place: u64) -> bool {
        let per_block = self.descriptors_per_block.max(1);
        let meta = self
            .first_meta_block
            .filter(|&first| group / per_block >= first);
        if meta.is_some() {
            let number = group % per_block;
            return (number <= 1 || number == per_block - 1)
                && place == self.own_descriptors(group);
        }
        let blocks = self.first_meta_block.unwrap_or(self.descriptor_blocks)
            + self.reserved_descriptor_blocks;
        let first = self.superblock_of(group) + 1;
        self.has_superblock(group) && (first..first.saturating_add(blocks)).contains(&place)
    }

    fn has_superblock(&self, group: u64) -> bool {
        let is_power = |base: u64| {
            let mut power = base;
            while power < group {
                power *= base;
            }
            power == group
        };
        match self.sparse_2 {
            _ if group == 0 => true,
            Some(backups) => backups.iter().any(|&backup| u64::from(backup) == group),
            None => !self.is_sparse || group == 1 || [3, 5, 7].into_iter().any(is_power),
        }
    }

    /// What a block of the filesystem is, with this content.
    pub(crate) fn kind(&self, place: u64, content: &[u8]) -> Kind {
        if place < self.first_data_block || place >= self.blocks {
            return Kind::Other;
        }
        let group = (place - self.first_data_block) / self.blocks_per_group;
        if self.has_superblock(group) && place == self.superblock_of(group) {
            return Kind::Superblock;
        }
        if self.is_of_descriptors(group, place) {
            return Kind::GroupDescriptors;
        }
        // The tables of a group may be in an earlier one.
        for group in &self.groups {
            if place == group.block_bitmap {
                return Kind::BlockBitmap;
            }
            if place == group.inode_bitmap {
                return Kind::InodeBitmap;
            }
            if (group.inode_table..group.inode_table.saturating_add(self.table_blocks))
                .contains(&place)
            {
                return Kind::InodeTable;
            }
        }
        kind_of_content(content)
    }
}

/// The journal in an image.
pub(crate) struct Journal<'a, I: ?Sized> {
    image: &'a I,
    layout: &'a Layout,
    /// The journal's own superblock.
    pub(crate) superblock: Superblock,
}

impl<'a, I: ReadAt + ?Sized> Journal<'a, I> {
    /// Finds it.
    pub(crate) fn open(image: &'a I, layout: &'a Layout) -> Result<Self, PersistError> {
        let place = layout.place_of(0).unwrap_or(0);
        let block = layout.read_block(image, place)?;
        let superblock = match Superblock::parse(&block) {
            Err(PersistError::NotAJournal) => {
                let magic = be32(&block, 0);
                let what = format!(
                    "journal superblock: its magic is {magic:#x}, not {:#x}",
                    jbd2::MAGIC
                );
                return Err(PersistError::Damaged(what));
            }
            other => other?,
        };
        let is_consistent = superblock.block_bytes == layout.block_bytes
            && u64::from(superblock.blocks) <= layout.journal_blocks;
        if !is_consistent {
            let what = format!(
                "journal superblock: {} blocks of {} bytes do not fit the filesystem",
                superblock.blocks, superblock.block_bytes
            );
            return Err(PersistError::Damaged(what));
        }
        Ok(Self {
            image,
            layout,
            superblock,
        })
    }
}

impl<'a, I: ReadAt + ?Sized> Journal<'a, I> {
    /// With a superblock that was read before.
    pub(crate) const fn open_with(
        image: &'a I,
        layout: &'a Layout,
        superblock: Superblock,
    ) -> Self {
        Self {
            image,
            layout,
            superblock,
        }
    }
}

impl<I: ReadAt + ?Sized> Log for Journal<'_, I> {
    fn read(&self, block: u32, out: &mut [u8]) -> Result<(), PersistError> {
        let place = self.layout.place_of(block);
        let offset = place.and_then(|place| place.checked_mul(u64::from(self.layout.block_bytes)));
        let read = offset.map(|offset| self.image.read_at(out, offset));
        match read {
            Some(Ok(())) => Ok(()),
            _ => Err(PersistError::Damaged(format!(
                "block {block} of the journal cannot be read"
            ))),
        }
    }
}

/// A journal that is a file by itself, as `debugfs` extracts it.
pub(crate) struct JournalFile<'a, I: ?Sized> {
    /// The file.
    pub(crate) image: &'a I,
    /// Bytes of a block.
    pub(crate) block_bytes: u32,
}

impl<I: ReadAt + ?Sized> Log for JournalFile<'_, I> {
    fn read(&self, block: u32, out: &mut [u8]) -> Result<(), PersistError> {
        let offset = u64::from(block) * u64::from(self.block_bytes);
        let read = self.image.read_at(out, offset);
        read.map_err(|_| PersistError::Damaged(format!("block {block} of the journal is missing")))
    }
}

/// Remembers the last kind of each place: a block of a directory may be seen when it is half made.
#[derive(Debug, Default)]
pub(crate) struct Kinds(RefCell<std::collections::HashMap<u64, Kind>>);

impl Kinds {
    /// What the block is: where its content does not say, what it said before.
    pub(crate) fn of(&self, layout: Option<&Layout>, place: u64, content: &[u8]) -> Kind {
        let kind = layout.map_or_else(
            || kind_of_content(content),
            |layout| layout.kind(place, content),
        );
        let mut known = self.0.borrow_mut();
        if kind == Kind::Other {
            return known.get(&place).copied().unwrap_or(kind);
        }
        known.insert(place, kind);
        kind
    }
}
