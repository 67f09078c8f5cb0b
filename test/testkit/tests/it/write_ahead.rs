//! Commits while an apply writes content.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail the test")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use mobifs_base::{
    Attributes, ByteRange, DeviceNumber, Entry, FileKind, Name, ObjectId, ObjectState, PAGE_BYTES,
    PAGE_BYTES_U64, Page, PageIndex, Timestamp,
};
use mobifs_store::{Gate, JournalOptions, JournalStore, Store, Transaction};
use mobifs_testkit::crash::{Calls, CrashLower, Fate, Fault, Harm};

/// Pages of the file.
const PAGES: u64 = 24;
/// A commit that waits so long waits for ever.
const PATIENCE: Duration = Duration::from_secs(60);

type Content = Vec<u8>;
/// Makes a store with a file, which has this content.
type Begin = fn(&CrashLower) -> (Arc<JournalStore<Gate<CrashLower>>>, ObjectId, Content);

fn open(lower: &CrashLower) -> JournalStore<Gate<CrashLower>> {
    open_with_journal(lower, 1 << 20)
}

fn open_with_journal(lower: &CrashLower, journal_bytes: u64) -> JournalStore<Gate<CrashLower>> {
    let options = JournalOptions {
        journal_bytes,
        direct_bytes_max: Some(8 << 10),
        uuid_if_new: [7; 16],
        ahead_pages_min: 1,
        ..JournalOptions::default()
    };
    JournalStore::open(Gate::new(lower.clone()), &options)
        .unwrap()
        .0
}

/// A transaction that changes a file.
#[derive(Clone, Debug, Default)]
struct Change {
    size: u64,
    created: bool,
    zeroed: Vec<ByteRange>,
    pages: Vec<(u64, u8)>,
}

impl Change {
    fn to(size_pages: u64) -> Self {
        Self {
            size: size_pages * PAGE_BYTES_U64,
            ..Self::default()
        }
    }

    fn with_pages(mut self, pages: impl IntoIterator<Item = u64>, fill: u8) -> Self {
        self.pages
            .extend(pages.into_iter().map(|page| (page, fill)));
        self
    }

    fn with_hole(mut self, pages: std::ops::Range<u64>) -> Self {
        let end = pages.end.saturating_mul(PAGE_BYTES_U64);
        self.zeroed
            .push(ByteRange::new(pages.start * PAGE_BYTES_U64, end));
        self
    }

    fn commit(&self, store: &impl Store, id: ObjectId) {
        let time = Timestamp::default();
        let mut transaction = Transaction::default();
        let state = ObjectState {
            id,
            created: self.created,
            attributes: Attributes {
                kind: FileKind::Regular,
                mode: 0o600,
                uid: 0,
                gid: 0,
                rdev: DeviceNumber::default(),
                size: self.size,
                nlink: 1,
                atime: time,
                mtime: time,
                ctime: time,
            },
            symlink_target: None,
            zeroed: self.zeroed.clone(),
            allocated: Vec::new(),
            xattrs: Vec::new(),
        };
        transaction.push(Entry::Object(state));
        if self.created {
            let entry = Entry::Dentry {
                parent: ObjectId::ROOT,
                name: Name::new(b"file").unwrap(),
                child: Some(id),
            };
            transaction.push(entry);
        }
        for &(index, fill) in &self.pages {
            let entry = Entry::Page {
                object: id,
                index: PageIndex(index),
                page: Page::new(&[fill; PAGE_BYTES]),
            };
            transaction.push(entry);
        }
        store.commit(transaction).unwrap();
    }

    /// The same on content in memory.
    fn perform(&self, content: &mut Content) {
        for range in &self.zeroed {
            let end = range.end.min(content.len() as u64) as usize;
            content[range.start.min(end as u64) as usize..end].fill(0);
        }
        content.resize(self.size as usize, 0);
        for &(index, fill) in &self.pages {
            let at = index as usize * PAGE_BYTES;
            content[at..at + PAGE_BYTES].fill(fill);
        }
    }
}

fn content_of(store: &impl Store) -> Content {
    let entries = store.list_directory(ObjectId::ROOT).unwrap();
    let id = entries[0].id;
    let size = store.object(id).unwrap().attributes.size;
    let mut content = vec![0; size as usize];
    store.read(id, 0, &mut content).unwrap();
    content
}

/// A file in the lower tree, every page of which has a newer one in the journal.
fn overwritten(lower: &CrashLower) -> (Arc<JournalStore<Gate<CrashLower>>>, ObjectId, Content) {
    let store = Arc::new(open(lower));
    let id = store.first_new_object();
    let mut content = Content::new();
    let first = Change {
        created: true,
        ..Change::to(PAGES).with_pages(0..PAGES, 1)
    };
    let second = Change::to(PAGES).with_pages(0..PAGES, 2);
    for change in [first, second] {
        store.apply().unwrap();
        change.commit(&*store, id);
        change.perform(&mut content);
    }
    (store, id, content)
}

