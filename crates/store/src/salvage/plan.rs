//! What is found in a damaged store, and what a salvage of it is to do.

use std::collections::{BTreeSet, HashSet};

use mobifs_base::{FileKind, Name, ObjectId, Timestamp};

use crate::StoreError;
use crate::log::JOURNAL;
use crate::log::outstanding_copies::OutstandingCopies;
use crate::log::record::Record;
use crate::lower::{Lower, found};
use crate::overlay::pending::Pending;
use crate::recovery::copied;
use crate::recovery::copies::Sources;
use crate::recovery::inspect::{Parts, inspect};
use crate::salvage::applied;
use crate::salvage::naming::Names;
use crate::salvage::objects::Objects;
use crate::salvage::placing::{Placed, place};
use crate::salvage::reading::{Lost, Reading};
use crate::salvage::report::{LostChanges, LostFile, Promise, RecoveryPoint, Survey};
use crate::salvage::traces::{self, Traces};
use crate::salvage::tree::Tree;

/// Name of the new journal until the damaged one is moved aside. It is whole, and durable.
pub(super) const SALVAGED: &[u8] = b"journal.salvaged";

/// What is found, and what is to be done.
pub(super) struct Plan {
    pub(super) survey: Survey,
    /// The store's id; none: a new one is made.
    pub(super) uuid: Option<[u8; 16]>,
    pub(super) must_write_identity: bool,
    /// The size of the old journal; 0 if it is not known.
    pub(super) journal_bytes: u64,
    pub(super) direct_bytes_max: u64,
    pub(super) epoch: u64,
    /// The transactions of the new journal.
    pub(super) transactions: Vec<Vec<Record>>,
    pub(super) rescued: Vec<Rescued>,
}

/// A file that no intact transaction names, and that would be deleted.
pub(super) enum Rescued {
    InLimbo(Vec<u8>),
    InStage(Vec<u8>),
    /// A directory with something in it, and its inode: it is moved to `limbo/`, where it can be found.
    Directory(Vec<u8>, u64),
    /// By the path of its directory.
    InTree(Vec<Vec<u8>>, Name),
}

impl Plan {
    pub(super) fn make<L: Lower>(
        lower: &L,
        because: Option<&StoreError>,
    ) -> Result<Self, StoreError> {
        let Some(own) = Parts::find(lower)? else {
            return Err(StoreError::Unsuitable(
                "the directory is not a MobiFS store: it has no .mobifs directory".to_owned(),
            ));
        };
        let mut known: Vec<String> = because.iter().map(ToString::to_string).collect();
        let refused = match inspect(lower) {
            Ok(found) if found.problems.is_empty() && known.is_empty() => {
                return Ok(Self::nothing(Survey::default()));
            }
            Ok(damaged) => {
                known.extend(damaged.problems);
                None
            }
            Err(error @ (StoreError::Corrupt { .. } | StoreError::Lower { .. })) => Some(error),
            Err(other) => return Err(other),
        };
        if is_unfinished(lower, &own)? {
            return Ok(Self::nothing(Survey {
                damage: vec!["an earlier salvage of the store was cut short".to_owned()],
                is_finishing: true,
                ..Survey::default()
            }));
        }
        let mut reading = Reading::of(lower, &own.mobifs, own.stage.as_ref())?;
        reading.damage.extend(known);
        match refused {
            Some(error) if reading.damage.is_empty() => {
                if matches!(error, StoreError::Lower { .. }) {
                    return Err(error);
                }
                reading.damage.push(error.to_string());
            }
            _ => {}
        }
        Self::of(lower, &own, reading)
    }

    fn nothing(survey: Survey) -> Self {
        Self {
            survey,
            uuid: None,
            must_write_identity: false,
            journal_bytes: 0,
            direct_bytes_max: 0,
            epoch: 0,
            transactions: Vec::new(),
            rescued: Vec::new(),
        }
    }

