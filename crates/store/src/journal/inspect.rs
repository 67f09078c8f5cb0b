//! Looking at a store without changing it.

use std::collections::BTreeMap;

use mobifs_types::{FileKind, Name, ObjectId};

use super::log::{Log, LogOptions};
use super::record::Record;
use super::table::NO_INODE;
use super::{Directories, RecoveryReport, copied, overflow};
use crate::StoreError;
use crate::lower::Lower;

/// What [`inspect`] found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inspection {
    /// The directory is a store: it has a `.mobifs`.
    pub is_store: bool,
    /// What the next mount (or `mobifs recover`) will find.
    pub report: RecoveryReport,
    /// Identity of the store; none if it has no journal, so that the next mount makes one, and
    /// gives it an identity.
    pub uuid: Option<[u8; 16]>,
    /// Size of the journal.
    pub journal_bytes: u64,
    /// Objects that transactions in the journal create.
    pub created: u64,
    /// Objects that they change.
    pub changed: u64,
    /// Directory entries that they set or remove.
    pub entries: u64,
    /// Pages that they change.
    pub pages: u64,
    /// Bytes of new data that they refer to outside the journal.
    pub direct_bytes: u64,
    /// Names in `.mobifs/stage` and `.mobifs/limbo` that recovery will remove or use.
    pub leftovers: u64,
    /// What is wrong: objects that the journal needs and that are not where they
    /// should be. Empty for a consistent store.
    pub problems: Vec<String>,
}

/// Reads the journal and checks what it refers to; changes nothing.
///
/// # Errors
/// As [`super::JournalStore::open`].
pub fn inspect<L: Lower>(lower: &L) -> Result<Inspection, StoreError> {
    let mut found = Inspection::default();
    let Some(own) = Directories::open(lower, true, false)? else {
        return Ok(found);
    };
    found.is_store = true;
    let options = LogOptions {
        journal_bytes: 0,
        direct_bytes_max: None,
        uuid_if_new: [0; 16],
        read_only: true,
        keeps_size: true,
    };
    let (log, mut scanned) = Log::open(lower, &own.mobifs, &options)?;
    overflow::expand(lower, &own.stage, &mut scanned.transactions)?;
    found.uuid = log.is_there().then(|| log.uuid());
    found.journal_bytes = log.total_bytes();
    found.report = RecoveryReport::of(&scanned);
    if scanned.is_copied {
        copied::locate(lower, &mut scanned.transactions)?;
    }
    for (_, records) in &scanned.transactions {
        found.count(records);
    }
    for directory in [&own.stage, &own.limbo] {
        let entries = lower
            .list(directory)
            .map_err(StoreError::lower("listing .mobifs"))?;
        found.leftovers += entries.len() as u64;
    }
    let lost = lower
        .list(&own.lost)
        .map_err(StoreError::lower("listing lost"))?;
    found.report.lost = lost
        .iter()
        .map(|entry| entry.name.escape_ascii().to_string())
        .collect();
    found.check_places(lower, &own, &scanned.transactions)?;
    Ok(found)
}

impl Inspection {
    fn count(&mut self, records: &[Record]) {
        for record in records {
            match record {
                Record::Object(state) if state.created => self.created += 1,
                Record::Object(_) => self.changed += 1,
                Record::Dentry { .. } => self.entries += 1,
                Record::Bytes { .. } => self.pages += 1,
                // Saturating: the ranges of a forged journal are of any length.
                Record::Direct { range, .. } => {
                    self.direct_bytes = self.direct_bytes.saturating_add(range.len());
                }
                Record::Known { .. }
                | Record::Bind { .. }
                | Record::External { .. }
                | Record::Found { .. }
                | Record::Moving
                | Record::MovingInPart => {}
            }
        }
    }

    /// Every lower object that the journal knows must be at its place or, after an
    /// interrupted apply, in limbo or at its final name.
    fn check_places<L: Lower>(
        &mut self,
        lower: &L,
        own: &Directories<L>,
        transactions: &[(u64, Vec<Record>)],
    ) -> Result<(), StoreError> {
        let mut handles: BTreeMap<u64, L::Handle> = BTreeMap::new();
        let root = lower
            .root()
            .map_err(StoreError::lower("opening the store"))?;
        handles.insert(ObjectId::ROOT.0, root);
        let records = transactions.iter().flat_map(|(_, records)| records);
        let in_copy = copied::inodes(transactions);
        // Parents are recorded after their children within one transaction.
        let mut waiting: Vec<&Record> = records
            .filter(|record| matches!(record, Record::Known { .. }))
            .collect();
        let applying = transactions
            .iter()
            .flat_map(|(_, records)| records)
            .any(|record| {
                matches!(
                    record,
                    Record::Bind { .. } | Record::Moving | Record::MovingInPart
                )
            });
        loop {
            let before = waiting.len();
            let mut later = Vec::new();
            for record in waiting {
                let Record::Known {
                    id,
                    inode,
                    parent,
                    name,
                    ..
                } = record
                else {
                    continue;
                };
                let Some(directory) = handles.get(&parent.0) else {
                    later.push(record);
                    continue;
                };
                let in_copy = in_copy.get(id).copied().unwrap_or(Some(*inode));
                let inode = in_copy.unwrap_or(NO_INODE);
                let limbo_name = inode.to_string().into_bytes();
                let places = [(directory, name.clone()), (&*own.limbo, limbo_name)];
                let at = places.into_iter().find_map(|(directory, name)| {
                    let stat = lower.stat_at(directory, &name).ok()?;
                    (stat.inode == inode).then_some((directory, name, stat.kind))
                });
                match at {
                    // Others are recorded in it, perhaps.
                    Some((directory, name, FileKind::Directory)) => {
                        let opened = lower.open(directory, &name, false);
                        let opened = opened.map_err(StoreError::lower(format!("opening {id}")))?;
                        handles.insert(id.0, opened);
                    }
                    Some(_) => {}
                    // An interrupted apply may have moved it to its final name.
                    None if applying => {}
                    None => self.problems.push(format!(
                        "{id}, which committed changes belong to, is not at \"{}\"",
                        Name::new(name).map_or_else(|_| "limbo".to_owned(), |n| n.to_string())
                    )),
                }
            }
            if later.is_empty() || later.len() == before {
                return Ok(());
            }
            waiting = later;
        }
    }
}
