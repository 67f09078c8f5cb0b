//! What is dirty in the page cache of a filesystem, and since when.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;

use mobifs_base::PAGE_BYTES_U64;

use super::outcome::{AtRisk, Outcome};
use super::stream::{Action, AppNumber, ObjectNumber, Stream};

/// Memory that one change of names or attributes is taken to occupy, in bytes.
const ENTRY_BYTES: u64 = 256;

/// Dirty pages and changed names and attributes of all apps. What becomes of them is counted in an
/// [`Outcome`].
pub(super) struct Dirty<'s> {
    stream: &'s Stream,
    /// Dirty pages of each file, and since when. No file without any is here.
    files: HashMap<ObjectNumber, BTreeMap<u64, u64>>,
    apps: Vec<DirtyApp>,
    pages: u64,
    entries: u64,
}

/// What is dirty of one app.
#[derive(Default)]
struct DirtyApp {
    /// Dirty pages by age.
    by_age: BTreeSet<(u64, ObjectNumber, u64)>,
    /// Names and attributes: since when, and how many.
    entries_since_ns: Option<u64>,
    entries: u64,
}

/// Everything that was dirty.
pub(super) struct Taken {
    pub(super) pages: Vec<(ObjectNumber, u64)>,
    /// Changed names and attributes.
    pub(super) entries: u64,
    /// The apps of which there was content.
    pub(super) apps: BTreeSet<AppNumber>,
}

impl Taken {
    pub(super) const fn is_empty(&self) -> bool {
        self.pages.is_empty() && self.entries == 0
    }
}

impl<'s> Dirty<'s> {
    /// Nothing is.
    pub(super) fn new(stream: &'s Stream) -> Self {
        Self {
            stream,
            files: HashMap::new(),
            apps: stream.apps.iter().map(|_| DirtyApp::default()).collect(),
            pages: 0,
            entries: 0,
        }
    }

    /// Dirty pages of content.
    pub(super) const fn pages(&self) -> u64 {
        self.pages
    }

    pub(super) fn has(&self, object: ObjectNumber, page: u64) -> bool {
        let file = self.files.get(&object);
        file.is_some_and(|file| file.contains_key(&page))
    }

    /// Whether pages of the file are.
    pub(super) fn has_file(&self, object: ObjectNumber) -> bool {
        self.files.contains_key(&object)
    }

    pub(super) fn app_of(&self, object: ObjectNumber) -> AppNumber {
        self.stream.objects[object.index()].app
    }

    /// Takes in what an operation changes.
    pub(super) fn perform(&mut self, now_ns: u64, action: &Action, outcome: &mut Outcome) {
        match action.page_change() {
            Some(change) if change.is_written => {
                self.write(now_ns, change.object, change.pages, outcome);
            }
            Some(change) => self.drop_pages(now_ns, change.object, change.pages, outcome),
            None => {}
        }
        if let Some(object) = action.changed_entry() {
            self.change_entry(now_ns, object, outcome);
        }
    }

    fn write(
        &mut self,
        now_ns: u64,
        object: ObjectNumber,
        pages: Range<u64>,
        outcome: &mut Outcome,
    ) {
        let app = self.app_of(object);
        let file = self.files.entry(object).or_default();
        for page in pages {
            let counts = outcome.app_mut(app);
            counts.written_pages += 1;
            match file.entry(page) {
                Entry::Occupied(_) => counts.overwritten_pages += 1,
                Entry::Vacant(clean) => {
                    clean.insert(now_ns);
                    self.pages += 1;
                    self.apps[app.index()].by_age.insert((now_ns, object, page));
                }
            }
        }
        self.show_risk(now_ns, app, outcome);
    }

    fn change_entry(&mut self, now_ns: u64, object: ObjectNumber, outcome: &mut Outcome) {
        let app = self.app_of(object);
        let dirty = &mut self.apps[app.index()];
        dirty.entries_since_ns.get_or_insert(now_ns);
        dirty.entries += 1;
        self.entries += 1;
        self.show_risk(now_ns, app, outcome);
    }

    fn drop_pages(
        &mut self,
        now_ns: u64,
        object: ObjectNumber,
        pages: Range<u64>,
        outcome: &mut Outcome,
    ) {
        let Some(file) = self.files.get_mut(&object) else {
            return;
        };
        let app = self.stream.objects[object.index()].app;
        let dropped: Vec<(u64, u64)> = file.range(pages).map(|(&p, &t)| (p, t)).collect();
        for (page, since_ns) in &dropped {
            file.remove(page);
            let by_age = &mut self.apps[app.index()].by_age;
            by_age.remove(&(*since_ns, object, *page));
        }
        if file.is_empty() {
            self.files.remove(&object);
        }
        self.pages -= dropped.len() as u64;
        outcome.app_mut(app).overwritten_pages += dropped.len() as u64;
        self.show_risk(now_ns, app, outcome);
    }

    /// Takes out the pages of one file, which are flushed.
    pub(super) fn take_file(
        &mut self,
        now_ns: u64,
        object: ObjectNumber,
        outcome: &mut Outcome,
    ) -> Vec<(ObjectNumber, u64)> {
        let Some(file) = self.files.remove(&object) else {
            return Vec::new();
        };
        let app = self.app_of(object);
        for (&page, &since_ns) in &file {
            let by_age = &mut self.apps[app.index()].by_age;
            by_age.remove(&(since_ns, object, page));
        }
        self.pages -= file.len() as u64;
        outcome.app_mut(app).flushed_pages += file.len() as u64;
        self.show_risk(now_ns, app, outcome);
        file.into_keys().map(|page| (object, page)).collect()
    }

    /// Takes out the changed names and attributes of all apps: a journal has one running
    /// transaction.
    pub(super) fn take_entries(&mut self, now_ns: u64, outcome: &mut Outcome) -> u64 {
        for app in 0..self.apps.len() {
            let dirty = &mut self.apps[app];
            if dirty.entries_since_ns.take().is_some() {
                dirty.entries = 0;
                self.show_risk(now_ns, AppNumber(app as u32), outcome);
            }
        }
        std::mem::take(&mut self.entries)
    }

    /// Takes out everything, which is flushed.
    pub(super) fn take_all(&mut self, now_ns: u64, outcome: &mut Outcome) -> Taken {
        let mut files: Vec<ObjectNumber> = self.files.keys().copied().collect();
        files.sort_unstable();
        let mut taken = Taken {
            pages: Vec::new(),
            entries: 0,
            apps: BTreeSet::new(),
        };
        for object in files {
            taken.apps.insert(self.app_of(object));
            taken
                .pages
                .append(&mut self.take_file(now_ns, object, outcome));
        }
        taken.entries = self.take_entries(now_ns, outcome);
        taken
    }

    fn show_risk(&self, now_ns: u64, app: AppNumber, outcome: &mut Outcome) {
        let dirty = &self.apps[app.index()];
        let oldest_page_ns = dirty.by_age.first().map(|&(since_ns, ..)| since_ns);
        let since = [oldest_page_ns, dirty.entries_since_ns];
        let pages = dirty.by_age.len() as u64;
        let risk = AtRisk {
            since_ns: since.into_iter().flatten().min(),
            bytes: pages * PAGE_BYTES_U64 + dirty.entries * ENTRY_BYTES,
        };
        outcome.at_risk(now_ns, app, risk);
    }
}