    fn of<L: Lower>(
        lower: &L,
        own: &Parts<L::Handle>,
        mut reading: Reading,
    ) -> Result<Self, StoreError> {
        let is_copy = reading.locate_copy(lower)?;
        let mut objects = Objects::of(&reading.intact);
        if !is_copy {
            objects.with_whole(&reading.lost);
        }
        // What damaged transactions say is good for reports, and for nothing else.
        let mut shown = match is_copy {
            true => objects.clone(),
            false => objects.with_doubtful(&reading.lost),
        };
        let mut wanted = shown.wanted();
        // Files that only lost transactions change, to name them.
        let changed = traces::changes(&reading.lost);
        wanted.extend(changed.keys().map(|id| id.0));
        let mut tree = Tree::walk(lower, own, &wanted)?;
        reading.resolve_copies(lower, own, &tree, &objects)?;
        if reading.may_be_applied
            && reading.lost.is_empty()
            && applied::is_applied(lower, &tree, &objects, &reading.intact)?
        {
            reading.intact.clear();
            reading.intact_bytes = 0;
            // What it says of places was true before.
            objects = Objects::default();
            shown = Objects::default();
        }
        let traces = traces::find(lower, &tree, &shown, &reading.intact, &reading.lost)?;
        let mut survey = reading.survey();
        let names = Names::after(&reading.intact, &reading.lost);
        let named = |id: &ObjectId| names.path(*id, &shown, &tree);
        let files = changed.iter().map(|(id, changes)| LostFile {
            path: named(id),
            change: changes.change(),
            bytes: changes.bytes,
            may_be_mixed: traces.mixed.contains(id),
        });
        survey.lost.files = files.collect();
        survey
            .lost
            .files
            .sort_by(|one, other| one.path.cmp(&other.path));
        survey.promise = promise(&reading, &traces, &survey);
        // An apply was under way, and no transaction says which.
        if survey.promise == Promise::PointInTime && reading.intact.is_empty() && !tree.is_at_rest()
        {
            survey.promise = Promise::NothingShows;
        }
        let intact = std::mem::take(&mut reading.intact);
        let placed = place(lower, &mut tree, &mut objects, intact)?;
        let named = |id: &ObjectId| names.path(*id, &shown, &tree);
        survey.missing = placed.gone.iter().map(named).collect();
        survey.made_again = placed.made_again.iter().map(named).collect();
        survey.without_content = placed.without_content.iter().map(named).collect();
        let rescued = rescued(lower, own, &tree, &placed, &reading)?;
        let files = rescued
            .iter()
            .filter(|rescued| !matches!(rescued, Rescued::Directory(..)));
        survey.rescued = files.count() as u64;
        survey.room_bytes = reading.journal_bytes;
        Ok(Self {
            survey,
            uuid: reading.uuid,
            must_write_identity: reading.must_write_identity,
            journal_bytes: reading.journal_bytes,
            direct_bytes_max: reading.direct_bytes_max,
            epoch: reading.epoch,
            transactions: placed.transactions,
            rescued,
        })
    }
}

impl Reading {
    /// Nothing of it can be used.
    fn give_up(&mut self, why: String) {
        self.damage.push(why);
        self.lost_transactions += self.intact.len() as u64;
        let intact = std::mem::take(&mut self.intact).into_iter();
        self.lost.splice(
            0..0,
            intact.map(|(_, records)| Lost {
                records,
                bytes: 0,
                is_legible: true,
            }),
        );
        self.intact_bytes = 0;
    }

    /// Replaces what intact transactions copy by its content. That is not in the tree any more where a lost
    /// transaction said that it may be overwritten, and it was.
    fn resolve_copies<L: Lower>(
        &mut self,
        lower: &L,
        own: &Parts<L::Handle>,
        tree: &Tree,
        objects: &Objects,
    ) -> Result<(), StoreError> {
        let mut open = |id: ObjectId| match objects.inode(id, tree) {
            Some(inode) => tree.open_below(lower, own.limbo.as_ref(), inode),
            None => Ok(None),
        };
        let outstanding = OutstandingCopies::default();
        let mut sources = Sources::new(lower, &mut open, &self.intact, outstanding);
        let mut pending = Pending::default();
        for (sequence, records) in &mut self.intact {
            sources.resolve(&pending, *sequence, records)?;
            records.retain(|record| *record != Record::Materialized);
            for record in records.iter() {
                pending.merge_record(record.clone());
            }
        }
        let incomplete = sources.finish().incomplete.into_iter();
        self.damage
            .extend(incomplete.map(|id| format!("content of {id} was copied, and is gone")));
        Ok(())
    }

    /// Whether the journal is a copy, and the inodes that it knows may be those of the original. Those
    /// of intact transactions are looked up by name.
    fn locate_copy<L: Lower>(&mut self, lower: &L) -> Result<bool, StoreError> {
        let is_copy = self.is_copied || self.has_lost_copy();
        if is_copy && !self.intact.is_empty() {
            match copied::locate(lower, &mut self.intact) {
                Ok(_) => {}
                // What is damaged does not make a copy of it.
                Err(StoreError::Unsuitable(_)) if !self.is_copied => {}
                Err(StoreError::Unsuitable(why)) => self.give_up(why),
                Err(other) => return Err(other),
            }
        }
        Ok(is_copy)
    }

