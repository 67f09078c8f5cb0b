//! Looking at a store without changing it.

use std::collections::BTreeMap;

use mobifs_base::{FileKind, Name, ObjectId};

use crate::StoreError;
use crate::calibration::{self, Calibration};
use crate::log::DAMAGED_PREFIX;
use crate::log::overflow;
use crate::log::record::Record;
use crate::log::{self, LogOptions};
use crate::lower::Lower;
use crate::lower::found;
use crate::overlay::table::NO_INODE;
use crate::recovery::copied;
use crate::recovery::immutable::immutable;
use crate::recovery::report::RecoveryReport;

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
    /// Epoch and sequence that the next transaction would have; none without a journal.
    pub next: Option<(u64, u64)>,
    /// Bytes for transactions: the size of the journal file without its superblocks.
    pub log_bytes: u64,
    /// The largest transaction that is one durable write.
    pub direct_bytes_max: u64,
    /// What was measured of the device, if it was.
    pub calibration: Option<Calibration>,
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
    /// Damaged journals that a salvage has kept: their names in `.mobifs`.
    pub damaged_journals: Vec<String>,
    /// Names at which the journal has an object, and another one is, or none.
    pub missing: Vec<Vec<u8>>,
    /// What a mount for writing writes to and may not be changed (`chattr +i`, `+a`): names from the
    /// store's root on.
    pub immutable: Vec<&'static str>,
    /// What is wrong: objects that the journal needs and that are not where they
    /// should be. Empty for a consistent store.
    pub problems: Vec<String>,
}

/// Reads the journal and checks what it refers to; changes nothing.
///
/// # Errors
/// As [`crate::JournalStore::open`].
pub fn inspect<L: Lower>(lower: &L) -> Result<Inspection, StoreError> {
    let mut found = Inspection::default();
    let Some(own) = Parts::find(lower)? else {
        return Ok(found);
    };
    found.is_store = true;
    found.damaged_journals = own.damaged_journals(lower)?;
    found.immutable = own.immutable(lower)?;
    let options = LogOptions {
        journal_bytes: 0,
        direct_bytes_max: None,
        direct_bytes_max_if_new: None,
        uuid_if_new: [0; 16],
        read_only: true,
        keeps_size: true,
    };
    let (log, mut scanned) = log::open::open(lower, &own.mobifs, &options)?;
    own.expand(lower, &mut scanned.transactions)?;
    found.uuid = log.is_there().then(|| log.uuid());
    found.next = log.is_there().then(|| log.next());
    found.log_bytes = log.total_bytes();
    found.direct_bytes_max = log.direct_bytes_max();
    found.calibration = calibration::file::read(lower, &own.mobifs, log.uuid());
    found.report = RecoveryReport::of(&scanned);
    if scanned.is_copied {
        copied::locate(lower, &mut scanned.transactions)?;
    }
    for (_, records) in &scanned.transactions {
        found.count(records);
    }
    for directory in [&own.stage, &own.limbo].into_iter().flatten() {
        let entries = lower
            .list(directory)
            .map_err(StoreError::lower("listing .mobifs"))?;
        found.leftovers += entries.len() as u64;
    }
    if let Some(lost) = &own.lost {
        let lost = lower
            .list(lost)
            .map_err(StoreError::lower("listing lost"))?;
        let names = lost.iter().map(|entry| entry.name.escape_ascii());
        found.report.lost = names.map(|name| name.to_string()).collect();
    }
    found.check_places(lower, &own, &scanned.transactions)?;
    Ok(found)
}

/// The store's own directories, as far as they exist: a mount makes the missing ones.
pub(crate) struct Parts<H> {
    pub(crate) mobifs: H,
    pub(crate) stage: Option<H>,
    pub(crate) limbo: Option<H>,
    pub(crate) lost: Option<H>,
}

impl<H> Parts<H> {
    /// None if the directory is no store.
    pub(crate) fn find<L: Lower<Handle = H>>(lower: &L) -> Result<Option<Self>, StoreError> {
        let open = |parent: &H, name: &[u8]| -> Result<Option<H>, StoreError> {
            let failed = || StoreError::lower(format!("opening {}", name.escape_ascii()));
            let handle = found(lower.open(parent, name, false)).map_err(failed())?;
            let Some(handle) = handle else {
                return Ok(None);
            };
            if lower.stat(&handle).map_err(failed())?.kind != FileKind::Directory {
                return Err(StoreError::Unsuitable(format!(
                    "{} in the store is not a directory; it does not belong to MobiFS",
                    name.escape_ascii()
                )));
            }
            Ok(Some(handle))
        };
        let root = lower.root();
        let root = root.map_err(StoreError::lower("opening the store"))?;
        let Some(mobifs) = open(&root, crate::lower::OWN_DIRECTORY)? else {
            return Ok(None);
        };
        Ok(Some(Self {
            stage: open(&mobifs, b"stage")?,
            limbo: open(&mobifs, b"limbo")?,
            lost: open(&mobifs, b"lost")?,
            mobifs,
        }))
    }

