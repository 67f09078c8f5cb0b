//! What random histories rarely meet.

use std::sync::Arc;

use mobifs_base::{Entry, FileKind, Name, ObjectId, ObjectState, PAGE_BYTES, Page, PageIndex};
use mobifs_store::lower::{Create, Lower as _};
use mobifs_store::{
    Gate, JournalOptions, JournalStore, KnownLocation, KnownObject, RestartState, Resumed, Store,
    StoreError, Transaction,
};
use parking_lot::Mutex;

use super::recording_sink::RecordingSink;
use crate::crash::{Calls, CrashLower, Fate, Fault, Harm, Refusals};
use crate::entries::{plain_file, root_entry};

type TestStore = JournalStore<Gate<CrashLower>>;

const EIO: i32 = 5;

fn options() -> JournalOptions {
    JournalOptions {
        journal_bytes: 64 << 10,
        direct_bytes_max: Some(1 << 20),
        uuid_if_new: [7; 16],
        ..JournalOptions::default()
    }
}

fn open() -> (CrashLower, Arc<RecordingSink>, TestStore) {
    let (lower, sink) = (CrashLower::new(), Arc::new(RecordingSink::default()));
    let shared = Arc::<RecordingSink>::clone(&sink);
    let (store, _) =
        JournalStore::open_with_sink(Gate::new(lower.clone()), &options(), shared).unwrap();
    (lower, sink, store)
}

/// The successor of a process that is killed now.
fn resume(lower: &CrashLower, sink: &RecordingSink) -> (TestStore, Resumed) {
    let (lower, saved) = (lower.kill_image(), sink.saved());
    let sink = Arc::new(RecordingSink::of(&saved));
    JournalStore::resume(Gate::new(lower), &options(), sink, saved).unwrap()
}

fn state(id: ObjectId, created: bool, nlink: u32) -> Entry {
    Entry::Object(ObjectState {
        created,
        ..plain_file(id, PAGE_BYTES as u64, nlink)
    })
}

/// A transaction that makes a file of one page; with the tag 0 it has none.
fn creation(id: ObjectId, name: &str, tag: u64) -> Transaction {
    let page = Entry::Page {
        object: id,
        index: PageIndex(0),
        page: Page::new(&[1; PAGE_BYTES]),
    };
    let entries = vec![state(id, true, 1), root_entry(name, Some(id)), page];
    let mut transaction: Transaction = entries.into_iter().collect();
    transaction.tags.extend((tag != 0).then_some(tag));
    transaction
}

fn id(number: u64) -> ObjectId {
    ObjectId(ObjectId::FIRST_NEW.0 + number)
}

fn first_byte(store: &TestStore, id: ObjectId) -> u8 {
    let mut out = [0];
    store.read(id, 0, &mut out).unwrap();
    out[0]
}

fn journal_fault(harm: Harm) -> Option<Fault> {
    Some(Fault {
        first: 0,
        count: 1,
        calls: Calls::Journal,
        errno: EIO,
        harm,
    })
}

#[test]
fn a_failed_transaction_is_not_mistaken_for_what_comes_in_its_place() {
    let (lower, sink, store) = open();
    store.commit(creation(id(2), "a", 1)).unwrap();
    lower.set_fault(journal_fault(Harm::Nothing));
    assert!(store.commit(creation(id(4), "b", 2)).is_err());
    assert_eq!(sink.saved().intent, None);
    // This one has the sequence that the failed one would have had.
    store.commit(creation(id(6), "c", 0)).unwrap();
    let (resumed, report) = resume(&lower, &sink);
    assert_eq!(report.committed, [0; 0]);
    assert!(resumed.object(id(4)).is_err());
    resumed.commit(creation(id(4), "b", 2)).unwrap();
    assert_eq!(resumed.list_directory(ObjectId::ROOT).unwrap().len(), 3);
}

/// Fails a commit with a fault of a journal write, and so that the tail cannot be invalidated.
fn fail_without_taking_back(lower: &CrashLower, store: &TestStore, fault: Option<Fault>) {
    lower.set_fault(fault);
    lower.set_hook(Box::new(|_, lower| {
        if lower.failed_calls() == 1 {
            lower.set_fault(journal_fault(Harm::Nothing));
        }
    }));
    assert!(store.commit(creation(id(4), "b", 2)).is_err());
    lower.clear_hook();
    assert_eq!(lower.failed_calls(), 2);
    lower.set_fault(None);
}

