//! Content that is elsewhere already: pages of a database in its log, and in its rollback journal.
//!
//! SQLite writes a page that a transaction changes to its log (WAL mode), or the page as it was to a rollback
//! journal that it overwrites (mode PERSIST). At that place there was another page before, so almost all
//! bytes differ; but the last version of the same page is in the log or in the database, and differs little or
//! not at all. The record then says where that is ([`Record::Copied`]). Where a file that looks like a log is
//! something else, what is found is compared like anything else: the record has no other bytes than
//! those that differ, and is used only if it is the smaller one.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use mobifs_base::{ObjectId, PAGE_BYTES, PAGE_BYTES_U64, Page, PageIndex, Transaction};
use parking_lot::MutexGuard;

use crate::StoreError;
use crate::commit::base::{Base, BasePage, BaseReads};
use crate::commit::counters::CommitCounters;
use crate::commit::database_logs::layout::{
    self, FrameHeader, Kind, Layout, Part, database_page_bytes,
};
use crate::commit::database_logs::{DatabaseLog, DatabaseLogs};
use crate::commit::shape;
use crate::log::codec;
use crate::log::epoch::Epoch;
use crate::log::outstanding_copies::{MATERIALIZED_PAGE_BYTES, OutstandingCopies};
use crate::log::record::{CopiedBytes, Record, diff};
use crate::lower::Lower;
use crate::overlay::Overlay;

/// A record of changed bytes is compared with copies from this size on.
const CHANGED_BYTES_MIN: u64 = 512;
/// A copy saves at least so many bytes, or it is not worth that recovery needs its source.
const SAVED_BYTES_MIN: u64 = 256;
/// Pages whose last version in a log is known.
const FRAMES_MAX: usize = 1 << 16;

/// Makes records of copies for one transaction.
pub(super) struct Copier<'a, L: Lower> {
    overlay: &'a Overlay<L>,
    reads: &'a BaseReads,
    transaction: &'a Transaction,
    logs: MutexGuard<'a, DatabaseLogs>,
    /// Journal that is left for materializing what is copied.
    free_bytes: u64,
    /// Files that were copied from.
    sources: BTreeSet<ObjectId>,
    outstanding: &'a OutstandingCopies,
}

impl<'a, L: Lower> Copier<'a, L> {
    /// None where the journal takes no copies.
    pub(super) fn new(
        overlay: &'a Overlay<L>,
        counters: &'a CommitCounters,
        epoch: &'a Epoch<L::Handle>,
        transaction: &'a Transaction,
    ) -> Option<Self> {
        let needed_bytes = shape::journal_bytes_max(transaction);
        let free_bytes = epoch.free_bytes().checked_sub(needed_bytes)?;
        if !epoch.may_copy() {
            return None;
        }
        let mut logs = counters.database_logs();
        // A new file is known by name only now, until an apply.
        for (_, name, child) in &transaction.dentries {
            if let Some(child) = child.filter(|_| Kind::of_name(name.as_bytes()).is_some()) {
                let _is_log = logs.find(overlay, transaction, child);
            }
        }
        Some(Self {
            overlay,
            reads: counters.base_reads(),
            transaction,
            logs,
            free_bytes,
            sources: BTreeSet::new(),
            outstanding: epoch.outstanding_copies(),
        })
    }

    /// Files that the records copy from.
    pub(super) fn into_sources(self) -> BTreeSet<ObjectId> {
        self.sources
    }

