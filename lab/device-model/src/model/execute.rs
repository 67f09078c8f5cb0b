//! How each command is executed.

use mobifs_base::VirtualNs;

use super::{Command, CommandError, Completion, Event, Model, PackedPart, WriteKind};
use crate::address::{
    PAGE_BYTES, Piece, SECTOR_BYTES, SECTORS_PER_PAGE, Sector, WHOLE_PAGE, pages_of, pieces,
    whole_pages,
};
use crate::config::WhenFull;
use crate::ftl::{Cause, Ns, Stream};

/// A run of slots that one read of a die brings.
struct Run {
    slot: u32,
    count: u32,
    bytes: u64,
    ready: Ns,
}

impl Model {
    /// Executes a command that the host issues at `at`.
    ///
    /// # Errors
    /// A range that is not in the device, a malformed remap, no power. Nothing changes.
    pub fn submit(
        &mut self,
        at: VirtualNs,
        command: &Command<'_>,
    ) -> Result<Completion, CommandError> {
        self.check_command(command)?;
        self.advance(at);
        let accepted_at = self.accept();
        let before = self.ftl.counters;
        let slots_before = before.total().slots_programmed;
        let done_at = self.execute(command, accepted_at);
        self.outstanding.push(std::cmp::Reverse(done_at));
        if self.runs_alone(command) {
            self.alone_until = done_at;
        }
        self.ftl.upkeep(accepted_at);
        self.be_active(accepted_at, done_at);

        let after = &self.ftl.counters;
        let hits = after.mapping_hits - before.mapping_hits;
        let misses = after.mapping_misses - before.mapping_misses;
        let slots = after.total().slots_programmed - slots_before;
        let (start, sectors) = extent(command);
        let region = self.region_of(start);
        let counters = &mut self.counters;
        let of_kind = &mut counters.of_kind[command.kind() as usize];
        of_kind.commands += 1;
        of_kind.sectors += sectors;
        of_kind.flash_slots_programmed += slots;
        of_kind.mapping_hits += hits;
        of_kind.mapping_misses += misses;
        of_kind.latency_ns.record(done_at.saturating_sub(at.0));
        counters.region_mapping_hits[region] += hits;
        counters.region_mapping_misses[region] += misses;
        Ok(Completion {
            accepted_at: VirtualNs(accepted_at),
            done_at: VirtualNs(done_at),
        })
    }

    fn region_of(&self, start: Sector) -> usize {
        let regions = self.counters.region_sectors_read.len() as u128;
        (u128::from(start.0) * regions / u128::from(self.sectors())) as usize
    }

    const fn runs_alone(&self, command: &Command<'_>) -> bool {
        matches!(
            command,
            Command::Flush | Command::Discard { .. } | Command::Remap { .. }
        )
    }

    fn check_command(&self, command: &Command<'_>) -> Result<(), CommandError> {
        if !self.powered {
            return Err(CommandError::NoPower);
        }
        match *command {
            Command::Read { start, sectors }
            | Command::Write { start, sectors, .. }
            | Command::Discard { start, sectors } => self.check_range(start, sectors),
            Command::PackedWrite(parts) | Command::PackedRead(parts) => {
                if parts.is_empty() {
                    return Err(CommandError::Empty);
                }
                parts
                    .iter()
                    .try_for_each(|part| self.check_range(part.start, part.sectors))
            }
            Command::Flush | Command::Barrier => Ok(()),
            Command::Remap { from, to, sectors } | Command::Share { from, to, sectors } => {
                self.check_range(from, sectors)?;
                self.check_range(to, sectors)?;
                if !(from.starts_page()
                    && to.starts_page()
                    && Sector(u64::from(sectors)).starts_page())
                {
                    return Err(CommandError::NotWholePages);
                }
                if from.0.abs_diff(to.0) < u64::from(sectors) {
                    return Err(CommandError::RemapOverlaps);
                }
                let entries = self.config.remap.table_entries.value;
                let pages_max = self.front_end.remap_pages_max.min(entries);
                if sectors / SECTORS_PER_PAGE > pages_max {
                    return Err(CommandError::RemapTooLarge { pages_max });
                }
                let is_share = matches!(command, Command::Share { .. });
                let pages = sectors / SECTORS_PER_PAGE;
                if is_share && !self.can_share(from.page().0, to.page().0, pages) {
                    return Err(CommandError::NotShareable);
                }
                Ok(())
            }
        }
    }

    fn check_range(&self, start: Sector, sectors: u32) -> Result<(), CommandError> {
        let end = start.0.saturating_add(u64::from(sectors));
        if sectors == 0 {
            return Err(CommandError::Empty);
        }
        if end > self.sectors() {
            return Err(CommandError::OutOfRange {
                start: start.0,
                end,
                device_sectors: self.sectors(),
            });
        }
        Ok(())
    }