#[test]
fn a_failed_transaction_counts_as_long_as_it_may_be_found() {
    let (lower, sink, store) = open();
    store.commit(creation(id(2), "a", 1)).unwrap();
    fail_without_taking_back(&lower, &store, journal_fault(Harm::Everything));
    let (resumed, report) = resume(&lower, &sink);
    assert_eq!(report.committed, [2]);
    assert_eq!(first_byte(&resumed, id(4)), 1);
    // The tail is invalidated before anything else is written, and then the transaction does not
    // count.
    store.apply().unwrap();
    assert_eq!(sink.saved().intent, None);
    let (resumed, report) = resume(&lower, &sink);
    assert_eq!(report.committed, [0; 0]);
    assert!(resumed.object(id(4)).is_err());
}

#[test]
fn a_commit_counts_also_when_an_apply_began_a_new_epoch_after_it() {
    let (lower, sink, store) = open();
    store.commit(creation(id(2), "a", 1)).unwrap();
    store.commit(creation(id(4), "b", 2)).unwrap();
    store.apply().unwrap();
    assert_eq!(resume(&lower, &sink).1.committed, [2]);
}

/// The failed write is visible to reads, and never reaches the medium unless it is repeated.
fn fail_and_give_up(lower: &CrashLower, store: &TestStore) {
    let fault = journal_fault(Harm::Lost).map(|fault| Fault {
        calls: Calls::Syncs,
        ..fault
    });
    fail_without_taking_back(lower, store, fault);
}

/// What is there after a power cut that loses everything that is not durable.
fn names_after_a_cut(lower: &CrashLower) -> usize {
    let cut = lower.crash_image(&mut |_| Fate::Vanish);
    let (store, _) = JournalStore::open(Gate::new(cut), &options()).unwrap();
    store.list_directory(ObjectId::ROOT).unwrap().len()
}

#[test]
fn a_successor_makes_durable_what_its_predecessor_could_not() {
    let (lower, sink, store) = open();
    store.commit(creation(id(2), "a", 1)).unwrap();
    fail_and_give_up(&lower, &store);
    let (lower, saved) = (lower.kill_image(), sink.saved());
    let sink = Arc::new(RecordingSink::of(&saved));
    let resumed = JournalStore::resume(Gate::new(lower.clone()), &options(), sink, saved);
    let (store, report) = resumed.unwrap();
    assert_eq!(report.committed, [2]);
    assert_eq!(names_after_a_cut(&lower), 2);
    store.commit(creation(id(6), "c", 3)).unwrap();
    assert_eq!(names_after_a_cut(&lower), 3);
}

/// The process that wrote it has ended, and the machine kept running.
#[test]
fn a_mount_makes_durable_what_it_has_found() {
    let (lower, _, store) = open();
    store.commit(creation(id(2), "a", 1)).unwrap();
    fail_and_give_up(&lower, &store);
    drop(store);
    let (store, report) = JournalStore::open(Gate::new(lower.clone()), &options()).unwrap();
    assert_eq!(report.transactions, 2);
    assert_eq!(names_after_a_cut(&lower), 2);
    store.commit(creation(id(6), "c", 3)).unwrap();
    assert_eq!(names_after_a_cut(&lower), 3);
}

#[test]
fn what_was_spilled_is_newer_than_what_is_pending() {
    let (lower, sink, store) = open();
    store.commit(creation(id(2), "a", 1)).unwrap();
    store.pin(id(2));
    let entries = vec![state(id(2), false, 0), root_entry("a", None)];
    store.commit(Transaction::tagged(2, entries)).unwrap();
    let newer = Page::new(&[2; PAGE_BYTES]);
    store.spill(id(2), &[(PageIndex(0), newer)]).unwrap();
    assert_eq!(first_byte(&store, id(2)), 2);
    let (resumed, _) = resume(&lower, &sink);
    assert_eq!(first_byte(&resumed, id(2)), 2);
    resumed.unpin(id(2));
    assert!(resumed.object(id(2)).is_err());
}

#[test]
fn zeros_over_a_spilled_page_count() {
    let (lower, sink, store) = open();
    store.pin(id(2));
    let spilled = Page::new(&[2; PAGE_BYTES]);
    store.spill(id(2), &[(PageIndex(0), spilled)]).unwrap();
    let mut transaction = creation(id(2), "a", 1);
    transaction.pages.clear();
    transaction.push(Entry::Page {
        object: id(2),
        index: PageIndex(0),
        page: Page::default(),
    });
    store.commit(transaction).unwrap();
    assert_eq!(first_byte(&store, id(2)), 0);
    assert_eq!(first_byte(&resume(&lower, &sink).0, id(2)), 0);
}

