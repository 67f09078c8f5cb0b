//! Mounting a store whose journal has a forged transaction with valid checksums: whatever it says,
//! the mount returns, and accesses nothing outside the store.

use std::sync::Arc;

use arbitrary::Unstructured;
use mobifs_store::fuzzing::{append, encode};
use mobifs_store::{Gate, JournalStore};
use mobifs_testkit::target::Target as _;

use super::arbitrary_record::records;
use super::fence::Fence;
use super::history::{History, OPTIONS, start};
use crate::noise::noises;
use crate::{Target, Verdict};

/// Most bytes of the input that become records; the rest is the history before.
const FORGED_BYTES: usize = 400;

/// A life, a forged transaction, a mount.
pub const JOURNAL_FORGED_MOUNT: Target = Target {
    name: "journal_forged_mount",
    run,
    seeds: noises,
};

fn run(input: &[u8]) -> Verdict {
    let (forged, life) = input.split_at(input.len().min(FORGED_BYTES));
    let (Ok(records), Ok(history)) = (
        records(&mut Unstructured::new(forged)),
        History::live(&mut Unstructured::new(life)),
    ) else {
        return Verdict::Refused;
    };
    let mut journal = history.journal();
    let appended = append(&mut journal, records.len() as u32, &encode(&records));
    if !appended.unwrap_or_else(|error| panic!("before the forgery: {error}")) {
        return Verdict::Refused;
    }
    history.set_journal(&journal);
    let fence = Fence::new(history.lower.clone());
    let Ok((store, _report)) = JournalStore::open(Gate::new(fence), &OPTIONS) else {
        return Verdict::Refused;
    };
    let store = Arc::new(store);
    let mut target = start(store.clone());
    // Files may be of any size now, and cannot all be read.
    let _tree = target.tree();
    drop(target);
    store.close().unwrap_or_else(|error| panic!("{error}"));
    drop(store);
    let (_store, report) =
        JournalStore::open(Gate::new(Fence::new(history.lower.clone())), &OPTIONS)
            .unwrap_or_else(|error| panic!("the second mount: {error}"));
    assert!(report.clean, "nothing is left to recover: {report:?}");
    Verdict::Taken
}
