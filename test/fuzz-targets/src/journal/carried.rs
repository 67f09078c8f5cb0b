//! Mounting a store whose superblock says, with right checksums, that its epoch begins with records
//! of a refused apply: whatever these are, the mount returns, and accesses nothing outside the
//! store.

use std::sync::Arc;

use arbitrary::{Arbitrary, Unstructured};
use mobifs_store::fuzzing::{ForgedCarried, carry, encode};
use mobifs_store::{Gate, JournalStore};
use mobifs_testkit::target::Target as _;

use super::arbitrary_record::records;
use super::fence::Fence;
use super::history::{History, OPTIONS, start};
use crate::noise::noises;
use crate::{Target, Verdict};

/// Most bytes of the input that become records; the rest is the history before.
const FORGED_BYTES: usize = 400;
/// Overflow files that histories have, and some more.
const FILES: u64 = 6;

/// A life, something that its journal begins with, a mount.
pub const JOURNAL_CARRIED_MOUNT: Target = Target {
    name: "journal_carried_mount",
    run,
    seeds: noises,
};

#[derive(Arbitrary)]
struct Plan {
    file: u8,
    /// The epoch has no transactions.
    is_new: bool,
    lie: Lie,
}

/// What the superblock says of the file, and in what way it is wrong.
#[derive(Arbitrary)]
enum Lie {
    Nothing,
    NothingEither,
    /// There is no such file, or another one.
    File(u64),
    Bytes(u64),
    Records(u32),
    Checksum(u32),
    /// As in a superblock without anything, but for the number.
    Empty,
}

impl Lie {
    fn apply(self, forged: ForgedCarried) -> ForgedCarried {
        match self {
            Self::Nothing | Self::NothingEither => forged,
            Self::File(file) => ForgedCarried { file, ..forged },
            Self::Bytes(bytes) => ForgedCarried { bytes, ..forged },
            Self::Records(records) => ForgedCarried { records, ..forged },
            Self::Checksum(crc32c) => ForgedCarried { crc32c, ..forged },
            Self::Empty => ForgedCarried {
                bytes: 0,
                records: 0,
                crc32c: 0,
                ..forged
            },
        }
    }
}

fn run(input: &[u8]) -> Verdict {
    let mut u = Unstructured::new(input);
    let Ok(plan) = u.arbitrary::<Plan>() else {
        return Verdict::Refused;
    };
    let rest = u.take_rest();
    let (forged, life) = rest.split_at(rest.len().min(FORGED_BYTES));
    let (Ok(records), Ok(history)) = (
        records(&mut Unstructured::new(forged)),
        History::live(&mut Unstructured::new(life)),
    ) else {
        return Verdict::Refused;
    };
    let file = u64::from(plan.file) % FILES + 1;
    history.set_overflow(file, &encode(&records));
    let forged = plan.lie.apply(ForgedCarried::of(file, &records));
    let mut journal = history.journal();
    carry(&mut journal, forged, plan.is_new)
        .unwrap_or_else(|error| panic!("before the forgery: {error}"));
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
