//! Mounting a copy of a store that was not unmounted, now and then with a forged transaction in its
//! journal: the copy shows the tree after some commit, or is refused.

use std::sync::Arc;

use arbitrary::{Arbitrary, Unstructured};
use mobifs_store::fuzzing::{append, encode};
use mobifs_store::{Gate, JournalStore, StoreError};
use mobifs_testkit::crash::CrashLower;
use mobifs_testkit::target::Target as _;

use super::arbitrary_record::records;
use super::exposed::Exposed;
use super::fence::Fence;
use super::history::{History, OPTIONS, start, tree};
use crate::noise::noises;
use crate::{Target, Verdict};

/// Most bytes of the input that become records; the rest is the history before.
const FORGED_BYTES: usize = 200;

/// A life, perhaps a forged transaction, a copy, a mount.
pub const JOURNAL_COPIED_MOUNT: Target = Target {
    name: "journal_copied_mount",
    run,
    seeds: noises,
};

#[derive(Arbitrary)]
struct Plan {
    /// Which numbers the copy's inodes get.
    numbers: u64,
    is_forged: bool,
}

fn run(input: &[u8]) -> Verdict {
    let mut u = Unstructured::new(input);
    let Ok(plan) = u.arbitrary::<Plan>() else {
        return Verdict::Refused;
    };
    let rest = u.take_rest();
    let forged_bytes = if plan.is_forged { FORGED_BYTES } else { 0 };
    let (forged, life) = rest.split_at(rest.len().min(forged_bytes));
    let (Ok(records), Ok(history)) = (
        records(&mut Unstructured::new(forged)),
        History::live(&mut Unstructured::new(life)),
    ) else {
        return Verdict::Refused;
    };
    if plan.is_forged {
        let mut journal = history.journal();
        let appended = append(&mut journal, records.len() as u32, &encode(&records));
        if !appended.unwrap_or_else(|error| panic!("before the forgery: {error}")) {
            return Verdict::Refused;
        }
        history.set_journal(&journal);
    }
    let copy = history.lower.copy(&mut dice(plan.numbers));
    let (store, report) = match JournalStore::open(Gate::new(Fence::new(copy.clone())), &OPTIONS) {
        Ok(opened) => opened,
        // The power is cut between two commits here: no apply was under way.
        Err(_) if plan.is_forged => return Verdict::Refused,
        Err(error) => panic!("a copy of a store that MobiFS wrote is refused: {error}"),
    };
    assert_eq!(report.copied, report.transactions > 0);
    let store = Arc::new(store);
    let mut target = start(store.clone());
    if plan.is_forged {
        // Files may be of any size now, and cannot all be read.
        let _tree = target.tree();
    } else {
        explain(&history, &mut target);
    }
    drop(target);
    store.close().unwrap_or_else(|error| panic!("{error}"));
    drop(store);
    reopen(&history, copy, plan.is_forged);
    Verdict::Taken
}

fn reopen(history: &History, copy: CrashLower, is_forged: bool) {
    let opened: Result<_, StoreError> = JournalStore::open(Gate::new(Fence::new(copy)), &OPTIONS);
    let (store, report) = opened.unwrap_or_else(|error| panic!("the second mount: {error}"));
    assert!(report.clean, "nothing is left to recover: {report:?}");
    if !is_forged {
        explain(history, &mut start(Arc::new(store)));
    }
}

fn explain(history: &History, target: &mut mobifs_testkit::target::VolumeTarget) {
    history
        .explain(&tree(target), &Exposed::default())
        .unwrap_or_else(|difference| panic!("a state that never was: {difference}"));
}

/// Numbers less than the argument, all derived from one seed.
fn dice(mut state: u64) -> impl FnMut(u64) -> u64 {
    move |below| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    }
}
