//! What flushing costs: the commands of a filesystem or of the journal store, on a flash
//! device model, in the trace's own time.

use std::collections::HashMap;

use mobifs_base::PAGE_BYTES_U64;
use mobifs_device_model::Host;
use mobifs_device_model::{Command, Config, SECTORS_PER_PAGE, Sector, VirtualNs, WriteKind};

use super::error::SimulationError;
use super::journal::{StoredFiles, Transaction};
use super::stream::{AppNumber, ObjectNumber};

/// Commands under way at a time.
const QUEUE_DEPTH: usize = 8;
/// Pages of the journal of the filesystem or of MobiFS: 64 MiB.
pub(super) const JOURNAL_PAGES: u64 = 16_384;
/// Pages of the largest command: 512 KiB.
const COMMAND_PAGES_MAX: u64 = 128;
/// Files get their place in pieces of this many pages: 128 KiB.
const PIECE_PAGES: u64 = 32;
/// Blocks that a transaction of ext4's journal takes besides the commit block: a
/// descriptor and 3.3 metadata blocks on average (S3).
const JBD2_BLOCKS: u64 = 4;
/// Blocks of content that one descriptor of ext4's journal has room for.
const DESCRIPTOR_PAGES: u64 = 254;
/// Tree nodes of 16 KiB that a commit of btrfs writes: leaf, node and root of the file
/// tree, the extent tree and the root tree, each twice (DUP, its default on one device).
const COPY_ON_WRITE_NODES: u64 = 12;
/// Pages of such a node.
const NODE_PAGES: u64 = 4;
/// Bytes of a journal record of the store that is no page.
const ENTRY_RECORD_BYTES: u64 = 128;
/// Bytes of a transaction's header in the store's journal.
const HEADER_BYTES: u64 = 64;
/// The store writes a commit of at most this size with one reliable write.
const DIRECT_PAGES_MAX: u64 = 32;
/// The store applies its journal when it was idle for this long.
const APPLY_IDLE_NS: u64 = 30_000_000_000;

/// What a filesystem writes besides the pages, and whether it waits for the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushShape {
    /// Pages in place, then a transaction of the journal between two cache flushes.
    Journal,
    /// Pages in place, then a transaction of the journal, without cache flushes (`nobarrier`).
    JournalWithoutBarrier,
    /// Pages in a transaction of the journal, between two cache flushes (`data=journal`). They go to
    /// their place [later](Storage::write_back).
    JournaledData,
    /// Pages and tree nodes to new places, then the superblock.
    CopyOnWrite,
}

impl FlushShape {
    /// Blocks that so many pages take in the journal of ext4 with `data=journal`.
    pub(super) const fn journaled_blocks(pages: u64) -> u64 {
        pages + pages / DESCRIPTOR_PAGES + JBD2_BLOCKS + 1
    }
}

/// What one flush of a filesystem writes.
#[derive(Debug)]
pub struct Flush<'p> {
    /// When, in nanoseconds of the simulation.
    pub at_ns: u64,
    /// Which pages of which files.
    pub pages: &'p [(ObjectNumber, u64)],
    /// Changed names and attributes.
    pub entries: u64,
    /// How.
    pub shape: FlushShape,
    /// The app that waits for the end of it.
    pub waiting: Option<AppNumber>,
}

/// Where the pages of one commit of the journal store went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitPages {
    /// When, in nanoseconds of the simulation.
    pub at_ns: u64,
    /// Pages that were written to their place.
    pub in_place: u64,
    /// Pages that were written to the journal.
    pub journal: u64,
}

/// What flushing cost.
#[derive(Clone, Debug, Default)]
pub struct Cost {
    /// Bytes that were sent to the device, journals included.
    pub written_bytes: u64,
    /// When the device was busy: start and end of each flush, in nanoseconds.
    pub busy_ns: Vec<(u64, u64)>,
    /// How long callers of `fsync` waited, in nanoseconds.
    pub waited_ns: u64,
    /// How often.
    pub waits: u64,
    /// What each commit of the journal store wrote; none of a filesystem.
    pub commits: Vec<CommitPages>,
}

impl Cost {
    /// How long the device was busy, in nanoseconds.
    pub fn busy_total_ns(&self) -> u64 {
        self.busy_ns.iter().map(|(start, end)| end - start).sum()
    }
}

/// A device and what lies where on it.
pub struct Storage {
    host: Host,
    /// Where each piece of a file begins.
    places: HashMap<(ObjectNumber, u64), u64>,
    next_place: u64,
    pages: u64,
    journal_position: u64,
    /// What the journal store knows of files.
    files: StoredFiles,
    unapplied_journal_pages: u64,
    committed_at_ns: u64,
    cost: Cost,
}

