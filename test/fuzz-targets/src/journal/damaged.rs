//! Mounting a store whose journal was damaged: the mount is refused and changes nothing, or it
//! finds the tree after some commit, but for content that lost transactions had in place.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use arbitrary::{Arbitrary, Unstructured};
use mobifs_store::lower::JOURNAL_BLOCK_BYTES;
use mobifs_store::{Gate, JournalStore, StoreError};

use super::exposed::{Exposed, check_covered};
use super::fence::Fence;
use super::history::{History, OPTIONS, difference, start, tree};
use crate::noise::noises;
use crate::{Target, Verdict};

/// A life, damage to its journal, a mount.
pub const JOURNAL_DAMAGED_MOUNT: Target = Target {
    name: "journal_damaged_mount",
    run,
    seeds: noises,
};

/// One thing that happened to a journal. Positions are taken modulo its size.
#[derive(Arbitrary, Debug)]
enum Damage {
    /// A byte changed.
    Byte { at: u16, with: u8 },
    /// A block reads as zeros.
    Zeroed { block: u8 },
    /// A block reads as another one.
    Misplaced { from: u8, to: u8 },
    /// Everything from a block on is lost.
    CutOff { block: u8 },
}

impl Damage {
    fn happen(&self, journal: &mut [u8]) {
        let blocks = journal.len() / JOURNAL_BLOCK_BYTES;
        let start = |block: u8| usize::from(block) % blocks * JOURNAL_BLOCK_BYTES;
        match *self {
            Self::Byte { at, with } => {
                // The journal has as many bytes as there are positions.
                let length = journal.len();
                journal[usize::from(at) % length] ^= with;
            }
            Self::Zeroed { block } => {
                journal[start(block)..][..JOURNAL_BLOCK_BYTES].fill(0);
            }
            Self::Misplaced { from, to } => {
                let from = start(from);
                journal.copy_within(from..from + JOURNAL_BLOCK_BYTES, start(to));
            }
            Self::CutOff { block } => journal[start(block)..].fill(0),
        }
    }
}

fn run(input: &[u8]) -> Verdict {
    let mut u = Unstructured::new(input);
    let (Ok(damages), Ok(history)) = (u.arbitrary::<[Damage; 2]>(), History::live(&mut u)) else {
        return Verdict::Refused;
    };
    let transactions = history.transactions();
    check_covered(&transactions);
    let mut journal = history.journal();
    damages
        .iter()
        .for_each(|damage| damage.happen(&mut journal));
    history.set_journal(&journal);
    let fence = Fence::new(history.lower.clone());
    let changes = fence.changes();
    let (store, report) = match JournalStore::open(Gate::new(fence), &OPTIONS) {
        Ok(opened) => opened,
        Err(StoreError::Corrupt { .. } | StoreError::NewerFormat { .. }) => {
            let changes = changes.load(Ordering::Relaxed);
            assert_eq!(changes, 0, "a mount that is refused changes nothing");
            return Verdict::Refused;
        }
        Err(other) => panic!("not what a damaged journal is: {other}"),
    };
    let store = Arc::new(store);
    let mut target = start(store.clone());
    let found = tree(&mut target);
    let exposed = Exposed::where_lost(&transactions, report.transactions);
    history
        .explain(&found, &exposed)
        .unwrap_or_else(|difference| panic!("a state that never was: {difference}"));
    target
        .volume()
        .shutdown()
        .unwrap_or_else(|error| panic!("{error}"));
    store.close().unwrap_or_else(|error| panic!("{error}"));
    drop((target, store));
    let (store, report) =
        JournalStore::open(Gate::new(Fence::new(history.lower.clone())), &OPTIONS)
            .unwrap_or_else(|error| panic!("the second mount: {error}"));
    assert!(report.clean, "nothing is left to recover: {report:?}");
    let again = tree(&mut start(Arc::new(store)));
    if let Some(difference) = difference(&found, &again) {
        panic!("the second mount: {difference}");
    }
    Verdict::Taken
}
