//! Records that say what content is a copy of become records of that content.
//!
//! As long as its copies are not materialized, the sources of its copies are in the lower filesystem as they were
//! when they were copied (`docs/FORMAT.md`, records 13 to 15). So the records are followed in order, and what
//! each copies is what the transactions before it say, over the lower filesystem.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io;

use mobifs_base::{FileKind, ObjectId, PAGE_BYTES, PAGE_BYTES_U64, Page, PageIndex};

use crate::StoreError;
use crate::log::Transactions;
use crate::log::outstanding_copies::OutstandingCopies;
use crate::log::record::{CopiedBytes, Record, diff};
use crate::lower::{Lower, found};
use crate::overlay::pending::{Pending, PendingPage, write_runs};

/// Opens an object of the lower filesystem, if it is there.
pub(crate) type Opener<'a, H> = dyn FnMut(ObjectId) -> Result<Option<H>, StoreError> + 'a;

/// Where copies come from, as far as they were needed.
pub(crate) struct Sources<'a, L: Lower> {
    lower: &'a L,
    open: &'a mut Opener<'a, L::Handle>,
    opened: HashMap<ObjectId, Option<L::Handle>>,
    /// Transactions with a lower sequence have been materialized.
    materialized_at: Option<u64>,
    outstanding: OutstandingCopies,
    /// Files with pages whose content is not what was copied.
    incomplete: BTreeSet<ObjectId>,
}

/// What is known after all records were followed.
#[derive(Debug, Default)]
pub(crate) struct Followed {
    /// The copies of the epoch that are not materialized.
    pub(crate) outstanding: OutstandingCopies,
    /// Files with pages whose content is not what was copied: another program has changed or
    /// deleted the source.
    pub(crate) incomplete: BTreeSet<ObjectId>,
}

impl<'a, L: Lower> Sources<'a, L> {
    pub(crate) fn new(
        lower: &'a L,
        open: &'a mut Opener<'a, L::Handle>,
        transactions: &Transactions,
        outstanding: OutstandingCopies,
    ) -> Self {
        let is_materialized = |records: &[Record]| records.contains(&Record::Materialized);
        let mut newest_first = transactions.iter().rev();
        let materialized_at = newest_first.find(|(_, records)| is_materialized(records));
        let materialized_at = materialized_at.map(|(sequence, _)| *sequence);
        Self {
            lower,
            open,
            opened: HashMap::new(),
            materialized_at,
            outstanding,
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
        if self
            .materialized_at
            .is_some_and(|materialized| sequence < materialized)
        {
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
            self.outstanding.add(record);
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
            outstanding: self.outstanding,
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

/// Inodes and names, from a directory down to an object in it.
type Way = Vec<(u64, Vec<u8>)>;

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
        let Some((inode, FileKind::Regular, ..)) = self.places.get(&id) else {
            return Ok(None);
        };
        let Some((is_in_limbo, mut way)) = self.way_to(id) else {
            return Ok(None);
        };
        let failed = || StoreError::lower(format!("opening {id}, which the journal copies from"));
        let Some((_, name)) = way.pop() else {
            return Ok(None);
        };
        let root;
        let base: &L::Handle = if is_in_limbo {
            limbo
        } else {
            root = lower.root().map_err(failed())?;
            &root
        };
        let mut directory: Option<L::Handle> = None;
        for (inode, name) in way {
            let at = directory.as_ref().unwrap_or(base);
            let wanted = (inode, FileKind::Directory);
            let Some(opened) = open_at(lower, at, &name, wanted).map_err(failed())? else {
                return Ok(None);
            };
            directory = Some(opened);
        }
        let at = directory.as_ref().unwrap_or(base);
        open_at(lower, at, &name, (*inode, FileKind::Regular)).map_err(failed())
    }

    /// The way to an object from the root; true: from `limbo/`, where what has no name is, under its number, also a
    /// directory that an interrupted apply was moving.
    fn way_to(&self, id: ObjectId) -> Option<(bool, Way)> {
        let mut way = Vec::new();
        let mut seen = HashSet::new();
        let mut at = id;
        let mut is_in_limbo = false;
        // A forged journal may lead in circles.
        while at != ObjectId::ROOT && !is_in_limbo {
            let (inode, kind, parent, name) = self.places.get(&at)?;
            if !seen.insert(at) || (at != id && *kind != FileKind::Directory) {
                return None;
            }
            is_in_limbo = name.is_empty();
            let name = match is_in_limbo {
                true => inode.to_string().into_bytes(),
                false => name.clone(),
            };
            way.push((*inode, name));
            at = *parent;
        }
        way.reverse();
        Some((is_in_limbo, way))
    }
}

/// Opens what has this name, if it has this inode and kind.
fn open_at<L: Lower>(
    lower: &L,
    directory: &L::Handle,
    name: &[u8],
    wanted: (u64, FileKind),
) -> io::Result<Option<L::Handle>> {
    let stat = found(lower.stat_at(directory, name))?;
    if stat.is_none_or(|stat| (stat.inode, stat.kind) != wanted) {
        return Ok(None);
    }
    found(lower.open(directory, name, false))
}
