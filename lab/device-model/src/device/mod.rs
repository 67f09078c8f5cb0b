//! The model together with content.

mod cut;
mod medium;
mod volatile;

use std::collections::VecDeque;
use std::io;
use std::ops::Range;

use mobifs_base::VirtualNs;
use thiserror::Error;

pub use cut::{CutReport, Keep};
pub use medium::{Medium, MemoryMedium};

use crate::address::{
    Lpn, PAGE_BYTES, SECTOR_BYTES, SECTORS_PER_PAGE, Sector, pieces, whole_pages,
};
use crate::model::{Command, CommandError, Completion, Event, Model, PackedPart, WriteKind};
use volatile::VolatileSet;

/// Why a command on a device fails.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The command is refused; nothing changed.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// Content that is not a whole number of sectors, or not what the parts add up to.
    #[error("{bytes} bytes of content do not fit the command")]
    Length {
        /// What was given, in bytes.
        bytes: usize,
    },
    /// The medium failed.
    #[error("the medium of the device failed: {0}")]
    Medium(#[from] io::Error),
}

/// Something that makes content durable, or changes durable content, at a time.
enum Pending {
    Page { lpn: u32, version: u64 },
    All { version: u64 },
    Discard { pages: Range<u32>, version: u64 },
    Remap { from: u32, to: u32, count: u32 },
}

/// A device with content: every command goes to the [`Model`] for its times, and its data
/// to the medium once it is durable. Until then it is held here, and a power cut decides
/// what survives.
///
/// * What a reliable write, a flush, a discard or a remap promised when it ended survives
///   any cut.
/// * Of other writes any part survives: by page, sectors old or new; of several versions
///   any. Barriers hold.
/// * A reliable write that a cut interrupts is old or new in each reliable-write unit, a remap or
///   discard is old or new as a whole.
///
/// What the model has destaged on its own may still be lost or survive, as the cut chooses, until
/// there is more of it than the write cache holds: the oldest is then durable.
pub struct Device<M: Medium> {
    model: Model,
    medium: M,
    volatile: VolatileSet,
    /// What becomes durable, with its time, in the order of the commands.
    pending: Vec<(u64, Pending)>,
    /// Content that is in the cells and not promised, oldest first.
    destaged: VecDeque<(u64, u32, u64)>,
    volatile_max: usize,
    events: Vec<Event>,
    /// Whether the page that a cut looked at last has anything that survived.
    touched: bool,
}

impl<M: Medium> Device<M> {
    /// A device of the model's state over a medium that has its durable content.
    pub fn new(mut model: Model, medium: M) -> Self {
        model.record_events();
        let cache_bytes = model.config().write_cache.cache_bytes.value;
        Self {
            model,
            medium,
            volatile: VolatileSet::default(),
            pending: Vec::new(),
            destaged: VecDeque::new(),
            volatile_max: (cache_bytes / PAGE_BYTES as u64) as usize,
            events: Vec::new(),
            touched: false,
        }
    }

    /// The model: statistics, configuration, checks.
    pub const fn model(&self) -> &Model {
        &self.model
    }

    /// The model, to reset statistics.
    pub const fn model_mut(&mut self) -> &mut Model {
        &mut self.model
    }

    /// The medium: the content after a cut with [`Keep::None`], except for what
    /// became durable since the last command.
    pub const fn medium(&self) -> &M {
        &self.medium
    }

    /// Gives up model and medium. Content that is not durable is lost: flush first, and
    /// [`Device::advance`] to its end.
    pub fn into_parts(self) -> (Model, M) {
        (self.model, self.medium)
    }

    /// Whether it has power.
    pub const fn is_powered(&self) -> bool {
        self.model.is_powered()
    }

    /// Lets time pass until `to`.
    ///
    /// # Errors
    /// What the medium fails with.
    pub fn advance(&mut self, to: VirtualNs) -> io::Result<()> {
        self.model.advance(to);
        self.follow(None);
        self.apply_durable(self.model.now())
    }

