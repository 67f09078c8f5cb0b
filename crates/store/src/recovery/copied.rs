//! Stores that were copied before their journal was applied.
//!
//! A journal says by inode numbers which objects its changes belong to, and a copy of the tree has
//! different ones. The names are the same: as long as no apply has begun to move any, each object
//! is where the journal says. So the objects are looked up once, and the result is recorded in the
//! journal (`Record::Found`) before anything of the tree is changed: from then on the copy is a
//! store like others. `docs/DESIGN.md` has the crash argument.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::num::NonZeroU64;

use mobifs_base::{FileKind, Name, ObjectId, PAGE_BYTES_U64};

use crate::StoreError;
use crate::apply::limbo;
use crate::log::epoch::Epoch;
use crate::log::record::Record;
use crate::lower::{Lower, found};
use crate::overlay::Overlay;
use crate::recovery::unapplied;

/// Room in the journal that is left for the rename mark of the next apply.
const RESERVE_BYTES: u64 = PAGE_BYTES_U64;

/// What a journal says of the places of objects.
#[derive(Default)]
struct Recorded {
    /// The inode of each; none: an earlier copy did not have it.
    inodes: BTreeMap<ObjectId, Option<NonZeroU64>>,
    /// By directory: what lies in it.
    entries: HashMap<ObjectId, Vec<Entry>>,
}

struct Entry {
    id: ObjectId,
    name: Name,
    kind: FileKind,
}

impl Recorded {
    /// # Errors
    /// [`StoreError::Unsuitable`] if names may not be where the journal says.
    fn by(transactions: &[(u64, Vec<Record>)]) -> Result<Self, StoreError> {
        let mut recorded = Self::default();
        // Objects that wait in `limbo/`, under inode numbers that they do not have here.
        let mut nameless = HashSet::new();
        let mut needed = Vec::new();
        for record in transactions.iter().flat_map(|(_, records)| records) {
            match record {
                Record::Known {
                    id,
                    inode,
                    kind,
                    parent,
                    name,
                } => {
                    recorded
                        .inodes
                        .entry(*id)
                        .or_insert_with(|| NonZeroU64::new(*inode));
                    if let Ok(name) = Name::new(name) {
                        let (id, kind) = (*id, *kind);
                        let entries = recorded.entries.entry(*parent).or_default();
                        entries.push(Entry { id, name, kind });
                    } else {
                        nameless.insert(*id);
                    }
                }
                Record::Found { id, inode } => {
                    recorded.inodes.insert(*id, *inode);
                }
                Record::RenameMark | Record::RenameMarkInPart | Record::Bind { .. } => {
                    return Err(StoreError::Unsuitable(
                        "this is a copy that was made while files of the store were on their \
                         way to their places, and it is not known which of them had arrived; \
                         nothing was changed. Mount the original store once, or copy it anew \
                         after that"
                            .to_owned(),
                    ));
                }
                Record::Dentry { child, .. } => needed.extend(child),
                Record::Object(state) if state.attributes.nlink > 0 => needed.push(state.id),
                _ => {}
            }
        }
        if needed.iter().any(|id| nameless.contains(id)) {
            return Err(StoreError::Unsuitable(
                "this is a copy of a store some of whose files could not be brought to their \
                 places, and wait without a name; nothing was changed. Make room in the original \
                 store, mount it once, and copy it anew after that"
                    .to_owned(),
            ));
        }
        Ok(recorded)
    }
}

/// Which inodes objects have in a copy, where its journal says so; none: they are not in it. The
/// inodes in other records are those of the original, or of an earlier copy.
pub(crate) fn inodes(transactions: &[(u64, Vec<Record>)]) -> HashMap<ObjectId, Option<u64>> {
    let records = transactions.iter().flat_map(|(_, records)| records);
    let found = records.filter_map(|record| match record {
        Record::Found { id, inode } => Some((*id, inode.map(NonZeroU64::get))),
        _ => None,
    });
    found.collect()
}

/// What a copied journal does not record yet.
pub(crate) struct Located {
    /// A [`Record::Found`] for each object that has another inode than the journal says.
    records: Vec<Record>,
    /// They take the place of the last transaction, which said the same of an earlier copy: the
    /// journal may have no room for both.
    replaces_last: bool,
}

