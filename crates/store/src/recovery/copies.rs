//! Records that say what content is a copy of become records of that content.
//!
//! As long as the epoch is not settled, the sources of its copies are in the lower filesystem as they were
//! when they were copied (`docs/FORMAT.md`, records 13 to 15). So the records are followed in order, and what
//! each copies is what the transactions before it say, over the lower filesystem.

use std::collections::{BTreeSet, HashMap, HashSet};

use mobifs_base::{FileKind, ObjectId, PAGE_BYTES, PAGE_BYTES_U64, Page, PageIndex};

use crate::StoreError;
use crate::log::Transactions;
use crate::log::record::{CopiedBytes, Record, diff};
use crate::log::unsettled::Unsettled;
use crate::lower::{Lower, found};
use crate::overlay::pending::{Pending, PendingPage, write_runs};

/// Opens an object of the lower filesystem, if it is there.
pub(crate) type Opener<'a, H> = dyn FnMut(ObjectId) -> Result<Option<H>, StoreError> + 'a;

/// Where copies come from, as far as they were needed.
pub(crate) struct Sources<'a, L: Lower> {
    lower: &'a L,
    open: &'a mut Opener<'a, L::Handle>,
    opened: HashMap<ObjectId, Option<L::Handle>>,
    /// Transactions with a lower sequence have been settled.
    settled_at: Option<u64>,
    unsettled: Unsettled,
    /// Files with pages whose content is not what was copied.
    incomplete: BTreeSet<ObjectId>,
}

/// What is known after all records were followed.
#[derive(Debug, Default)]
pub(crate) struct Followed {
    /// The copies of the epoch that are not settled.
    pub(crate) unsettled: Unsettled,
    /// Files with pages whose content is not what was copied: another program has changed or
    /// deleted the source.
    pub(crate) incomplete: BTreeSet<ObjectId>,
}

impl<'a, L: Lower> Sources<'a, L> {
    pub(crate) fn new(
        lower: &'a L,
        open: &'a mut Opener<'a, L::Handle>,
        transactions: &Transactions,
        unsettled: Unsettled,
    ) -> Self {
        let is_settled = |records: &[Record]| records.contains(&Record::Settled);
        let mut newest_first = transactions.iter().rev();
        let settled_at = newest_first.find(|(_, records)| is_settled(records));
        let settled_at = settled_at.map(|(sequence, _)| *sequence);
        Self {
            lower,
            open,
            opened: HashMap::new(),
            settled_at,
            unsettled,
            incomplete: BTreeSet::new(),
        }
    }

    /// Replaces the copies among the records of the next transaction. What the transactions before it
    /// say is `pending`.
    ///
    /// # Errors
    /// [`StoreError::Lower`].
    pub(crate) fn resolve(
        &mut self,
        pending: &Pending,
        sequence: u64,
        records: &mut Vec<Record>,
    ) -> Result<(), StoreError> {
        if self.settled_at.is_some_and(|settled| sequence < settled) {
            // The content of those that still count comes later.
            records.retain(|record| !matches!(record, Record::Copied { .. }));
            return Ok(());
        }
        for record in records {
            let Record::Copied {
                object,
                index,
                fresh,
                copies,
                runs,
                crc32c,
            } = record
            else {
                continue;
            };
            let mut page = if *fresh {
                Some(Page::zero())
            } else {
                self.page(pending, *object, *index)?
            };
            for copied in copies {
                let bytes = self.copied(pending, copied)?;
                page = page.zip(bytes).map(|(mut page, bytes)| {
                    page.write(usize::from(copied.offset), &bytes);
                    page
                });
            }
            let (id, index, is_there) = (*object, *index, page.is_some());
            let mut page = page.unwrap_or_default();
            write_runs(&mut page, runs);
            if !is_there || crc32c::crc32c(&page.to_array()) != *crc32c {
                self.incomplete.insert(id);
            }
            self.unsettled.add(record);
            *record = Record::Bytes {
                object: id,
                index,
                fresh: true,
                runs: diff(None, &page),
            };
        }
        Ok(())
    }

    /// All records were followed.
    pub(crate) fn finish(self) -> Followed {
        Followed {
            unsettled: self.unsettled,
            incomplete: self.incomplete,
        }
    }

    /// The bytes that a record copies; none if their file is not there.
    fn copied(
        &mut self,
        pending: &Pending,
        copied: &CopiedBytes,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let mut bytes = vec![0; usize::from(copied.length)];
        let mut done = 0;
        while done < bytes.len() {
            let at = copied.from.saturating_add(done as u64);
            let within = (at % PAGE_BYTES_U64) as usize;
            let length = (bytes.len() - done).min(PAGE_BYTES - within);
            let page = self.page(pending, copied.source, PageIndex::of_offset(at))?;
            let Some(page) = page else { return Ok(None) };
            page.read(within, &mut bytes[done..done + length]);
            done += length;
        }
        Ok(Some(bytes))
    }