    /// Reads whole sectors from `start` on into `into`.
    ///
    /// # Errors
    /// [`DeviceError`]; content is then not defined.
    pub fn read(
        &mut self,
        at: VirtualNs,
        start: Sector,
        into: &mut [u8],
    ) -> Result<Completion, DeviceError> {
        let sectors = sectors_of(into.len())?;
        let completion = self.run(at, &Command::Read { start, sectors })?;
        self.read_content(start, into)?;
        Ok(completion)
    }

    /// Reads several ranges with one command, one after another into `into`.
    ///
    /// # Errors
    /// [`DeviceError`]; content is then not defined.
    pub fn packed_read(
        &mut self,
        at: VirtualNs,
        parts: &[PackedPart],
        into: &mut [u8],
    ) -> Result<Completion, DeviceError> {
        check_parts(parts, into.len())?;
        let completion = self.run(at, &Command::PackedRead(parts))?;
        let mut rest = into;
        for part in parts {
            let (own, later) = rest.split_at_mut(part.sectors as usize * SECTOR_BYTES);
            self.read_content(part.start, own)?;
            rest = later;
        }
        Ok(completion)
    }

    fn read_content(&mut self, start: Sector, into: &mut [u8]) -> io::Result<()> {
        let mut rest = into;
        for piece in pieces(start, (rest.len() / SECTOR_BYTES) as u32) {
            let mut page = [0; PAGE_BYTES];
            self.medium.read_page(Lpn(piece.lpn), &mut page)?;
            for version in self.volatile.versions(piece.lpn) {
                version.lay_over(version.mask, &mut page);
            }
            let first = piece.mask.trailing_zeros() as usize * SECTOR_BYTES;
            let bytes = piece.mask.count_ones() as usize * SECTOR_BYTES;
            let (own, later) = rest.split_at_mut(bytes);
            own.copy_from_slice(&page[first..first + bytes]);
            rest = later;
        }
        Ok(())
    }

    /// Writes whole sectors from `start` on.
    ///
    /// # Errors
    /// [`DeviceError`].
    pub fn write(
        &mut self,
        at: VirtualNs,
        start: Sector,
        content: &[u8],
        kind: WriteKind,
    ) -> Result<Completion, DeviceError> {
        let sectors = sectors_of(content.len())?;
        let numbers = self.model.next_version();
        let command = Command::Write {
            start,
            sectors,
            kind,
        };
        let completion = self.submit(at, &command)?;
        self.write_content(numbers, start, content, kind);
        self.follow(None);
        Ok(completion)
    }

    /// Writes several ranges with one command; `content` is theirs one after another.
    ///
    /// # Errors
    /// [`DeviceError`].
    pub fn packed_write(
        &mut self,
        at: VirtualNs,
        parts: &[PackedPart],
        content: &[u8],
    ) -> Result<Completion, DeviceError> {
        check_parts(parts, content.len())?;
        let mut numbers = self.model.next_version();
        let completion = self.submit(at, &Command::PackedWrite(parts))?;
        let mut rest = content;
        for part in parts {
            let (own, later) = rest.split_at(part.sectors as usize * SECTOR_BYTES);
            numbers = self.write_content(numbers, part.start, own, part.kind);
            rest = later;
        }
        self.follow(None);
        Ok(completion)
    }

    /// Takes the content of a write; `number` and `epoch` are those of its first page.
    fn write_content(
        &mut self,
        (mut number, epoch): (u64, u64),
        start: Sector,
        content: &[u8],
        kind: WriteKind,
    ) -> (u64, u64) {
        let mut rest = content;
        for piece in pieces(start, (content.len() / SECTOR_BYTES) as u32) {
            let bytes = piece.mask.count_ones() as usize * SECTOR_BYTES;
            let (own, later) = rest.split_at(bytes);
            self.volatile
                .add(piece.lpn, (number, epoch), kind, piece.mask, own);
            number += 1;
            rest = later;
        }
        (number, epoch)
    }