impl Storage {
    /// A new device of `capacity_bytes`.
    ///
    /// # Errors
    /// The device cannot be like that.
    pub fn new(config: &Config, capacity_bytes: u64) -> Result<Self, SimulationError> {
        let mut host = Host::new(config, capacity_bytes, 1)?;
        host.set_depth(QUEUE_DEPTH);
        Ok(Self {
            host,
            places: HashMap::new(),
            next_place: JOURNAL_PAGES,
            pages: capacity_bytes / PAGE_BYTES_U64,
            journal_position: 0,
            files: StoredFiles::default(),
            unapplied_journal_pages: 0,
            committed_at_ns: 0,
            cost: Cost::default(),
        })
    }

    /// What flushing cost so far.
    pub const fn cost(&self) -> &Cost {
        &self.cost
    }

    /// A caller of `fsync` waited for so long, in nanoseconds.
    pub(super) const fn waited(&mut self, nanoseconds: u64) {
        self.cost.waits += 1;
        self.cost.waited_ns += nanoseconds;
    }

    /// Energy that the device took for commands and its own work, without idling, in mJ.
    pub fn energy_mj(&self) -> f64 {
        let stats = self.host.model().stats();
        stats.energy.total_mj() - stats.energy.idle_mj
    }

    /// Bytes programmed into cells for each byte written; none if nothing was.
    pub fn write_amplification(&self) -> Option<f64> {
        self.host.model().stats().write_amplification
    }

    /// A file that has been in its place since before.
    pub(super) fn add_initial(&mut self, object: ObjectNumber, bytes: u64) {
        self.files.add_initial(object, bytes);
    }

    /// A flush of a filesystem; says when it has ended.
    ///
    /// # Errors
    /// The device refuses a command.
    pub fn flush(&mut self, flush: &Flush<'_>) -> Result<u64, SimulationError> {
        let started_ns = self.begin(flush.at_ns);
        match flush.shape {
            FlushShape::Journal => {
                self.write_in_place(flush.pages)?;
                self.host.wait_all();
                self.write_journal(JBD2_BLOCKS, WriteKind::Plain)?;
                self.host.wait_all();
                self.command(&Command::Flush)?;
                self.write_journal(1, WriteKind::Reliable)?;
            }
            FlushShape::JournalWithoutBarrier => {
                self.write_in_place(flush.pages)?;
                self.host.wait_all();
                self.write_journal(JBD2_BLOCKS + 1, WriteKind::Plain)?;
            }
            FlushShape::JournaledData => {
                let blocks = FlushShape::journaled_blocks(flush.pages.len() as u64);
                self.write_journal(blocks - 1, WriteKind::Plain)?;
                self.host.wait_all();
                self.command(&Command::Flush)?;
                self.write_journal(1, WriteKind::Reliable)?;
            }
            FlushShape::CopyOnWrite => {
                let pages = flush.pages.len() as u64 + COPY_ON_WRITE_NODES * NODE_PAGES;
                self.write_to_new_place(pages)?;
                self.host.wait_all();
                self.command(&Command::Flush)?;
                self.write_run(0, 1, WriteKind::Reliable)?;
            }
        }
        let ended_ns = self.end(started_ns);
        if flush.waiting.is_some() {
            self.waited(ended_ns.saturating_sub(flush.at_ns));
        }
        Ok(ended_ns)
    }

    /// The kernel writes pages to their place that are safe already.
    ///
    /// # Errors
    /// The device refuses a command.
    pub(super) fn write_back(
        &mut self,
        at_ns: u64,
        pages: &[(ObjectNumber, u64)],
    ) -> Result<(), SimulationError> {
        let started_ns = self.begin(at_ns);
        self.write_in_place(pages)?;
        self.end(started_ns);
        Ok(())
    }

    /// A commit of the journal store, at `at_ns`; says when it has ended.
    ///
    /// # Errors
    /// The device refuses a command.
    pub(super) fn commit(
        &mut self,
        at_ns: u64,
        transaction: &Transaction,
    ) -> Result<u64, SimulationError> {
        self.apply_when_idle(at_ns)?;
        let started_ns = self.begin(at_ns);
        let placed = self.files.commit(transaction);
        self.cost.commits.push(CommitPages {
            at_ns,
            in_place: placed.in_place.len() as u64,
            journal: placed.journal.len() as u64,
        });
        if placed.announced > 0 {
            self.append(placed.announced * ENTRY_RECORD_BYTES)?;
        }
        if !placed.in_place.is_empty() {
            self.write_in_place(&placed.in_place)?;
            self.host.wait_all();
            self.command(&Command::Flush)?;
        }
        let pages_bytes = placed.journal.len() as u64 * PAGE_BYTES_U64;
        self.append(pages_bytes + transaction.entries * ENTRY_RECORD_BYTES)?;
        self.committed_at_ns = at_ns;
        let ended_ns = self.end(started_ns);
        if self.unapplied_journal_pages > JOURNAL_PAGES / 4 * 3 {
            self.apply(ended_ns)?;
        }
        Ok(ended_ns)
    }