    /// When the device takes the next command.
    fn accept(&mut self) -> Ns {
        let mut accepted_at = self.now.max(self.alone_until);
        while let Some(&std::cmp::Reverse(done)) = self.outstanding.peek() {
            if done > accepted_at && self.outstanding.len() < self.front_end.queue_depth {
                break;
            }
            accepted_at = accepted_at.max(done);
            self.outstanding.pop();
        }
        self.last_accepted_at = self.last_accepted_at.max(accepted_at);
        accepted_at
    }

    fn execute(&mut self, command: &Command<'_>, at: Ns) -> Ns {
        match *command {
            Command::Read { start, sectors } => {
                let begun = self.begin(self.front_end.read_overhead_ns, at);
                self.read(start, sectors, begun)
            }
            Command::Write {
                start,
                sectors,
                kind,
            } => {
                let begun = self.begin(self.front_end.write_overhead_ns, at);
                self.write(start, sectors, kind, begun)
            }
            Command::PackedWrite(parts) => self.packed_write(parts, at),
            Command::PackedRead(parts) => {
                let begun = self.begin(self.front_end.read_overhead_ns, at);
                let header = self.move_over_bus(SECTOR_BYTES as u64, begun);
                let parts = parts.iter();
                parts.fold(header, |done, part| {
                    done.max(self.read(part.start, part.sectors, header))
                })
            }
            Command::Flush => {
                let begun = self.begin(self.front_end.flush_overhead_ns, at);
                self.flush(begun)
            }
            Command::Barrier => {
                self.epoch += 1;
                self.epoch_first_version = self.next_version;
                self.begin(self.front_end.read_overhead_ns, at)
            }
            Command::Discard { start, sectors } => {
                let begun = self.begin(self.front_end.write_overhead_ns, at);
                self.discard(start, sectors, begun)
            }
            Command::Share { from, to, sectors } => {
                let region = self.region_of(to);
                self.counters.region_sectors_written[region] += u64::from(sectors);
                let begun = self.begin(self.front_end.write_overhead_ns, at);
                let pages = sectors / SECTORS_PER_PAGE;
                self.share(from.page().0, to.page().0, pages, begun)
            }
            Command::Remap { from, to, sectors } => {
                let begun = self.begin(self.front_end.write_overhead_ns, at);
                let flushed = self.flush(begun);
                let done = self.ftl.remap(
                    from.page().0,
                    to.page().0,
                    sectors / SECTORS_PER_PAGE,
                    flushed,
                );
                self.event(Event::Logged {
                    at: self.ftl.resources.floor,
                });
                done + self.front_end.durable_overhead_ns
            }
        }
    }

    /// The firmware's time for a command; commands pass it one by one.
    fn begin(&mut self, overhead_ns: Ns, at: Ns) -> Ns {
        self.controller_free_at = self.controller_free_at.max(at) + overhead_ns;
        self.controller_free_at
    }

    pub(super) fn move_over_bus(&mut self, bytes: u64, ready: Ns) -> Ns {
        self.counters.bus_bytes += bytes;
        self.bus.transfer(bytes, ready)
    }

    pub(super) fn event(&mut self, event: Event) {
        if self.record_events {
            self.events.push(event);
        }
    }

    fn read(&mut self, start: Sector, sectors: u32, at: Ns) -> Ns {
        let region = self.region_of(start);
        self.counters.region_sectors_read[region] += u64::from(sectors);
        let mut done = at;
        let mut run: Option<Run> = None;
        for piece in pieces(start, sectors) {
            let bytes = u64::from(piece.mask.count_ones()) * SECTOR_BYTES as u64;
            let cached = self.cache.mask(piece.lpn) & piece.mask == piece.mask;
            let (slot, ready) = if cached {
                (None, at)
            } else {
                // What waits for the log is still where it came from.
                let lpn = self.shares.source_of(piece.lpn).unwrap_or(piece.lpn);
                self.ftl.locate(lpn, at)
            };
            if let (Some(run), Some(slot)) = (&mut run, slot)
                && self.ftl.continues_run(run.slot, run.count, slot)
            {
                run.count += 1;
                run.bytes += bytes;
                run.ready = run.ready.max(ready);
                continue;
            }
            done = self.finish_run(run.take(), done);
            match slot {
                Some(slot) => {
                    run = Some(Run {
                        slot,
                        count: 1,
                        bytes,
                        ready,
                    });
                }
                None => done = self.move_over_bus(bytes, ready),
            }
        }
        self.finish_run(run, done)
    }

