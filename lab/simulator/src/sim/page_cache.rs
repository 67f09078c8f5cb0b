//! The filesystems to compare with: a page cache that is flushed every few seconds and by
//! `fsync`.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;

use mobifs_base::PAGE_BYTES_U64;
use mobifs_trace::DeviceState;

use super::SimulationError;
use super::device::{Flush, FlushShape, Storage};
use super::outcome::{AtRisk, FlushReason, Outcome};
use super::stream::{Action, AppNumber, ObjectNumber, Step, Stream};

/// Memory that one change of names or attributes is taken to occupy, in bytes.
const ENTRY_BYTES: u64 = 256;

/// How a filesystem flushes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlushRules {
    /// Everything is flushed at each multiple of this, in nanoseconds.
    pub interval_ns: u64,
    /// What a flush looks like to the device.
    pub shape: FlushShape,
}

#[derive(Default)]
struct CachedFile {
    /// Dirty pages, and since when.
    dirty: BTreeMap<u64, u64>,
}

/// A page cache under [`FlushRules`].
pub struct PageCache<'s> {
    stream: &'s Stream,
    rules: FlushRules,
    files: HashMap<ObjectNumber, CachedFile>,
    apps: Vec<CachedApp>,
    next_flush_ns: u64,
    outcome: Outcome,
    storage: Storage,
}

/// What is dirty of one app.
#[derive(Default)]
struct CachedApp {
    /// Dirty pages by age.
    by_age: BTreeSet<(u64, ObjectNumber, u64)>,
    /// Names and attributes: since when, and how many.
    entries_since_ns: Option<u64>,
    entries: u64,
}

impl<'s> PageCache<'s> {
    /// Runs a stream through it; flushes everything at the end.
    ///
    /// # Errors
    /// The device refuses what is written to it.
    pub fn run(
        stream: &'s Stream,
        rules: FlushRules,
        storage: Storage,
    ) -> Result<(Outcome, Storage), SimulationError> {
        let mut cache = Self {
            stream,
            rules,
            files: HashMap::new(),
            apps: stream.apps.iter().map(|_| CachedApp::default()).collect(),
            next_flush_ns: rules.interval_ns,
            outcome: Outcome::new(stream.apps.len()),
            storage,
        };
        for step in &stream.steps {
            cache.flush_due(step.time_ns)?;
            cache.perform(step)?;
        }
        cache.flush_due(stream.duration_ns)?;
        cache.flush_all(stream.duration_ns, FlushReason::EndOfTrace)?;
        cache.outcome.end(stream.duration_ns);
        Ok((cache.outcome, cache.storage))
    }

    fn flush_due(&mut self, now_ns: u64) -> Result<(), SimulationError> {
        while self.next_flush_ns <= now_ns {
            self.flush_all(self.next_flush_ns, FlushReason::Wanted)?;
            // Quiet hours need no rounds.
            let is_clean = self.files.values().all(|file| file.dirty.is_empty());
            let rounds = if is_clean {
                (now_ns - self.next_flush_ns) / self.rules.interval_ns + 1
            } else {
                1
            };
            self.next_flush_ns += rounds * self.rules.interval_ns;
        }
        Ok(())
    }

    fn perform(&mut self, step: &Step) -> Result<(), SimulationError> {
        let now_ns = step.time_ns;
        match step.action.page_change() {
            Some(change) if change.is_written => {
                self.write(now_ns, change.object, change.pages);
            }
            Some(change) => self.drop_pages(now_ns, change.object, change.pages),
            None => {}
        }
        match step.action {
            Action::Resize { object, .. }
            | Action::Punch { object, .. }
            | Action::Remove { object, .. }
            | Action::Create { object, .. }
            | Action::Link { object, .. }
            | Action::Rename { object, .. }
            | Action::SetAttributes { object } => self.change_entry(now_ns, object),
            Action::Sync { object } => self.sync(now_ns, step.app, object)?,
            Action::SyncAll => self.flush_all(now_ns, FlushReason::Wanted)?,
            // The kernel syncs before it sleeps, and init before it switches off.
            Action::Device(DeviceState::Suspend | DeviceState::Shutdown) => {
                self.flush_all(now_ns, FlushReason::Wanted)?;
            }
            Action::Write { .. } | Action::Release { .. } | Action::User | Action::Device(_) => {}
        }
        Ok(())
    }

    fn app_of(&self, object: ObjectNumber) -> AppNumber {
        self.stream.objects[object.index()].app
    }

    fn write(&mut self, now_ns: u64, object: ObjectNumber, pages: Range<u64>) {
        let app = self.app_of(object);
        let file = self.files.entry(object).or_default();
        for page in pages {
            let counts = self.outcome.app_mut(app);
            counts.written_pages += 1;
            match file.dirty.entry(page) {
                Entry::Occupied(_) => counts.overwritten_pages += 1,
                Entry::Vacant(clean) => {
                    clean.insert(now_ns);
                    self.apps[app.index()].by_age.insert((now_ns, object, page));
                }
            }
        }
        self.show_risk(now_ns, app);
    }