    /// A page with what is pending; none if it needs a file that is not there.
    fn page(
        &mut self,
        pending: &Pending,
        id: ObjectId,
        index: PageIndex,
    ) -> Result<Option<Page>, StoreError> {
        let object = pending.object(id);
        let is_hidden = object.is_some_and(|object| object.hides_lower(index));
        let (fresh, runs) = match object.and_then(|object| object.pages.get(&index)) {
            Some(PendingPage::Whole(page)) => return Ok(Some(page.clone())),
            Some(PendingPage::Runs { fresh, runs }) => (*fresh, runs.as_slice()),
            None => (false, &[][..]),
        };
        let mut content = [0; PAGE_BYTES];
        if !fresh && !is_hidden && !self.read(id, index, &mut content)? {
            return Ok(None);
        }
        let mut page = Page::new(&content);
        write_runs(&mut page, runs);
        Ok(Some(page))
    }

    /// Reads a page of the lower filesystem; false if the file is not there.
    fn read(&mut self, id: ObjectId, index: PageIndex, out: &mut [u8]) -> Result<bool, StoreError> {
        if !self.opened.contains_key(&id) {
            // Databases and their logs: few. A forged journal may name any number.
            if self.opened.len() >= self.lower.handles_max().max(1) {
                self.opened.clear();
            }
            let opened = (self.open)(id)?;
            self.opened.insert(id, opened);
        }
        let Some(Some(handle)) = self.opened.get(&id) else {
            return Ok(false);
        };
        let failed = || StoreError::lower(format!("reading what the journal copies from {id}"));
        let length = self.lower.read_at(handle, out, index.offset());
        out[length.map_err(failed())?..].fill(0);
        Ok(true)
    }
}

/// Where the journal says that objects of the lower filesystem are.
#[derive(Debug, Default)]
pub(crate) struct Places {
    /// Inode, kind, directory and name; without a name it is in `limbo/`.
    places: HashMap<ObjectId, (u64, FileKind, ObjectId, Vec<u8>)>,
}

impl Places {
    /// By the transactions; `in_copy` has the inodes of a copied store.
    pub(crate) fn of(
        transactions: &Transactions,
        in_copy: &HashMap<ObjectId, Option<u64>>,
    ) -> Self {
        let mut places = HashMap::new();
        for record in transactions.iter().flat_map(|(_, records)| records) {
            let Record::Known {
                id,
                inode,
                kind,
                parent,
                name,
            } = record
            else {
                continue;
            };
            // What is not in the copy has no inode there.
            if let Some(inode) = in_copy.get(id).copied().unwrap_or(Some(*inode)) {
                // Copies are made only before names move, so the first place is right.
                let place = (inode, *kind, *parent, name.clone());
                places.entry(*id).or_insert(place);
            }
        }
        Self { places }
    }

    /// Opens a file.
    pub(crate) fn open<L: Lower>(
        &self,
        lower: &L,
        limbo: &L::Handle,
        id: ObjectId,
    ) -> Result<Option<L::Handle>, StoreError> {
        let failed = || StoreError::lower(format!("opening {id}, which the journal copies from"));
        let Some((inode, FileKind::Regular, parent, name)) = self.places.get(&id) else {
            return Ok(None);
        };
        let directory;
        let number = inode.to_string();
        let (directory, name) = if name.is_empty() {
            (limbo, number.as_bytes())
        } else {
            let Some(opened) = self.directory(lower, *parent)? else {
                return Ok(None);
            };
            directory = opened;
            (&directory, name.as_slice())
        };
        let stat = found(lower.stat_at(directory, name)).map_err(failed())?;
        if stat.is_none_or(|stat| (stat.inode, stat.kind) != (*inode, FileKind::Regular)) {
            return Ok(None);
        }
        found(lower.open(directory, name, false)).map_err(failed())
    }

    fn directory<L: Lower>(
        &self,
        lower: &L,
        id: ObjectId,
    ) -> Result<Option<L::Handle>, StoreError> {
        let mut way = Vec::new();
        let mut seen = HashSet::new();
        let mut at = id;
        // A forged journal may lead in circles.
        while at != ObjectId::ROOT && seen.insert(at) {
            let Some((inode, FileKind::Directory, parent, name)) = self.places.get(&at) else {
                return Ok(None);
            };
            way.push((*inode, name));
            at = *parent;
        }
        if at != ObjectId::ROOT {
            return Ok(None);
        }
        let failed = || StoreError::lower(format!("opening the directory {id}"));
        let mut handle = lower.root().map_err(failed())?;
        for (inode, name) in way.into_iter().rev() {
            let stat = found(lower.stat_at(&handle, name)).map_err(failed())?;
            if stat.is_none_or(|stat| (stat.inode, stat.kind) != (inode, FileKind::Directory)) {
                return Ok(None);
            }
            handle = lower.open(&handle, name, false).map_err(failed())?;
        }
        Ok(Some(handle))
    }
}