    /// What is known of an object, if it is a log.
    pub(super) fn log(&mut self, id: ObjectId) -> Option<Log<'a, L>> {
        let pages = self.transaction.pages.get(&id)?;
        let log = self.logs.find(self.overlay, self.transaction, id)?;
        let known = (log.kind, log.database);
        if !self.keep_sources(id, known.1) {
            // The database is looked for again with the next transaction.
            self.logs.remove(id);
            return None;
        }
        Log::new(self.overlay, self.reads, id, pages, known)
    }

    /// Both keep their ids from here on; false if the database has lost its id already.
    fn keep_sources(&self, log: ObjectId, database: ObjectId) -> bool {
        let is_kept = {
            let state = self.overlay.state();
            state.is_copied_from(log) && state.is_copied_from(database)
        };
        if is_kept {
            return true;
        }
        let mut state = self.overlay.state_mut();
        let mut changed = self.transaction.objects.iter();
        let is_known = state.table.get(database).is_some()
            || state.pending.mentions(database)
            || changed.any(|object| object.id == database);
        if is_known {
            state.keep_copied_from([log, database]);
        }
        is_known
    }

    /// The record of a page as a copy, if that is worth it.
    pub(super) fn record(
        &mut self,
        log: &Log<'a, L>,
        index: PageIndex,
        page: &Page,
        base: &BasePage,
        literal: Record,
    ) -> Record {
        if literal.content_bytes() < CHANGED_BYTES_MIN || self.free_bytes < MATERIALIZED_PAGE_BYTES
        {
            return literal;
        }
        let Some(known) = self.logs.get(log.id) else {
            return literal;
        };
        // What cannot be read is not copied, which is no reason to fail.
        let Ok(Some(copied)) = log.copied(&known.frames, index, page, base) else {
            return literal;
        };
        let bytes = |record: &Record| codec::encoded_bytes(std::slice::from_ref(record));
        if bytes(&copied) + SAVED_BYTES_MIN > bytes(&literal) {
            return literal;
        }
        if let Record::Copied { copies, .. } = &copied {
            self.sources
                .extend(copies.iter().map(|copied| copied.source));
        }
        if !self.outstanding.has_page(log.id, index) {
            self.free_bytes -= MATERIALIZED_PAGE_BYTES;
        }
        copied
    }

    /// The pages of a log are in the transaction: later ones may copy from them.
    pub(super) fn learn(&mut self, log: &Log<'a, L>) {
        if let Some(known) = self.logs.get_mut(log.id) {
            // Frames that cannot be read are not copied from.
            let _partly = log.learn(known);
        }
    }
}

/// A log or rollback journal of which pages are committed.
pub(super) struct Log<'a, L: Lower> {
    overlay: &'a Overlay<L>,
    reads: &'a BaseReads,
    id: ObjectId,
    database: ObjectId,
    layout: Layout,
    salt: [u8; 8],
    /// What the transaction has of it.
    pages: &'a BTreeMap<PageIndex, Page>,
    /// What was committed of it before.
    before: Option<Base<'a, L>>,
    of_database: Option<Base<'a, L>>,
}

impl<'a, L: Lower> Log<'a, L> {
    fn new(
        overlay: &'a Overlay<L>,
        reads: &'a BaseReads,
        id: ObjectId,
        pages: &'a BTreeMap<PageIndex, Page>,
        (kind, database): (Kind, ObjectId),
    ) -> Option<Self> {
        let mut log = Self {
            overlay,
            reads,
            id,
            database,
            layout: Layout::default(),
            salt: [0; 8],
            pages,
            before: Base::before(overlay, id),
            of_database: Base::before(overlay, database),
        };
        let mut header = [0; layout::HEADER_BYTES];
        log.content(0, &mut header).ok()?.then_some(())?;
        let of_database = || {
            let mut header = [0; layout::HEADER_BYTES];
            let is_known = log.of_database.as_ref()?;
            let is_known = is_known.read(overlay, reads, 0, &mut header).ok()?;
            is_known.then(|| database_page_bytes(&header)).flatten()
        };
        (log.layout, log.salt) = Layout::of(kind, &header, of_database)?;
        Some(log)
    }

    /// Bytes of the log with this transaction; false if they are not known.
    fn content(&self, offset: u64, out: &mut [u8]) -> Result<bool, StoreError> {
        let mut done = 0;
        while done < out.len() {
            let at = offset + done as u64;
            let within = (at % PAGE_BYTES_U64) as usize;
            let length = (out.len() - done).min(PAGE_BYTES - within);
            let part = &mut out[done..done + length];
            match (self.pages.get(&PageIndex::of_offset(at)), &self.before) {
                (Some(page), _) => page.read(within, part),
                (None, Some(before)) if before.read(self.overlay, self.reads, at, part)? => {}
                _ => return Ok(false),
            }
            done += length;
        }
        Ok(true)
    }