    fn finish_run(&mut self, run: Option<Run>, done: Ns) -> Ns {
        let Some(run) = run else {
            return done;
        };
        let ready = self.ftl.read_run(run.slot, run.count, run.ready);
        self.move_over_bus(run.bytes, ready)
    }

    fn packed_write(&mut self, parts: &[PackedPart], at: Ns) -> Ns {
        let begun = self.begin(self.front_end.write_overhead_ns, at);
        // The header block that lists the parts (JESD84-B51 §6.6.29.1).
        let header = self.move_over_bus(SECTOR_BYTES as u64, begun);
        parts.iter().fold(header, |done, part| {
            done.max(self.write(part.start, part.sectors, part.kind, header))
        })
    }

    fn write(&mut self, start: Sector, sectors: u32, kind: WriteKind, at: Ns) -> Ns {
        let region = self.region_of(start);
        self.counters.region_sectors_written[region] += u64::from(sectors);
        let at = self.commit_shares_of(pages_of(start, sectors), at);
        if kind == WriteKind::Reliable || self.front_end.cache_pages == 0 {
            return self.write_through(start, sectors, at);
        }
        let mut done = at;
        self.cache.free_written(at);
        for piece in pieces(start, sectors) {
            let ready = self.room_for(piece, done);
            let bytes = u64::from(piece.mask.count_ones()) * SECTOR_BYTES as u64;
            done = self.move_over_bus(bytes, ready);
            self.cache.put(piece, self.epoch, self.next_version);
            self.next_version += 1;
            if self.cache.waiting() > self.front_end.destage_above_pages {
                self.destage(self.front_end.stripe_pages, done);
            }
        }
        done
    }

    /// When the cache has room for the piece.
    fn room_for(&mut self, piece: Piece, at: Ns) -> Ns {
        let mut ready = at;
        if self.cache.takes(piece.lpn, self.epoch) {
            return ready;
        }
        while self.cache.occupied() >= self.front_end.cache_pages {
            match self.cache.next_leave() {
                Some(leaves) => {
                    ready = ready.max(leaves);
                    self.cache.free_written(ready);
                }
                None => self.destage(self.front_end.stripe_pages, ready),
            }
        }
        ready
    }

    /// Which blocks take a portion of that many pages.
    fn stream_for(&mut self, portion_pages: u64, at: Ns) -> Stream {
        if portion_pages > self.front_end.slc_pages_max {
            return Stream::Host;
        }
        if self.front_end.slc_when_full == WhenFull::Fold {
            while !self.ftl.slc_has_room() && self.ftl.fold_some(at) {}
        }
        Stream::Slc
    }

    /// Sends up to `pages` of the pages that have waited longest into the cells. The
    /// programs of an epoch begin when those of all earlier ones have ended.
    pub(super) fn destage(&mut self, pages: usize, at: Ns) {
        let stream = self.stream_for(self.cache.waiting().min(pages as u64), at);
        self.destage_into(pages, stream, at);
    }

    fn destage_into(&mut self, pages: usize, stream: Stream, at: Ns) {
        let mut batch = core::mem::take(&mut self.batch);
        self.cache.take_oldest(pages, &mut batch);
        if let Some(first) = batch.first() {
            // Of an epoch nothing is in the cells before all of the earlier ones is.
            let at = if self.shares.has_before(first.epoch) {
                self.commit_shares(at)
            } else {
                at
            };
            let (epoch, programs_end) = self.destaging;
            if first.epoch != epoch {
                self.destaged_before_at = self.destaged_before_at.max(programs_end);
            }
            let not_before = at.max(self.destaged_before_at);
            let partial = batch.iter().map(|dirty| (dirty.lpn, dirty.mask));
            let ready = self.read_rest(partial.collect::<Vec<_>>().as_slice(), not_before);
            let owners: Vec<u32> = batch.iter().map(|dirty| dirty.lpn).collect();
            let done = self.ftl.program(&owners, stream, Cause::Host, ready);
            self.cache.leave(batch.len() as u64, done);
            let programs_end = programs_end.max(done);
            self.destaging = (first.epoch, programs_end);
            for dirty in &batch {
                self.event(Event::Destaged {
                    lpn: dirty.lpn,
                    version: dirty.version,
                    at: done,
                });
            }
        }
        self.batch = batch;
    }

    /// Reads what the cells have of pages that are written in part.
    fn read_rest(&mut self, pages: &[(u32, u8)], at: Ns) -> Ns {
        let mut ready = at;
        for &(lpn, mask) in pages {
            if mask == WHOLE_PAGE {
                continue;
            }
            let (slot, located) = self.ftl.locate(lpn, at);
            if let Some(slot) = slot {
                ready = ready.max(self.ftl.read_run(slot, 1, located));
            }
        }
        ready
    }