#[test]
fn names_that_lead_through_endless_directories_lead_nowhere() {
    let (lower, sink, store) = open();
    store.close().unwrap();
    let name = Name::new(b"d").unwrap();
    let chain = (1..100_000).map(|number| {
        let location = KnownLocation {
            inode: 1_000_000 + number,
            kind: FileKind::Directory,
            names: vec![(id(number + 1), name.clone())],
            in_limbo: false,
            in_stage: false,
        };
        let known = KnownObject {
            location: Some(location),
            ..KnownObject::default()
        };
        (id(number), known)
    });
    let saved = RestartState {
        objects: chain.collect(),
        ..sink.saved()
    };
    let (store, _) = JournalStore::resume(
        Gate::new(lower),
        &options(),
        Arc::new(RecordingSink::of(&saved)),
        saved,
    )
    .unwrap();
    // Without a stack overflow on the way.
    let error = store.object(id(1)).unwrap_err();
    assert!(matches!(error, StoreError::Unknown(_)), "{error}");
}

/// Kills after each call of an apply that is refused to write a new file, which it then deletes from `stage/`.
fn killed_while_a_file_is_refused() -> Vec<(CrashLower, RestartState)> {
    let (lower, sink, store) = open();
    store.commit(creation(id(2), "a", 1)).unwrap();
    // Made, and not yet with its name.
    let fault = journal_fault(Harm::Nothing);
    lower.set_fault(fault.map(|fault| Fault {
        calls: Calls::Syncs,
        ..fault
    }));
    assert!(store.apply().is_err());
    lower.set_fault(None);
    lower.set_refusals(Refusals {
        file_bytes_max: Some(100),
        ..Refusals::default()
    });
    let instants = Arc::new(Mutex::new(Vec::new()));
    let (seen, saving) = (Arc::clone(&instants), Arc::clone(&sink));
    lower.set_hook(Box::new(move |_, lower| {
        seen.lock().push((lower.kill_image(), saving.saved()));
    }));
    assert!(store.apply().is_err());
    lower.clear_hook();
    let instants = std::mem::take(&mut *instants.lock());
    assert!(instants.len() > 2, "{}", instants.len());
    instants
}

/// The successor of a process that was killed in this state.
fn successor(lower: &CrashLower, saved: RestartState) -> TestStore {
    let sink = Arc::new(RecordingSink::of(&saved));
    let resumed = JournalStore::resume(Gate::new(lower.clone()), &options(), sink, saved);
    resumed.unwrap().0
}

/// Found by the kill search with seed 1061: the process was killed before it could record that it had deleted a
/// stage file, and every later apply missed the file.
#[test]
fn a_stage_file_that_the_last_call_before_a_kill_deleted_is_made_again() {
    for (number, (lower, saved)) in killed_while_a_file_is_refused().into_iter().enumerate() {
        lower.set_refusals(Refusals::default());
        // It takes the inode, if that is free.
        let root = lower.root().unwrap();
        lower.create(&root, b"other", Create::Regular).unwrap();
        let store = successor(&lower, saved);
        let applied = store.apply();
        assert!(applied.is_ok(), "killed at instant {number}: {applied:?}");
        assert_eq!(first_byte(&store, id(2)), 1);
    }
}

/// Found by the kill search with seed 1106: after such a kill the next commit recorded the deleted file as the
/// place of the object, and the next mount took the journal for a forged one: it did not come up before
/// all of it was applied, which the lower filesystem refused.
#[test]
fn after_a_kill_that_left_an_object_nowhere_a_mount_comes_up() {
    for (number, (lower, saved)) in killed_while_a_file_is_refused().into_iter().enumerate() {
        let store = successor(&lower, saved);
        let touched = Transaction::tagged(2, vec![state(id(2), false, 1)]);
        store.commit(touched).unwrap();
        drop(store);
        let opened = JournalStore::open(Gate::new(lower), &options());
        let (store, _) =
            opened.unwrap_or_else(|error| panic!("killed at instant {number}: {error}"));
        assert_eq!(first_byte(&store, id(2)), 1);
    }
}