    /// The record of a page with what can be copied; none if nothing can.
    fn copied(
        &self,
        frames: &HashMap<u32, u64>,
        index: PageIndex,
        page: &Page,
        base: &BasePage,
    ) -> Result<Option<Record>, StoreError> {
        let (fresh, mut content) = match base {
            BasePage::Zero | BasePage::Unknown => (true, [0; PAGE_BYTES]),
            // Of a new file, which was written to its place: recovery does not read that.
            _ if self.before.is_none() => return Ok(None),
            BasePage::Known(base) | BasePage::FromDevice(base) => (false, base.to_array()),
        };
        let wanted = page.to_array();
        let mut copies = Vec::new();
        for part in self.layout.parts(index) {
            let mut header = [0; layout::FRAME_HEADER_BYTES];
            if !self.content(part.frame, &mut header[..self.layout.frame_header_bytes()])? {
                continue;
            }
            let number = FrameHeader(header).page_number();
            let range = part.within.clone();
            let found = self.closest(frames, number, &part, &wanted[range.clone()])?;
            let Some((source, from, bytes)) = found else {
                continue;
            };
            let differing = differing_bytes(&bytes, &wanted[range.clone()]);
            if differing < differing_bytes(&content[range.clone()], &wanted[range.clone()]) {
                content[range.clone()].copy_from_slice(&bytes);
                copies.push(CopiedBytes {
                    offset: layout::within_page(range.start),
                    length: layout::within_page(range.len()),
                    source,
                    from,
                });
            }
        }
        Ok((!copies.is_empty()).then(|| Record::Copied {
            object: self.id,
            index,
            fresh,
            copies,
            runs: diff(Some(&Page::new(&content)), page),
            crc32c: crc32c::crc32c(&wanted),
        }))
    }

    /// The one of the earlier versions of a page of the database that is most like `wanted`.
    fn closest(
        &self,
        frames: &HashMap<u32, u64>,
        number: u32,
        part: &Part,
        wanted: &[u8],
    ) -> Result<Option<(ObjectId, u64, Vec<u8>)>, StoreError> {
        let in_log = frames
            .get(&number)
            .map(|frame| frame + self.layout.frame_header_bytes() as u64);
        let in_database = number
            .checked_sub(1)
            .map(|before| u64::from(before) * self.layout.page_bytes());
        let candidates = [
            (self.id, in_log, &self.before),
            (self.database, in_database, &self.of_database),
        ];
        let mut closest = None;
        for (source, page_at, base) in candidates {
            let (Some(page_at), Some(base)) = (page_at, base) else {
                continue;
            };
            let from = page_at + part.within_content;
            let mut bytes = vec![0; wanted.len()];
            if !base.read(self.overlay, self.reads, from, &mut bytes)? {
                continue;
            }
            let differing = differing_bytes(&bytes, wanted);
            let is_closer = closest.as_ref().is_none_or(|(least, _)| differing < *least);
            if is_closer {
                closest = Some((differing, (source, from, bytes)));
            }
        }
        Ok(closest.map(|(_, found)| found))
    }

    /// Notes the frames that begin in the transaction's pages.
    fn learn(&self, log: &mut DatabaseLog) -> Result<(), StoreError> {
        if log.kind != Kind::Log {
            return Ok(());
        }
        if log.salt != self.salt || log.frames.len() > FRAMES_MAX {
            log.salt = self.salt;
            log.frames.clear();
        }
        for index in self.pages.keys() {
            for frame in self.layout.frames(*index) {
                let mut header = [0; layout::FRAME_HEADER_BYTES];
                let begins_here = PageIndex::of_offset(frame) == *index;
                // Those after the last one may be of the log before it began anew.
                if begins_here
                    && self.content(frame, &mut header)?
                    && FrameHeader(header).salt() == self.salt
                {
                    log.frames.insert(FrameHeader(header).page_number(), frame);
                }
            }
        }
        Ok(())
    }
}

fn differing_bytes(one: &[u8], other: &[u8]) -> usize {
    one.iter()
        .zip(other)
        .filter(|(one, other)| one != other)
        .count()
}