    /// Makes everything that was written before durable.
    ///
    /// # Errors
    /// [`DeviceError`].
    pub fn flush(&mut self, at: VirtualNs) -> Result<Completion, DeviceError> {
        self.run(at, &Command::Flush)
    }

    /// Orders: what is written later survives a cut only with all that was written before.
    ///
    /// # Errors
    /// [`DeviceError`].
    pub fn barrier(&mut self, at: VirtualNs) -> Result<Completion, DeviceError> {
        self.run(at, &Command::Barrier)
    }

    /// Makes the pages wholly inside the range zeros, durably.
    ///
    /// # Errors
    /// [`DeviceError`].
    pub fn discard(
        &mut self,
        at: VirtualNs,
        start: Sector,
        sectors: u32,
    ) -> Result<Completion, DeviceError> {
        let (version, _) = self.model.next_version();
        let completion = self.submit(at, &Command::Discard { start, sectors })?;
        let pages = whole_pages(start, sectors);
        self.follow(Some(Pending::Discard { pages, version }));
        Ok(completion)
    }

    /// Moves the content of whole pages to other addresses, durably and as a whole.
    ///
    /// # Errors
    /// [`DeviceError`].
    pub fn remap(
        &mut self,
        at: VirtualNs,
        from: Sector,
        to: Sector,
        sectors: u32,
    ) -> Result<Completion, DeviceError> {
        let completion = self.submit(at, &Command::Remap { from, to, sectors })?;
        self.follow(Some(Pending::Remap {
            from: from.page().0,
            to: to.page().0,
            count: sectors / SECTORS_PER_PAGE,
        }));
        Ok(completion)
    }

    /// Writes whole pages whose content is that of others, by sharing it; promises what a plain
    /// write promises. None if `from` has another content, or cannot be shared now: nothing has
    /// changed then, and a write is what there is.
    ///
    /// # Errors
    /// [`DeviceError`].
    pub fn share(
        &mut self,
        at: VirtualNs,
        from: Sector,
        to: Sector,
        content: &[u8],
    ) -> Result<Option<Completion>, DeviceError> {
        let sectors = sectors_of(content.len())?;
        // What has come into the cells meanwhile counts.
        self.advance(at)?;
        if self.model.is_powered() && !self.has(from, content)? {
            return Ok(None);
        }
        let numbers = self.model.next_version();
        let completion = match self.submit(at, &Command::Share { from, to, sectors }) {
            Err(DeviceError::Command(CommandError::NotShareable)) => return Ok(None),
            other => other?,
        };
        self.write_content(numbers, to, content, WriteKind::Plain);
        self.follow(None);
        Ok(Some(completion))
    }

    /// Whether this is there, exactly.
    fn has(&mut self, start: Sector, content: &[u8]) -> io::Result<bool> {
        let end = start
            .0
            .saturating_add((content.len() / SECTOR_BYTES) as u64);
        if end > self.model.sectors() {
            return Ok(false);
        }
        let mut found = vec![0; content.len()];
        self.read_content(start, &mut found)?;
        Ok(found == content)
    }

    fn run(&mut self, at: VirtualNs, command: &Command<'_>) -> Result<Completion, DeviceError> {
        let completion = self.submit(at, command)?;
        self.follow(None);
        Ok(completion)
    }

    /// Has the model execute a command. What is durable when it is accepted goes to the
    /// medium: a cut cannot come earlier any more.
    fn submit(&mut self, at: VirtualNs, command: &Command<'_>) -> Result<Completion, DeviceError> {
        // Events of quiet time come before those of the command.
        self.advance(at)?;
        let completion = self.model.submit(at, command)?;
        self.apply_durable(completion.accepted_at)?;
        Ok(completion)
    }