/// A new file that only the journal has, with pages at so many places that none goes to its place
/// at once.
fn new_file(lower: &CrashLower) -> (Arc<JournalStore<Gate<CrashLower>>>, ObjectId, Content) {
    let store = Arc::new(open(lower));
    let id = store.first_new_object();
    let mut content = Content::new();
    let change = Change {
        created: true,
        ..Change::to(PAGES).with_pages((0..PAGES).step_by(2), 2)
    };
    change.commit(&*store, id);
    change.perform(&mut content);
    (store, id, content)
}

/// Has another thread commit a change when an apply has done so many calls; it must come back
/// before the apply goes on.
fn commit_after(
    lower: &CrashLower,
    calls: u64,
    store: &Arc<JournalStore<Gate<CrashLower>>>,
    id: ObjectId,
    change: &Change,
) -> Arc<AtomicU64> {
    let commits = Arc::new(AtomicU64::new(0));
    let (counter, store, change) = (Arc::clone(&commits), Arc::clone(store), change.clone());
    let mut left = calls;
    lower.set_hook(Box::new(move |_, _| {
        left = left.wrapping_sub(1);
        if left != 0 {
            return;
        }
        let (committed, waits) = mpsc::channel();
        let (store, change) = (Arc::clone(&store), change.clone());
        let thread = std::thread::spawn(move || {
            change.commit(&*store, id);
            committed.send(()).unwrap();
        });
        assert!(
            waits.recv_timeout(PATIENCE).is_ok(),
            "a commit waits for an apply that writes content"
        );
        thread.join().unwrap();
        counter.fetch_add(1, Ordering::SeqCst);
    }));
    commits
}

/// An apply kept every commit waiting while it wrote content, for as long as that took: beside an
/// app that overwrites, a durable `fsync` of another one took up to half a second.
#[test]
fn a_commit_does_not_wait_for_content_that_an_apply_writes() {
    // The pages in one call, and the call that makes them durable.
    for calls in [1, 2] {
        let lower = CrashLower::new();
        let (store, id, mut content) = overwritten(&lower);
        let change = Change::to(PAGES).with_pages([3], 7);
        change.perform(&mut content);
        let before = store.pending().apply_written_bytes;
        let commits = commit_after(&lower, calls, &store, id, &change);
        store.apply().unwrap();
        lower.clear_hook();
        assert_eq!(commits.load(Ordering::SeqCst), 1);
        assert!(content_of(&*store) == content);
        let written = store.pending().apply_written_bytes - before;
        assert_eq!(
            written / PAGE_BYTES_U64,
            PAGES + 1,
            "what was written ahead and did not change is not written again"
        );
        drop(store);
        assert!(content_of(&open(&lower)) == content);
    }
}

#[test]
fn what_changes_while_content_is_written_ahead_is_not_passed_over() {
    let changes = [
        Change::to(PAGES).with_pages([0, 3, PAGES - 1], 7),
        // The same content again.
        Change::to(PAGES).with_hole(3..4).with_pages([3], 2),
        Change::to(PAGES).with_hole(2..9),
        Change::to(PAGES).with_hole(2..9).with_pages([4], 7),
        // New data that goes to its place at once.
        Change::to(PAGES).with_hole(0..20).with_pages(0..20, 7),
        Change::to(5).with_hole(5..u64::MAX),
        Change::to(PAGES).with_hole(5..u64::MAX).with_pages([7], 7),
        Change::to(2 * PAGES).with_pages(PAGES..2 * PAGES, 7),
    ];
    // The call of writing ahead that makes content durable: all in one write before, or the stage
    // file made and one write for each page.
    let begins: [(Begin, u64); 2] = [(overwritten, 2), (new_file, 2 + PAGES / 2)];
    for (begin, sync_call) in begins {
        let mut cuts = 0;
        for change in &changes {
            for is_meanwhile in [false, true] {
                cuts += cut_each_call(begin, change, is_meanwhile.then_some(sync_call));
            }
        }
        assert!(cuts > 50, "{cuts}");
    }
}

/// Cuts the power after each call of the apply that follows a change, with nothing of what is not
/// durable, or all of it; returns how often. The change is committed after content was written
/// ahead, or at a call of that.
fn cut_each_call(begin: Begin, change: &Change, at_call: Option<u64>) -> u64 {
    for calls in 1.. {
        let lower = CrashLower::new();
        let (store, id, mut content) = begin(&lower);
        change.perform(&mut content);
        if let Some(calls) = at_call {
            commit_after(&lower, calls, &store, id, change);
            store.write_ahead();
            lower.clear_hook();
        } else {
            store.write_ahead();
            change.commit(&*store, id);
        }
        assert!(content_of(&*store) == content, "{change:?} is not shown");
        lower.cut_after(lower.operations() + calls);
        let is_cut = store.apply().is_err();
        for fate in [Fate::Land, Fate::Vanish] {
            let image = lower.crash_image(&mut |_| fate);
            let found = content_of(&open(&image));
            assert!(found == content, "{change:?} cut after {calls} calls");
        }
        if !is_cut {
            assert!(content_of(&*store) == content, "{change:?} after the apply");
            return calls - 1;
        }
    }
    unreachable!("an apply ends")
}