/// Looks up, by their names, the objects that a copied journal knows, and adds what it finds to
/// the transactions.
///
/// # Errors
/// [`StoreError::Unsuitable`] if their names may have moved; [`StoreError::Lower`].
pub(crate) fn locate<L: Lower>(
    lower: &L,
    transactions: &mut Vec<(u64, Vec<Record>)>,
) -> Result<Option<Located>, StoreError> {
    let of_copy = |(_, records): &mut (u64, Vec<Record>)| {
        records
            .iter()
            .all(|record| matches!(record, Record::Found { .. }))
    };
    let last = transactions.pop_if(of_copy);
    let records = look_up(lower, transactions)?;
    let is_said = match &last {
        Some((_, last)) => *last == records,
        None => records.is_empty(),
    };
    let sequence = transactions.last().map_or(1, |(sequence, _)| sequence + 1);
    transactions.push((sequence, records.clone()));
    Ok((!is_said).then_some(Located {
        records,
        replaces_last: last.is_some(),
    }))
}

fn look_up<L: Lower>(
    lower: &L,
    transactions: &[(u64, Vec<Record>)],
) -> Result<Vec<Record>, StoreError> {
    let mut recorded = Recorded::by(transactions)?;
    let failed = || StoreError::lower("looking for what the journal of a copied store changes");
    let root = lower.root().map_err(failed())?;
    let device = lower.stat(&root).map_err(failed())?.device;
    let inside = recorded.entries.remove(&ObjectId::ROOT).unwrap_or_default();
    let mut there: HashMap<ObjectId, u64> = HashMap::new();
    // The directories on the way down, and what is left to be looked for in each.
    let mut open = vec![(root, inside.into_iter())];
    while let Some((directory, left)) = open.last_mut() {
        let Some(entry) = left.next() else {
            open.pop();
            continue;
        };
        let name = entry.name.as_bytes();
        let stat = found(lower.stat_at(directory, name)).map_err(failed())?;
        let Some(stat) = stat.filter(|stat| (stat.device, stat.kind) == (device, entry.kind))
        else {
            continue;
        };
        there.entry(entry.id).or_insert(stat.inode);
        if stat.kind == FileKind::Directory
            && let Some(inside) = recorded.entries.remove(&entry.id)
        {
            let handle = lower.open(directory, name, false).map_err(failed())?;
            open.push((handle, inside.into_iter()));
        }
    }
    let moved = recorded.inodes.into_iter().filter_map(|(id, recorded)| {
        let inode = there.get(&id).copied().and_then(NonZeroU64::new);
        // What is gone is not known by its name any more.
        (recorded.is_some() && recorded != inode).then_some(Record::Found { id, inode })
    });
    Ok(moved.collect())
}

/// Makes the copy a store like others, whose journal has the inodes of its own tree.
///
/// # Errors
/// [`StoreError::Corrupt`] if something is missing without which the journal cannot be
/// applied, as when a part of a store was copied; [`StoreError::Lower`].
pub(crate) fn bind_copy<L: Lower>(
    overlay: &Overlay<L>,
    epoch: &mut Epoch<L::Handle>,
    located: Option<Located>,
) -> Result<(), StoreError> {
    // What is of another kind than recorded is found again where opening decides whether to apply.
    let _later = unapplied::check_found(overlay)?;
    if let Some(located) = located {
        if located.replaces_last {
            // If the power fails before the new one is whole, there is none, and the next mount
            // looks again.
            epoch.pop_last();
        }
        epoch.append(
            overlay.lower(),
            overlay.stage(),
            &located.records,
            RESERVE_BYTES,
        )?;
    }
    clear_foreign_limbo(overlay)?;
    // Not before: until now the journal's records do not hold for this tree, and its limbo may have
    // names of the original's.
    epoch.rebind_to_copy(overlay.lower())
}

/// Deletes what lies in `limbo/` under the number that it had in the original, which may be that of
/// another object here. It was unlinked and in use when the power failed: as long as no names move,
/// no object is on its way through `limbo/`, and a missing object that is to get a name from there
/// was found missing before. The deletions are durable when this returns.
fn clear_foreign_limbo<L: Lower>(overlay: &Overlay<L>) -> Result<(), StoreError> {
    let entries = overlay.lower().list(overlay.limbo());
    for entry in entries.map_err(StoreError::lower("listing .mobifs/limbo"))? {
        if entry.name != entry.inode.to_string().as_bytes() {
            limbo::delete_from_limbo(overlay, &entry.name)?;
        }
    }
    let synced = overlay.lower().sync(overlay.limbo());
    synced.map_err(StoreError::lower(
        "making durable what was deleted from .mobifs/limbo",
    ))
}
