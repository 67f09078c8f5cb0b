//! Salvaging a store whose journal was damaged: nothing before the damage is lost, what is promised
//! holds, a power cut in it does no harm, and afterwards the store is one like others.

use std::sync::Arc;

use arbitrary::Unstructured;
use mobifs_store::fuzzing::{scan, transaction_length};
use mobifs_store::lower::JOURNAL_BLOCK_BYTES;
use mobifs_store::salvage::{Promise, Survey, salvage, survey};
use mobifs_store::{Gate, JournalStore, Store as _, StoreError, inspect};
use mobifs_testkit::crash::{CrashLower, Fate};
use mobifs_testkit::random::Random;

use super::exposed::{Exposed, Transactions};
use super::history::{History, OPTIONS, difference, start, tree};
use crate::noise::noise;
use crate::{Target, Verdict};

/// Where transactions begin.
const LOG_START: usize = 2 * JOURNAL_BLOCK_BYTES;

/// A life, damage to its journal, a salvage with a power cut in it, a mount.
pub const JOURNAL_SALVAGE: Target = Target {
    name: "journal_salvage",
    run,
    seeds: || (1..=20).map(|seed| noise(seed, 1500)).collect(),
};

/// What happens to the store. Chosen by all of the input, so that each input is another case, and
/// histories keep their meaning.
#[derive(Debug)]
struct Circumstances {
    /// After how many changes of the filesystem an apply ends; none: there is none.
    apply_cut_after: Option<u64>,
    /// After how many calls the first salvage is cut.
    salvage_cut_after: Option<u64>,
    /// `.mobifs/id` is damaged, or missing.
    identity: Option<bool>,
    /// The journal is missing.
    has_no_journal: bool,
    /// What happens to its content.
    damages: Vec<Damage>,
}

/// One thing that happens to a journal.
#[derive(Debug)]
enum Damage {
    /// A bit is another one.
    Bit { at: usize, mask: u8 },
    /// Sectors read as zeros.
    Zeroed { from: usize, sectors: usize },
    /// Two blocks have changed places.
    Swapped { one: usize, other: usize },
    /// Everything from a sector on is lost.
    CutOff { from: usize },
    /// The superblocks are lost, or the first one, or the second.
    Superblocks { first: bool, second: bool },
}

impl Circumstances {
    /// For a journal that is used up to a byte.
    fn of(random: &mut Random, used_bytes: usize) -> Self {
        let mut sometimes = |of: u64| random.below(of) == 0;
        let [applies, cuts, identity, is_missing, has_no_journal] = [
            sometimes(3),
            sometimes(2),
            sometimes(12),
            sometimes(2),
            sometimes(25),
        ];
        Self {
            apply_cut_after: applies.then(|| random.below(60)),
            salvage_cut_after: cuts.then(|| random.below(60)),
            identity: identity.then_some(is_missing),
            has_no_journal,
            damages: (0..=random.below(2))
                .map(|_| Damage::within(random, used_bytes))
                .collect(),
        }
    }

    fn harm(&self, history: &History) {
        if let Some(is_missing) = self.identity {
            history.harm_identity(is_missing);
        }
        if self.has_no_journal {
            history.remove_journal();
        }
    }
}

impl Damage {
    fn within(random: &mut Random, used_bytes: usize) -> Self {
        // Most of it hits what is in use.
        let mut place =
            |unit: usize| random.below((used_bytes / unit).max(1) as u64 + 1) as usize * unit;
        let (at, sector, one, other) = (place(1), place(512), place(4096), place(4096));
        match random.below(10) {
            0..=3 => Self::Bit {
                at,
                mask: 1 << random.below(8),
            },
            4..=6 => Self::Zeroed {
                from: sector,
                sectors: 1 + random.below(20) as usize,
            },
            7 => Self::Swapped { one, other },
            8 => Self::CutOff { from: sector },
            _ => Self::Superblocks {
                first: random.below(3) > 0,
                second: random.below(3) > 0,
            },
        }
    }

    fn happen(&self, journal: &mut [u8]) {
        let end = journal.len();
        match *self {
            Self::Bit { at, mask } => journal[at.min(end - 1)] ^= mask,
            Self::Zeroed { from, sectors } => {
                journal[from.min(end)..(from + sectors * 512).min(end)].fill(0);
            }
            Self::Swapped { one, other } => {
                let last = end - JOURNAL_BLOCK_BYTES;
                let (one, other) = (one.min(last), other.min(last));
                for byte in 0..JOURNAL_BLOCK_BYTES {
                    journal.swap(one + byte, other + byte);
                }
            }
            Self::CutOff { from } => journal[from.min(end)..].fill(0),
            Self::Superblocks { first, second } => {
                if first {
                    journal[..JOURNAL_BLOCK_BYTES].fill(0);
                }
                if second {
                    journal[JOURNAL_BLOCK_BYTES..LOG_START].fill(0);
                }
            }
        }
    }
}

