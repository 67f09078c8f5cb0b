//! What shows where a journal's last transactions are lost although they were durable.
//!
//! Large new data is written in place before the transaction that refers to it, in a range that an
//! earlier transaction declares empty. If damage takes both, nothing in the journal covers that
//! data any more, and nothing shows that there was anything to cover: `docs/FORMAT.md`, "Reading".
//! So exactly these ranges may hold anything then, and no others.

use std::collections::BTreeMap;

use mobifs_base::{ByteRange, FileKind, ObjectId, RangeSet};
use mobifs_store::fuzzing::Record;
use mobifs_testkit::tree::{Mtime, Tree, TreeNode};

/// Transactions, with what they say.
pub(super) type Transactions = Vec<(u64, Vec<Record>)>;

/// Files with content of lost transactions, by their number in a tree of the store.
#[derive(Default)]
pub(super) struct Exposed(BTreeMap<u64, Content>);

/// The content of one file.
#[derive(Clone, Default)]
struct Content {
    ranges: RangeSet,
    /// A transaction that is left has the attributes: only content shows.
    has_attributes: bool,
}

impl Exposed {
    /// What is exposed where only `left` of these transactions are left.
    pub(super) fn where_lost(transactions: &Transactions, left: u64) -> Self {
        let records = || transactions.iter().flat_map(|(_, records)| records);
        let inodes: BTreeMap<ObjectId, u64> = records().filter_map(known).collect();
        let mut empty = BTreeMap::new();
        let mut exposed: BTreeMap<ObjectId, RangeSet> = BTreeMap::new();
        let is_left = |(sequence, _): &&(u64, Vec<Record>)| *sequence <= left;
        for (_, records) in transactions.iter().filter(is_left) {
            record_empty(records, &mut empty);
        }
        for (_, records) in transactions.iter().skip_while(is_left) {
            for (object, mut ranges) in placed(records, &inodes) {
                let covered = empty.get(&object).cloned().unwrap_or_default();
                covered.iter().for_each(|range| ranges.remove(range));
                let of_object = exposed.entry(object).or_default();
                ranges.iter().for_each(|range| of_object.insert(range));
            }
        }
        exposed.retain(|_, ranges| !ranges.is_empty());
        let mut by_number = BTreeMap::new();
        for (object, ranges) in exposed {
            let left = transactions.iter().take_while(is_left);
            let has_attributes = left
                .flat_map(|(_, records)| records)
                .any(|record| matches!(record, Record::Object(state) if state.id == object));
            let content = Content {
                ranges,
                has_attributes,
            };
            // An object that the journal does not have any more is found by its inode.
            for number in [object.0, inodes[&object]] {
                by_number.insert(number, content.clone());
            }
        }
        Self(by_number)
    }

    /// The tree, with what was found where anything may be.
    pub(super) fn allow(&self, mut tree: Tree, found: &Tree) -> Tree {
        for (path, found) in &found.0 {
            let content = self.0.get(&found.identity);
            let expected = tree.0.get_mut(path);
            if let (Some(content), Some(expected)) = (content, expected)
                && (expected.kind, found.kind) == (FileKind::Regular, FileKind::Regular)
            {
                content.allow(expected, found);
            }
        }
        tree
    }
}

impl Content {
    fn allow(&self, expected: &mut TreeNode, found: &TreeNode) {
        let size = found.content.size();
        let end = self.ranges.iter().next_back().map_or(0, |range| range.end);
        if !self.has_attributes {
            expected.mtime = Mtime::Any;
            if (expected.content.size()..=end).contains(&size) {
                expected.content.truncate(size);
            }
        }
        let end = expected.content.size().min(size);
        for range in self.ranges.iter() {
            let shown = ByteRange::new(range.start, range.end.min(end));
            let bytes = found.content.read(shown.start, shown.len() as usize);
            expected.content.write(shown.start, &bytes);
        }
    }
}

/// Everything that was written to its place was covered by an earlier transaction: a power
/// cut, which takes no more than the last one, exposes nothing.
pub(super) fn check_covered(transactions: &Transactions) {
    let records = transactions.iter().flat_map(|(_, records)| records);
    let inodes = records.filter_map(known).collect();
    let mut empty: BTreeMap<ObjectId, RangeSet> = BTreeMap::new();
    for (sequence, records) in transactions {
        for (object, ranges) in placed(records, &inodes) {
            let covered = empty.get(&object).cloned().unwrap_or_default();
            for range in ranges.iter() {
                let is_covered = covered.covers(range);
                assert!(
                    is_covered,
                    "no transaction before {sequence} says that {object} is empty at {range:?}"
                );
            }
        }
        record_empty(records, &mut empty);
    }
}

fn known(record: &Record) -> Option<(ObjectId, u64)> {
    match record {
        Record::Known { id, inode, .. } => Some((*id, *inode)),
        _ => None,
    }
}

/// What a transaction has in place of files that were there before its epoch. Others are in
/// `stage/`, where nothing shows.
fn placed(records: &[Record], inodes: &BTreeMap<ObjectId, u64>) -> BTreeMap<ObjectId, RangeSet> {
    let mut placed: BTreeMap<ObjectId, RangeSet> = BTreeMap::new();
    for record in records {
        if let Record::Direct { object, range } = record
            && inodes.contains_key(object)
        {
            placed.entry(*object).or_default().insert(*range);
        }
    }
    placed
}

/// Where files are empty after a transaction, whatever is in their place.
fn record_empty(records: &[Record], empty: &mut BTreeMap<ObjectId, RangeSet>) {
    for record in records {
        match record {
            Record::Object(state) => {
                let of_object = empty.entry(state.id).or_default();
                state
                    .zeroed
                    .iter()
                    .for_each(|&range| of_object.insert(range));
            }
            Record::Direct { object, range } => empty.entry(*object).or_default().remove(*range),
            _ => {}
        }
    }
}