    /// Everything that was written before the last barrier goes into the cells. Says
    /// when it is there.
    fn destage_earlier_epochs(&mut self, at: Ns) -> Ns {
        let at = if self.shares.has_before(self.epoch) {
            self.commit_shares(at)
        } else {
            at
        };
        while self
            .cache
            .oldest_epoch()
            .is_some_and(|epoch| epoch < self.epoch)
        {
            self.destage(self.front_end.stripe_pages, at);
        }
        let (epoch, programs_end) = self.destaging;
        if epoch < self.epoch {
            self.destaged_before_at = self.destaged_before_at.max(programs_end);
        }
        let done = at.max(self.destaged_before_at).max(self.shares_logged_at);
        if self.epoch_first_version > 0 {
            self.event(Event::AllDurable {
                version: self.epoch_first_version - 1,
                at: done,
            });
        }
        done
    }

    fn flush(&mut self, at: Ns) -> Ns {
        let at = self.commit_shares(at);
        let stream = self.stream_for(self.cache.waiting(), at);
        while self.cache.waiting() > 0 {
            self.destage_into(self.front_end.stripe_pages, stream, at);
        }
        let done = at.max(self.cache.last_leave().unwrap_or(0));
        let done = done.max(self.destaging.1).max(self.shares_logged_at);
        if self.next_version > 0 {
            self.event(Event::AllDurable {
                version: self.next_version - 1,
                at: done,
            });
        }
        done
    }

    /// A write whose end means that it is in the cells.
    fn write_through(&mut self, start: Sector, sectors: u32, at: Ns) -> Ns {
        let mut done = at;
        let mut received = at;
        let not_before = self.destage_earlier_epochs(at);
        let stream = self.stream_for(u64::from(sectors.div_ceil(SECTORS_PER_PAGE)), at);
        let mut portion: Vec<(u32, u8)> = Vec::with_capacity(self.front_end.stripe_pages);
        let mut rest = pieces(start, sectors).peekable();
        while let Some(piece) = rest.next() {
            let bytes = u64::from(piece.mask.count_ones()) * SECTOR_BYTES as u64;
            received = self.move_over_bus(bytes, received);
            let waiting = self.cache.remove(piece.lpn, self.epoch);
            portion.push((
                piece.lpn,
                piece.mask | waiting.map_or(0, |dirty| dirty.mask),
            ));
            if portion.len() == self.front_end.stripe_pages || rest.peek().is_none() {
                let ready = self.read_rest(&portion, received.max(not_before));
                let owners: Vec<u32> = portion.iter().map(|&(lpn, _)| lpn).collect();
                let written = self.ftl.program(&owners, stream, Cause::Host, ready);
                for lpn in owners {
                    self.event(Event::Durable {
                        lpn,
                        version: self.next_version,
                        at: written,
                    });
                    self.next_version += 1;
                }
                let (epoch, programs_end) = self.destaging;
                if epoch != self.epoch {
                    self.destaged_before_at = self.destaged_before_at.max(programs_end);
                }
                self.destaging = (self.epoch, programs_end.max(written));
                done = done.max(written);
                portion.clear();
            }
        }
        done + self.front_end.durable_overhead_ns
    }

    fn discard(&mut self, start: Sector, sectors: u32, at: Ns) -> Ns {
        let pages = whole_pages(start, sectors);
        let at = self.commit_shares_of(pages.clone(), at);
        let not_before = self.destage_earlier_epochs(at);
        if self.cache.waiting() > 0 {
            for lpn in pages.clone() {
                self.cache.remove(lpn, self.epoch);
            }
        }
        let floor = self.ftl.resources.floor;
        let done = self.ftl.discard(pages, not_before);
        let logged = self.ftl.resources.floor.max(floor).max(not_before);
        self.event(Event::Logged { at: logged });
        done
    }
}

/// First sector and number of sectors that a command is accounted with.
fn extent(command: &Command<'_>) -> (Sector, u64) {
    match *command {
        Command::Read { start, sectors }
        | Command::Write { start, sectors, .. }
        | Command::Discard { start, sectors } => (start, u64::from(sectors)),
        Command::PackedWrite(parts) | Command::PackedRead(parts) => {
            let sectors = parts.iter().map(|part| u64::from(part.sectors)).sum();
            (parts[0].start, sectors)
        }
        Command::Flush | Command::Barrier => (Sector(0), 0),
        Command::Remap { from, sectors, .. } => (from, u64::from(sectors)),
        Command::Share { to, sectors, .. } => (to, u64::from(sectors)),
    }
}

const _: () = assert!(PAGE_BYTES == SECTOR_BYTES * SECTORS_PER_PAGE as usize);