fn run(input: &[u8]) -> Verdict {
    let mut u = Unstructured::new(input);
    let seed = input.iter().fold(7_u64, |seed, &byte| {
        (seed ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let mut random = Random::new(seed);
    // In a store that was empty, transactions name only what they make themselves.
    let has_files = random.below(2) == 0;
    let Ok(mut history) = History::live_in_journal(&mut u, has_files) else {
        return Verdict::Refused;
    };
    let transactions = history.transactions();
    let whole = history.journal();
    let used_bytes = scan(&whole, &mut |_, _| {}).map_or(LOG_START, |found| found.end as usize);
    let circumstances = Circumstances::of(&mut random, used_bytes);
    if used_bytes == LOG_START && random.below(8) > 0 {
        // There is nothing to lose.
        return Verdict::Refused;
    }
    if let Some(count) = circumstances.apply_cut_after {
        history.lower = half_applied(&history.lower, count, &mut random);
    }
    let whole = history.journal();
    let mut journal = whole.clone();
    circumstances
        .damages
        .iter()
        .for_each(|damage| damage.happen(&mut journal));
    history.set_journal(&journal);
    circumstances.harm(&history);
    let found = match survey(&history.lower, None) {
        Ok(found) => found,
        Err(StoreError::NewerFormat { .. }) => return Verdict::Refused,
        Err(error) => panic!("a salvage of a damaged store is refused: {error}"),
    };
    if found.damage.is_empty() {
        return Verdict::Refused;
    }
    let has_superblocks = journal[..LOG_START] == whole[..LOG_START];
    if !circumstances.has_no_journal && has_superblocks {
        check_nothing_before_is_lost(&whole, &journal, &found);
    }
    let lower = carried_out(&history.lower, circumstances.salvage_cut_after, &mut random);
    check_result(&history, &circumstances, &transactions, &found, &lower);
    Verdict::Taken
}

/// The filesystem after a power cut in an apply.
fn half_applied(lower: &CrashLower, count: u64, random: &mut Random) -> CrashLower {
    let Ok((store, _)) = JournalStore::open(Gate::new(lower.clone()), &OPTIONS) else {
        panic!("a store that is not damaged cannot be opened");
    };
    lower.cut_after(lower.operations() + count);
    let _cut = store.apply();
    drop(store);
    crashed(lower, random)
}

/// After a power cut, with any of what was not synced.
fn crashed(lower: &CrashLower, random: &mut Random) -> CrashLower {
    lower.crash_image(&mut |_| {
        if random.below(2) == 0 {
            Fate::Land
        } else {
            Fate::Vanish
        }
    })
}

/// Whatever is damaged comes after the transactions that a salvage takes for intact.
fn check_nothing_before_is_lost(whole: &[u8], journal: &[u8], found: &Survey) {
    let scanned = scan(whole, &mut |_, _| {});
    let Ok(scanned) = scanned else { return };
    let first = whole
        .iter()
        .zip(journal)
        .position(|(one, other)| one != other);
    let first = first.unwrap_or(whole.len());
    let mut end = LOG_START;
    let mut before = 0;
    for (_, records) in &scanned.transactions {
        end += transaction_length(records);
        if end > first {
            break;
        }
        before += 1;
    }
    assert!(
        found.recovery_point.transactions >= before,
        "{before} transactions are whole before byte {first}: {found:?}"
    );
}

/// Salvages the store, with a power cut in between.
fn carried_out(lower: &CrashLower, cut_after: Option<u64>, random: &mut Random) -> CrashLower {
    let Some(count) = cut_after else {
        let done = salvage(lower, &OPTIONS, None);
        done.unwrap_or_else(|error| panic!("a salvage fails: {error}"));
        return lower.clone();
    };
    lower.cut_after(lower.operations() + count);
    let _cut = salvage(lower, &OPTIONS, None);
    let lower = crashed(lower, random);
    let refused = JournalStore::open(Gate::new(lower.clone()), &OPTIONS);
    match refused {
        // It was done, and has the outcome that the caller looks at; or it left no trace.
        Ok((store, _)) => drop(store),
        Err(StoreError::Corrupt { .. }) => {
            let done = salvage(&lower, &OPTIONS, None);
            done.unwrap_or_else(|error| panic!("the salvage after a power cut fails: {error}"));
        }
        Err(error) => panic!("after a power cut in a salvage: {error}"),
    }
    lower
}

fn check_result(
    history: &History,
    circumstances: &Circumstances,
    transactions: &Transactions,
    found: &Survey,
    lower: &CrashLower,
) {
    let (store, _) = JournalStore::open(Gate::new(lower.clone()), &OPTIONS)
        .unwrap_or_else(|error| panic!("the mount after a salvage: {error}; {found:?}"));
    let store = Arc::new(store);
    let mut target = start(store.clone());
    let shown = tree(&mut target);
    let is_promised = found.promise == Promise::PointInTime;
    let is_all = found.recovery_point.transactions == transactions.len() as u64;
    // Lost transactions at the journal's end leave nothing that shows that there were any.
    let exposed = if is_promised && is_all {
        Exposed::default()
    } else {
        Exposed::where_lost(transactions, found.recovery_point.transactions)
    };
    // An apply may have brought anything of what is lost to its place.
    if (is_promised && is_all) || circumstances.apply_cut_after.is_none() {
        history
            .explain(&shown, &exposed)
            .unwrap_or_else(|difference| panic!("a state that never was: {difference}; {found:?}"));
    }
    let ended = target.volume().shutdown();
    ended.unwrap_or_else(|error| panic!("{error}"));
    store.close().unwrap_or_else(|error| panic!("{error}"));
    drop((target, store));
    let looked = inspect(lower).unwrap_or_else(|error| panic!("a check after a salvage: {error}"));
    assert!(looked.problems.is_empty(), "{looked:?}");
    let (store, report) = JournalStore::open(Gate::new(lower.clone()), &OPTIONS)
        .unwrap_or_else(|error| panic!("the second mount: {error}"));
    assert!(report.clean, "nothing is left to recover: {report:?}");
    let again = tree(&mut start(Arc::new(store)));
    if let Some(difference) = difference(&shown, &again) {
        panic!("the second mount: {difference}");
    }
}
