//! The journal store's knowledge of files that decides where a page goes. The decision
//! itself is the store's own ([`placement`]).

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::convert::Infallible;

use mobifs_base::{ByteRange, Name, ObjectId, ObjectState, PAGE_BYTES_U64, PageIndex, RangeSet};
use mobifs_store::placement::{self, FileEnd, Known, Placement};

use super::stream::ObjectNumber;

/// A page of a file.
pub(super) type FilePage = (ObjectNumber, u64);
/// A directory and the name of an entry of it.
type Place = (ObjectId, Name);

/// What a transaction changes of one file.
#[derive(Clone, Debug, Default)]
struct ChangedFile {
    /// The transaction makes it.
    created: bool,
    /// With this transaction, in bytes.
    size: u64,
    /// Ranges whose content is gone.
    zeroed: Vec<ByteRange>,
    /// Numbers of the pages that it writes.
    pages: BTreeSet<u64>,
}

impl ChangedFile {
    fn new(state: &ObjectState) -> Self {
        Self {
            created: state.created,
            size: state.attributes.size,
            zeroed: state.zeroed.clone(),
            pages: BTreeSet::new(),
        }
    }
}

/// A transaction without its content.
#[derive(Clone, Debug, Default)]
pub(super) struct Transaction {
    files: BTreeMap<ObjectNumber, ChangedFile>,
    /// Entries that name another file than before, or none.
    names: Vec<(Place, Option<ObjectNumber>)>,
    /// Content of the files that it makes, in bytes.
    created_bytes: u64,
    /// Entries that are no pages.
    pub(super) entries: u64,
}

impl Transaction {
    /// What a transaction of the engine changes of the files that have a number.
    pub(super) fn new(
        transaction: &mobifs_base::Transaction,
        numbers: &BTreeMap<ObjectId, ObjectNumber>,
    ) -> Self {
        let number = |id: &ObjectId| numbers.get(id).copied();
        let states = transaction.objects.iter();
        let files = states.filter_map(|state| {
            let mut file = ChangedFile::new(state);
            if let Some(pages) = transaction.pages.get(&state.id) {
                file.pages = pages.keys().map(|index| index.0).collect();
            }
            Some((number(&state.id)?, file))
        });
        let dentries = transaction.dentries.iter();
        let names = dentries.map(|(parent, name, child)| {
            let place = (*parent, name.clone());
            (place, child.as_ref().and_then(number))
        });
        Self {
            files: files.collect(),
            names: names.collect(),
            created_bytes: placement::created_bytes(transaction),
            entries: (transaction.objects.len() + transaction.dentries.len()) as u64,
        }
    }

    /// All pages, file by file.
    pub(super) fn pages(&self) -> impl Iterator<Item = FilePage> {
        let files = self.files.iter();
        files.flat_map(|(&object, file)| file.pages.iter().map(move |&page| (object, page)))
    }
}

/// Where the pages of a transaction go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Placed {
    pub(super) in_place: Vec<FilePage>,
    pub(super) journal: Vec<FilePage>,
    /// Files of which the journal has to say before that they are empty after their end.
    pub(super) announced: u64,
}

/// A file with changes that are not applied.
#[derive(Clone, Debug, Default)]
struct PendingFile {
    created: bool,
    size: u64,
    in_place: RangeSet,
    zeroed: RangeSet,
    /// Pages in the journal.
    pages: BTreeSet<u64>,
}

impl PendingFile {
    fn drop_pages(&mut self, range: ByteRange) {
        let first = range.start / PAGE_BYTES_U64;
        let end = if range.end == u64::MAX {
            u64::MAX
        } else {
            range.end / PAGE_BYTES_U64
        };
        self.pages.retain(|page| !(first..end).contains(page));
    }

    fn zero(&mut self, range: ByteRange) {
        self.drop_pages(range);
        self.in_place.remove(range);
        self.zeroed.insert(range);
    }

    fn put_in_place(&mut self, range: ByteRange) {
        self.drop_pages(range);
        self.zeroed.remove(range);
        self.in_place.insert(range);
    }
}

/// The files of a store.
#[derive(Debug, Default)]
pub(super) struct StoredFiles {
    pending: HashMap<ObjectNumber, PendingFile>,
    /// Names that are not applied.
    names: HashMap<Place, Option<ObjectNumber>>,
    /// Sizes of the files of the lower filesystem; 0 of those that are missing.
    lower_bytes: HashMap<ObjectNumber, u64>,
}

impl StoredFiles {
    /// A file that the lower filesystem has had since before.
    pub(super) fn add_initial(&mut self, object: ObjectNumber, bytes: u64) {
        self.lower_bytes.insert(object, bytes);
    }

    /// Takes a transaction; says where its pages go.
    pub(super) fn commit(&mut self, transaction: &Transaction) -> Placed {
        let mut placed = Placed::default();
        for (&object, file) in &transaction.files {
            let placement = self.place(object, file, transaction.created_bytes);
            placed.announced += u64::from(placement.empty_from.is_some());
            self.merge(object, file, &placement);
            for &page in &file.pages {
                let offset = PageIndex(page).offset();
                let is_in = |part: &ByteRange| part.start <= offset && offset < part.end;
                if placement.in_place.iter().any(is_in) {
                    placed.in_place.push((object, page));
                } else {
                    placed.journal.push((object, page));
                }
            }
        }
        self.names.extend(transaction.names.iter().cloned());
        placed
    }