    /// Appends one transaction to the store's journal, durably.
    fn append(&mut self, record_bytes: u64) -> Result<(), SimulationError> {
        let pages = (record_bytes + HEADER_BYTES).div_ceil(PAGE_BYTES_U64);
        self.unapplied_journal_pages += pages;
        if pages <= DIRECT_PAGES_MAX {
            return self.write_journal(pages, WriteKind::Reliable);
        }
        self.write_journal(pages, WriteKind::Plain)?;
        self.host.wait_all();
        self.command(&Command::Flush)
    }

    /// Brings everything to its place, as an unmount does.
    ///
    /// # Errors
    /// The device refuses a command.
    pub fn finish(&mut self, at_ns: u64) -> Result<(), SimulationError> {
        self.apply_when_idle(at_ns)?;
        self.apply(at_ns)
    }

    fn apply_when_idle(&mut self, now_ns: u64) -> Result<(), SimulationError> {
        let idle_at_ns = self.committed_at_ns.saturating_add(APPLY_IDLE_NS);
        if idle_at_ns <= now_ns {
            self.apply(idle_at_ns)?;
        }
        Ok(())
    }

    fn apply(&mut self, at_ns: u64) -> Result<(), SimulationError> {
        self.unapplied_journal_pages = 0;
        let pages = self.files.apply();
        if pages.is_empty() {
            return Ok(());
        }
        let started_ns = self.begin(at_ns);
        self.write_in_place(&pages)?;
        self.host.wait_all();
        self.command(&Command::Flush)?;
        self.end(started_ns);
        Ok(())
    }

    fn begin(&mut self, at_ns: u64) -> u64 {
        self.host.wait_until(VirtualNs(at_ns));
        self.host.now().0
    }

    fn end(&mut self, started_ns: u64) -> u64 {
        self.host.wait_all();
        let ended_ns = self.host.now().0;
        self.cost.busy_ns.push((started_ns, ended_ns));
        ended_ns
    }

    fn command(&mut self, command: &Command<'_>) -> Result<(), SimulationError> {
        self.host.issue(command)?;
        self.host.wait_all();
        Ok(())
    }

    fn place_of(&mut self, object: ObjectNumber, page: u64) -> u64 {
        let piece = page / PIECE_PAGES;
        let first = match self.places.get(&(object, piece)) {
            Some(&first) => first,
            None => {
                let first = self.take_place(PIECE_PAGES);
                self.places.insert((object, piece), first);
                first
            }
        };
        first + page % PIECE_PAGES
    }

    /// Room for so many pages. A full device starts over: what is overwritten there is a
    /// file that is gone, as far as wear and time are concerned.
    fn take_place(&mut self, pages: u64) -> u64 {
        if self.next_place + pages > self.pages {
            self.next_place = JOURNAL_PAGES;
        }
        let first = self.next_place;
        self.next_place += pages;
        first
    }

    fn write_in_place(&mut self, pages: &[(ObjectNumber, u64)]) -> Result<(), SimulationError> {
        let places = pages
            .iter()
            .map(|&(object, page)| self.place_of(object, page));
        let mut places: Vec<u64> = places.collect();
        places.sort_unstable();
        for run in places.chunk_by(|one, next| one + 1 == *next) {
            self.write_run(run[0], run.len() as u64, WriteKind::Plain)?;
        }
        Ok(())
    }

    fn write_to_new_place(&mut self, pages: u64) -> Result<(), SimulationError> {
        let mut rest = pages;
        while rest > 0 {
            let count = rest.min(COMMAND_PAGES_MAX);
            let first = self.take_place(count);
            self.write_run(first, count, WriteKind::Plain)?;
            rest -= count;
        }
        Ok(())
    }

    fn write_journal(&mut self, pages: u64, kind: WriteKind) -> Result<(), SimulationError> {
        let mut rest = pages;
        while rest > 0 {
            let count = rest.min(JOURNAL_PAGES - self.journal_position);
            self.write_run(self.journal_position, count, kind)?;
            self.journal_position = (self.journal_position + count) % JOURNAL_PAGES;
            rest -= count;
        }
        Ok(())
    }

    fn write_run(
        &mut self,
        first: u64,
        pages: u64,
        kind: WriteKind,
    ) -> Result<(), SimulationError> {
        self.cost.written_bytes += pages * PAGE_BYTES_U64;
        let (mut first, mut rest) = (first, pages);
        while rest > 0 {
            let count = rest.min(COMMAND_PAGES_MAX);
            self.host.issue(&Command::Write {
                start: Sector(first * u64::from(SECTORS_PER_PAGE)),
                sectors: (count as u32) * SECTORS_PER_PAGE,
                kind,
            })?;
            first += count;
            rest -= count;
        }
        Ok(())
    }
}