    fn change_entry(&mut self, now_ns: u64, object: ObjectNumber) {
        let app = self.app_of(object);
        let cached = &mut self.apps[app.index()];
        cached.entries_since_ns.get_or_insert(now_ns);
        cached.entries += 1;
        self.show_risk(now_ns, app);
    }

    fn drop_pages(&mut self, now_ns: u64, object: ObjectNumber, pages: Range<u64>) {
        let Some(file) = self.files.get_mut(&object) else {
            return;
        };
        let app = self.stream.objects[object.index()].app;
        let dropped: Vec<(u64, u64)> = file.dirty.range(pages).map(|(&p, &t)| (p, t)).collect();
        for (page, since_ns) in &dropped {
            file.dirty.remove(page);
            self.apps[app.index()]
                .by_age
                .remove(&(*since_ns, object, *page));
        }
        self.outcome.app_mut(app).overwritten_pages += dropped.len() as u64;
        self.show_risk(now_ns, app);
    }

    /// `fsync`: the file's pages, and with the journal all names and attributes.
    fn sync(
        &mut self,
        now_ns: u64,
        caller: AppNumber,
        object: ObjectNumber,
    ) -> Result<(), SimulationError> {
        let pages = self.take_dirty(now_ns, object);
        let entries = self.take_entries(now_ns);
        if pages.is_empty() && entries == 0 {
            return Ok(());
        }
        let app = self.app_of(object);
        let counts = self.outcome.app_mut(app);
        counts.note_flush(now_ns, FlushReason::Wanted);
        self.storage.flush(&Flush {
            at_ns: now_ns,
            pages: &pages,
            entries,
            shape: self.rules.shape,
            waiting: Some(caller),
        })?;
        self.show_risk(now_ns, app);
        Ok(())
    }

    fn flush_all(&mut self, now_ns: u64, reason: FlushReason) -> Result<(), SimulationError> {
        let mut dirty: Vec<ObjectNumber> = self
            .files
            .iter()
            .filter(|(_, file)| !file.dirty.is_empty())
            .map(|(&object, _)| object)
            .collect();
        dirty.sort_unstable();
        let mut pages = Vec::new();
        let mut apps = BTreeSet::new();
        for object in dirty {
            apps.insert(self.app_of(object));
            pages.append(&mut self.take_dirty(now_ns, object));
        }
        let entries = self.take_entries(now_ns);
        if pages.is_empty() && entries == 0 {
            return Ok(());
        }
        for &app in &apps {
            self.outcome.app_mut(app).note_flush(now_ns, reason);
            self.show_risk(now_ns, app);
        }
        self.storage.flush(&Flush {
            at_ns: now_ns,
            pages: &pages,
            entries,
            shape: self.rules.shape,
            waiting: None,
        })
    }

    fn take_dirty(&mut self, now_ns: u64, object: ObjectNumber) -> Vec<(ObjectNumber, u64)> {
        let Some(file) = self.files.get_mut(&object) else {
            return Vec::new();
        };
        let app = self.stream.objects[object.index()].app;
        let dirty = std::mem::take(&mut file.dirty);
        for (&page, &since_ns) in &dirty {
            self.apps[app.index()]
                .by_age
                .remove(&(since_ns, object, page));
        }
        self.outcome.app_mut(app).flushed_pages += dirty.len() as u64;
        self.show_risk(now_ns, app);
        dirty.into_keys().map(|page| (object, page)).collect()
    }

    /// Changed names and attributes, of all apps: a journal has one running transaction.
    fn take_entries(&mut self, now_ns: u64) -> u64 {
        let mut entries = 0;
        for app in 0..self.apps.len() {
            let cached = &mut self.apps[app];
            if cached.entries_since_ns.take().is_some() {
                entries += std::mem::take(&mut cached.entries);
                self.show_risk(now_ns, AppNumber(app as u32));
            }
        }
        entries
    }

    fn show_risk(&mut self, now_ns: u64, app: AppNumber) {
        let cached = &self.apps[app.index()];
        let oldest_page_ns = cached.by_age.first().map(|&(since_ns, ..)| since_ns);
        let since = [oldest_page_ns, cached.entries_since_ns];
        let pages = cached.by_age.len() as u64;
        let risk = AtRisk {
            since_ns: since.into_iter().flatten().min(),
            bytes: pages * PAGE_BYTES_U64 + cached.entries * ENTRY_BYTES,
        };
        self.outcome.at_risk(now_ns, app, risk);
    }
}