    /// Follows the model's events about content; `logged` is the command's logged change, if it is
    /// one.
    fn follow(&mut self, mut logged: Option<Pending>) {
        let mut events = core::mem::take(&mut self.events);
        self.model.take_events(&mut events);
        for event in events.drain(..) {
            match event {
                Event::Destaged { lpn, version, at } => {
                    self.volatile.destaged(lpn, version);
                    self.destaged.push_back((at, lpn, version));
                }
                Event::Durable { lpn, version, at } => {
                    self.volatile.destaged(lpn, version);
                    self.pending.push((at, Pending::Page { lpn, version }));
                }
                Event::AllDurable { version, at } => {
                    self.pending.push((at, Pending::All { version }));
                }
                Event::Logged { at } => {
                    if let Some(change) = logged.take() {
                        self.pending.push((at, change));
                    }
                }
            }
        }
        self.events = events;
        self.bound_volatile();
    }

    /// Bounds the undecided content to the size of the cache: the oldest that is in the cells
    /// becomes durable.
    fn bound_volatile(&mut self) {
        let mut excess = self.volatile.len().saturating_sub(self.volatile_max);
        while excess > 0 {
            let Some((at, lpn, version)) = self.destaged.pop_front() else {
                return;
            };
            let versions = self.volatile.versions(lpn).iter();
            let count = versions.filter(|other| other.number <= version).count();
            if count > 0 {
                self.pending.push((at, Pending::Page { lpn, version }));
                excess = excess.saturating_sub(count);
            }
        }
    }

    /// Brings what is durable by `now` to the medium. If the medium fails, the rest stays
    /// to be done.
    fn apply_durable(&mut self, now: VirtualNs) -> io::Result<()> {
        let mut result = Ok(());
        for (at, pending) in core::mem::take(&mut self.pending) {
            if at <= now.0 && result.is_ok() {
                result = self.apply(&pending);
                if result.is_ok() {
                    continue;
                }
            }
            self.pending.push((at, pending));
        }
        result
    }

    fn apply(&mut self, pending: &Pending) -> io::Result<()> {
        match pending {
            Pending::Page { lpn, version } => self.make_durable(*lpn, *version),
            Pending::All { version } => {
                for lpn in self.volatile.pages() {
                    self.make_durable(lpn, *version)?;
                }
                let newer = |&(_, _, other): &(u64, u32, u64)| other > *version;
                self.destaged.retain(newer);
                Ok(())
            }
            Pending::Discard { pages, version } => {
                for lpn in self.volatile.pages_in(pages.clone()) {
                    self.volatile.take(lpn, version.saturating_sub(1));
                }
                let count = pages.end - pages.start;
                self.medium.zero_pages(Lpn(pages.start), count)
            }
            Pending::Remap { from, to, count } => self.move_pages(*from, *to, *count),
        }
    }

    fn make_durable(&mut self, lpn: u32, version: u64) -> io::Result<()> {
        for durable in self.volatile.versions(lpn) {
            if durable.number > version {
                break;
            }
            for (offset, content) in durable.runs() {
                self.medium.write_page(Lpn(lpn), offset, content)?;
            }
        }
        self.volatile.take(lpn, version);
        Ok(())
    }

    fn move_pages(&mut self, from: u32, to: u32, count: u32) -> io::Result<()> {
        let mut page = [0; PAGE_BYTES];
        for offset in 0..count {
            self.medium.read_page(Lpn(from + offset), &mut page)?;
            self.medium.write_page(Lpn(to + offset), 0, &page)?;
        }
        self.medium.zero_pages(Lpn(from), count)
    }
}

fn sectors_of(bytes: usize) -> Result<u32, DeviceError> {
    if !bytes.is_multiple_of(SECTOR_BYTES) {
        return Err(DeviceError::Length { bytes });
    }
    u32::try_from(bytes / SECTOR_BYTES).map_err(|_| DeviceError::Length { bytes })
}

fn check_parts(parts: &[PackedPart], bytes: usize) -> Result<(), DeviceError> {
    let sectors: u64 = parts.iter().map(|part| u64::from(part.sectors)).sum();
    if sectors * SECTOR_BYTES as u64 == bytes as u64 {
        Ok(())
    } else {
        Err(DeviceError::Length { bytes })
    }
}