    /// Which of the journal and the directories around it may not be changed.
    fn immutable<L: Lower<Handle = H>>(&self, lower: &L) -> Result<Vec<&'static str>, StoreError> {
        immutable(
            lower,
            &self.mobifs,
            [self.stage.as_ref(), self.limbo.as_ref()],
        )
    }

    /// The journals that salvages have kept, the oldest first.
    fn damaged_journals<L: Lower<Handle = H>>(&self, lower: &L) -> Result<Vec<String>, StoreError> {
        let entries = lower.list(&self.mobifs);
        let entries = entries.map_err(StoreError::lower("listing .mobifs"))?;
        let names = entries.into_iter().filter_map(|entry| {
            let name = String::from_utf8(entry.name).ok()?;
            let number = name.strip_prefix(DAMAGED_PREFIX)?.parse::<u64>().ok()?;
            Some((number, name))
        });
        let names: BTreeMap<u64, String> = names.collect();
        Ok(names.into_values().collect())
    }

    /// Reads what transactions have in overflow files.
    fn expand<L: Lower<Handle = H>>(
        &self,
        lower: &L,
        transactions: &mut [(u64, Vec<Record>)],
    ) -> Result<(), StoreError> {
        if let Some(stage) = &self.stage {
            return overflow::expand(lower, stage, transactions).map(|_| ());
        }
        let mut records = transactions.iter().flat_map(|(_, records)| records);
        if records.any(|record| matches!(record, Record::External { .. })) {
            return Err(StoreError::Corrupt {
                what: ".mobifs/stage".to_owned(),
                detail: "it is not there, and the journal has a part of what is committed in it"
                    .to_owned(),
            });
        }
        Ok(())
    }
}

impl Inspection {
    fn count(&mut self, records: &[Record]) {
        for record in records {
            match record {
                Record::Object(state) if state.created => self.created += 1,
                Record::Object(_) => self.changed += 1,
                Record::Dentry { .. } => self.entries += 1,
                Record::Bytes { .. } | Record::Copied { .. } => self.pages += 1,
                // Saturating: the ranges of a forged journal are of any length.
                Record::Direct { range, .. } => {
                    self.direct_bytes = self.direct_bytes.saturating_add(range.len());
                }
                Record::Known { .. }
                | Record::Bind { .. }
                | Record::External { .. }
                | Record::Found { .. }
                | Record::Materialized
                | Record::RenameMark
                | Record::RenameMarkInPart => {}
            }
        }
    }

    /// Every lower object that the journal knows must be at its place or, after an
    /// interrupted apply, in limbo or at its final name.
    fn check_places<L: Lower>(
        &mut self,
        lower: &L,
        own: &Parts<L::Handle>,
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
                    Record::Bind { .. } | Record::RenameMark | Record::RenameMarkInPart
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
                let in_limbo = own.limbo.as_ref().map(|limbo| (limbo, limbo_name));
                let places = [Some((directory, name.clone())), in_limbo];
                let at = places.into_iter().flatten().find_map(|(directory, name)| {
                    let stat = lower.stat_at(directory, &name).ok()?;
                    (stat.inode == inode).then_some((directory, name, stat.kind))
                });
                match at {
                    // Other objects may be recorded in it.
                    Some((directory, name, FileKind::Directory)) => {
                        let opened = lower.open(directory, &name, false);
                        let opened = opened.map_err(StoreError::lower(format!("opening {id}")))?;
                        handles.insert(id.0, opened);
                    }
                    Some(_) => {}
                    // An interrupted apply may have moved it to its final name.
                    None if applying => {}
                    None => {
                        self.problems.push(format!(
                            "{id}, which committed changes belong to, is not at \"{}\"",
                            Name::new(name).map_or_else(|_| "limbo".to_owned(), |n| n.to_string())
                        ));
                        self.missing.push(name.clone());
                    }
                }
            }
            if later.is_empty() || later.len() == before {
                return Ok(());
            }
            waiting = later;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lower::{Gate, PosixLower};
    use crate::{JournalOptions, JournalStore};

    /// It was reported as "an ordinary directory, not a store yet", although a mount makes the
    /// missing ones and works.
    #[test]
    fn a_store_without_some_of_its_directories_is_a_store() {
        let directory = tempfile::tempdir().unwrap();
        let open = || PosixLower::open(directory.path()).unwrap();
        let options = JournalOptions {
            journal_bytes: 1 << 20,
            uuid_if_new: [7; 16],
            ..JournalOptions::default()
        };
        assert!(!inspect(&open()).unwrap().is_store);
        drop(JournalStore::open(Gate::new(open()), &options).unwrap());
        for name in ["stage", "limbo", "lost"] {
            std::fs::remove_dir(directory.path().join(".mobifs").join(name)).unwrap();
            let found = inspect(&open()).unwrap();
            assert!(found.is_store, "{name}");
            assert_eq!(
                (found.uuid, found.problems),
                (Some([7; 16]), vec![]),
                "{name}"
            );
        }
        drop(JournalStore::open(Gate::new(open()), &options).unwrap());
        assert_eq!(inspect(&open()).unwrap().uuid, Some([7; 16]));
    }
}