    /// Applies everything. Returns the pages that the journal held, without those of files that
    /// were made and deleted since the last time.
    pub(super) fn apply(&mut self) -> Vec<FilePage> {
        let named: HashSet<ObjectNumber> =
            self.names.drain().filter_map(|(_, file)| file).collect();
        let mut pages = Vec::new();
        for (object, file) in self.pending.drain() {
            if file.created && !named.contains(&object) {
                continue;
            }
            self.lower_bytes.insert(object, file.size);
            let held = file.pages.into_iter();
            let held = held.filter(|&page| PageIndex(page).offset() < file.size);
            pages.extend(held.map(|page| (object, page)));
        }
        pages.sort_unstable();
        pages
    }

    fn place(&self, object: ObjectNumber, file: &ChangedFile, created_bytes: u64) -> Placement {
        let pending = self.pending.get(&object);
        let lower_bytes = self.lower_bytes.get(&object).copied().unwrap_or(0);
        let known = if file.created || pending.is_some_and(|pending| pending.created) {
            Known::Created {
                in_place: pending.map(|pending| &pending.in_place),
            }
        } else {
            Known::Lower {
                zeroed: pending.map(|pending| &pending.zeroed),
            }
        };
        let committed_bytes = pending.map_or(lower_bytes, |pending| pending.size);
        let offset = committed_bytes
            .max(lower_bytes)
            .next_multiple_of(PAGE_BYTES_U64);
        let last = pending.and_then(|pending| pending.pages.last());
        let end = FileEnd {
            offset,
            has_pages_after: last.is_some_and(|&last| PageIndex(last).offset() >= offset),
            is_allocated: false,
        };
        let pages = file.pages.iter().map(|&page| PageIndex(page));
        let Ok(placement) =
            placement::place(known, created_bytes, pages, || Ok::<_, Infallible>(end));
        placement
    }

    fn merge(&mut self, object: ObjectNumber, file: &ChangedFile, placement: &Placement) {
        let pending = self.pending.entry(object).or_default();
        if let Some(offset) = placement.empty_from {
            pending.zero(ByteRange::from(offset));
        }
        pending.created |= file.created;
        pending.size = file.size;
        for &range in &file.zeroed {
            pending.zero(range);
        }
        pending.pages.extend(&file.pages);
        let lower_bytes = self.lower_bytes.entry(object).or_default();
        for &part in &placement.in_place {
            pending.put_in_place(part);
            *lower_bytes = part.end.min(file.size.max(part.start)).max(*lower_bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: ObjectNumber = ObjectNumber(0);

    fn name() -> Place {
        (ObjectId::ROOT, Name::new(b"file").unwrap())
    }

    fn transaction(pages: impl Iterator<Item = u64>, bytes: u64, created: bool) -> Transaction {
        let file = ChangedFile {
            created,
            size: bytes,
            zeroed: Vec::new(),
            pages: pages.collect(),
        };
        let created_bytes = file.pages.len() as u64 * PAGE_BYTES_U64;
        Transaction {
            created_bytes: if created { created_bytes } else { 0 },
            files: BTreeMap::from([(FILE, file)]),
            names: created.then(|| (name(), Some(FILE))).into_iter().collect(),
            entries: 1 + u64::from(created),
        }
    }

    fn write(files: &mut StoredFiles, pages: std::ops::Range<u64>, created: bool) -> Placed {
        let bytes = pages.end * PAGE_BYTES_U64;
        files.commit(&transaction(pages, bytes, created))
    }

    #[test]
    fn a_page_that_is_in_place_is_journaled_when_it_is_written_again() {
        let mut files = StoredFiles::default();
        let first = write(&mut files, 0..32, true);
        assert_eq!((first.in_place.len(), first.journal.len()), (32, 0));
        let again = write(&mut files, 0..32, false);
        assert_eq!((again.in_place.len(), again.journal.len()), (0, 32));
        assert_eq!(files.apply().len(), 32);
        let applied = write(&mut files, 0..32, false);
        assert_eq!((applied.in_place.len(), applied.journal.len()), (0, 32));
    }

    #[test]
    fn a_file_that_grows_is_announced_once_in_an_epoch() {
        let mut files = StoredFiles::default();
        write(&mut files, 0..1, true);
        assert_eq!(files.apply(), [(FILE, 0)]);
        let grown = write(&mut files, 1..33, false);
        assert_eq!((grown.in_place.len(), grown.announced), (32, 1));
        let further = write(&mut files, 33..65, false);
        assert_eq!((further.in_place.len(), further.announced), (32, 0));
    }

    #[test]
    fn what_an_old_file_has_is_overwritten_through_the_journal() {
        let mut files = StoredFiles::default();
        files.add_initial(FILE, 32 * PAGE_BYTES_U64);
        let written = write(&mut files, 0..64, false);
        assert_eq!((written.in_place.len(), written.journal.len()), (32, 32));
    }

    #[test]
    fn a_megabyte_of_short_new_runs_goes_to_its_place() {
        let mut files = StoredFiles::default();
        let pages = (0..512).step_by(2);
        let placed = files.commit(&transaction(pages, 512 * PAGE_BYTES_U64, true));
        assert_eq!(placed.in_place.len(), 256);
    }

    #[test]
    fn what_was_made_and_deleted_is_not_applied() {
        let mut files = StoredFiles::default();
        write(&mut files, 0..4, true);
        files.commit(&Transaction {
            names: vec![(name(), None)],
            ..Transaction::default()
        });
        assert_eq!(files.apply(), []);
    }
}