/// A new file of 64 MiB was written by the apply, half a second in which no commit was possible.
#[test]
fn a_large_new_file_is_written_ahead_of_the_apply() {
    let lower = CrashLower::new();
    let (store, _, content) = new_file(&lower);
    let written = || store.pending().apply_written_bytes / PAGE_BYTES_U64;
    store.write_ahead();
    assert_eq!(written(), PAGES / 2);
    store.apply().unwrap();
    assert_eq!(written(), PAGES / 2, "nothing is left to the apply");
    assert!(content_of(&*store) == content);
    drop(store);
    let image = lower.crash_image(&mut |_| Fate::Vanish);
    assert!(content_of(&open(&image)) == content);
}

/// A full disk refuses the file after it was written ahead, and its stage file is deleted: the next
/// apply writes all of it.
#[test]
fn a_new_file_that_was_written_ahead_may_be_refused() {
    let lower = CrashLower::new();
    let (store, id, mut content) = new_file(&lower);
    store.write_ahead();
    let change = Change::to(PAGES).with_pages([1], 9);
    change.commit(&*store, id);
    change.perform(&mut content);
    lower.set_fault(Some(Fault {
        first: lower.calls() + 1,
        count: u64::MAX,
        calls: Calls::Growing,
        errno: rustix::io::Errno::NOSPC.raw_os_error(),
        harm: Harm::Nothing,
    }));
    let _refused = store.apply();
    assert!(lower.failed_calls() > 0);
    lower.set_fault(None);
    assert!(content_of(&*store) == content);
    store.apply().unwrap();
    assert!(content_of(&*store) == content);
    let image = lower.crash_image(&mut |_| Fate::Vanish);
    assert!(content_of(&open(&image)) == content);
}

/// The journal writes of a commit wait for the device after data that was written ahead and has not
/// reached it yet; this was up to 4 MiB at random places, most of the time of a durable `fsync`.
#[test]
fn less_is_sent_to_the_device_at_once_while_others_commit() {
    const PAGES: u64 = 2048;
    const PORTION_PAGES_MIN: u64 = 32;
    let count = |commits: bool| {
        let lower = CrashLower::new();
        let store = Arc::new(open_with_journal(&lower, 16 << 20));
        let id = store.first_new_object();
        let created = Change {
            created: true,
            ..Change::to(PAGES).with_pages(0..PAGES, 1)
        };
        created.commit(&*store, id);
        store.apply().unwrap();
        Change::to(PAGES)
            .with_pages(0..PAGES, 2)
            .commit(&*store, id);
        let calls = Arc::new(AtomicU64::new(0));
        let most_unsynced = Arc::new(AtomicU64::new(0));
        let (calls_seen, most_seen) = (Arc::clone(&calls), Arc::clone(&most_unsynced));
        let committer = Arc::clone(&store);
        let mut written_before = store.pending().apply_written_bytes;
        lower.set_hook(Box::new(move |_, _| {
            let number = calls_seen.fetch_add(1, Ordering::SeqCst);
            let written = committer.pending().apply_written_bytes;
            let pages = (written - written_before) / PAGE_BYTES_U64;
            most_seen.fetch_max(pages, Ordering::SeqCst);
            written_before = written;
            if commits {
                let committer = Arc::clone(&committer);
                let change = Change::to(PAGES).with_pages([0], number as u8);
                let thread = std::thread::spawn(move || change.commit(&*committer, id));
                thread.join().unwrap();
            }
        }));
        store.write_ahead();
        lower.clear_hook();
        let most_unsynced = most_unsynced.load(Ordering::SeqCst);
        (calls.load(Ordering::SeqCst), most_unsynced)
    };
    // A write for each portion and a call that sends it to the device, and one that makes all durable.
    let portions = PAGES / PORTION_PAGES_MIN;
    assert_eq!(count(true), (2 * portions + 1, PORTION_PAGES_MIN));
    // Alone: 32, 64, …, 1024 and the rest, written in steps of 256.
    assert_eq!(count(false), (11 + 7 + 1, 256));
}

/// Where a page could not be made durable, the apply writes it again: a filesystem may drop what
/// it failed to write.
#[test]
fn content_that_failed_to_become_durable_is_written_again() {
    let lower = CrashLower::new();
    let (store, _, content) = overwritten(&lower);
    let before = store.pending().apply_written_bytes;
    lower.set_fault(Some(Fault {
        first: lower.calls() + 1,
        count: 1,
        calls: Calls::Syncs,
        errno: rustix::io::Errno::IO.raw_os_error(),
        harm: Harm::Lost,
    }));
    store.write_ahead();
    lower.set_fault(None);
    assert!(lower.failed_calls() > 0);
    store.apply().unwrap();
    assert!(content_of(&*store) == content);
    let written = store.pending().apply_written_bytes - before;
    assert_eq!(written / PAGE_BYTES_U64, 2 * PAGES);
    let image = lower.crash_image(&mut |_| Fate::Vanish);
    assert!(content_of(&open(&image)) == content);
}