    /// Whether a transaction is lost that says which inodes objects have in this copy of a store.
    fn has_lost_copy(&self) -> bool {
        let has_moved = |record: &Record| {
            let is_mark = matches!(record, Record::RenameMark | Record::RenameMarkInPart);
            is_mark || matches!(record, Record::Bind { .. })
        };
        let is_found = |record: &Record| matches!(record, Record::Found { .. });
        let mut intact = self.intact.iter().flat_map(|(_, records)| records);
        let mut lost = self.lost.iter().map(|lost| &lost.records);
        lost.any(|records| !records.is_empty() && records.iter().all(is_found))
            && !intact.any(has_moved)
    }

    /// Whether anything is lost.
    fn has_lost(&self) -> bool {
        !self.lost.is_empty() || self.may_miss_more
    }

    /// What the journal alone shows.
    fn survey(&self) -> Survey {
        let is_legible = self.lost.iter().all(|lost| lost.is_legible);
        let lost_records = self.lost.iter().flat_map(|lost| &lost.records);
        Survey {
            damage: self.damage.clone(),
            recovery_point: RecoveryPoint {
                transactions: self.intact.len() as u64,
                bytes: self.intact_bytes,
                until: last_change(self.intact.iter().flat_map(|(_, records)| records)),
            },
            lost: LostChanges {
                transactions: self.lost_transactions.max(self.lost.len() as u64),
                bytes: self.lost.iter().map(|lost| lost.bytes).sum(),
                until: last_change(lost_records),
                is_all_known: is_legible
                    && !self.may_miss_more
                    && self.lost.len() as u64 >= self.lost_transactions,
                files: Vec::new(),
            },
            ..Survey::default()
        }
    }
}

fn promise(reading: &Reading, traces: &Traces, survey: &Survey) -> Promise {
    if traces.names_moved || !traces.mixed.is_empty() {
        Promise::Mixed
    } else if !reading.has_lost() || survey.lost.is_all_known {
        Promise::PointInTime
    } else {
        Promise::NothingShows
    }
}

/// The latest time at which an object was changed.
fn last_change<'r>(records: impl Iterator<Item = &'r Record>) -> Option<Timestamp> {
    let times = records.filter_map(|record| match record {
        Record::Object(state) => Some(state.attributes.ctime),
        _ => None,
    });
    times.max()
}

/// Whether a salvage has made a new journal, and moved the damaged one aside, and no more: the new
/// one was durable before.
fn is_unfinished<L: Lower>(lower: &L, own: &Parts<L::Handle>) -> Result<bool, StoreError> {
    let is_there = |name: &[u8]| {
        let there = found(lower.stat_at(&own.mobifs, name));
        let there = there.map_err(StoreError::lower("looking at .mobifs"))?;
        Ok::<bool, StoreError>(there.is_some())
    };
    Ok(!is_there(JOURNAL)? && is_there(SALVAGED)?)
}

/// Files that the next mount would delete, and that may be all that is left of what is lost.
fn rescued<L: Lower>(
    lower: &L,
    own: &Parts<L::Handle>,
    tree: &Tree,
    placed: &Placed,
    reading: &Reading,
) -> Result<Vec<Rescued>, StoreError> {
    let unstaged = placed.unstaged.iter();
    let mut rescued: Vec<Rescued> = unstaged
        .map(|(name, inode)| Rescued::Directory(name.clone(), *inode))
        .collect();
    if !reading.has_lost() {
        return Ok(rescued);
    }
    let records = || placed.transactions.iter().flatten();
    let kept: HashSet<u64> = records()
        .filter_map(|record| match record {
            Record::Known { inode, .. } | Record::Bind { inode, .. } => Some(*inode),
            _ => None,
        })
        .collect();
    // A directory that is not empty is kept in any case.
    for (inode, name) in tree.limbo() {
        if !kept.contains(&inode) && tree.kind(inode) != Some(FileKind::Directory) {
            rescued.push(Rescued::InLimbo(name.to_vec()));
        }
    }
    let made: BTreeSet<String> = records()
        .filter_map(|record| match record {
            Record::Object(state) if state.created => Some(state.id.0.to_string()),
            _ => None,
        })
        .collect();
    if let Some(stage) = &own.stage {
        for name in tree.stage() {
            let shown = String::from_utf8_lossy(name);
            if shown.parse::<u64>().is_err() || made.contains(shown.as_ref()) {
                continue;
            }
            let stat = found(lower.stat_at(stage, name));
            let stat = stat.map_err(StoreError::lower("looking at .mobifs/stage"))?;
            if stat.is_some_and(|stat| stat.kind == FileKind::Regular && stat.size > 0) {
                rescued.push(Rescued::InStage(name.to_vec()));
            }
        }
    }
    for (directory, name) in &placed.replaced {
        if let Some(path) = tree.path(*directory) {
            let path = path.into_iter().map(<[u8]>::to_vec).collect();
            rescued.push(Rescued::InTree(path, name.clone()));
        }
    }
    Ok(rescued)
}
