//! Whether a mount may have written a journal's content.
//!
//! A journal with right checksums may still be forged, and have changes that cannot be applied. A
//! store that was served with it could not be unmounted. So its merged content is checked against
//! the invariants of every valid journal, before anything is changed: changes that no apply could
//! make are refused, with the tree untouched, and a journal that no mount would write but that may
//! be applied is applied before the store is served. The lower tree is not looked at here;
//! `unapplied.rs` checks that the objects that the journal expects there exist.

use std::collections::{HashMap, HashSet};

use mobifs_base::{Attributes, FileKind, Name, ObjectId, SYMLINK_BYTES_MAX};

use crate::lower::Lower;
use crate::lower::OWN_DIRECTORY;
use crate::overlay::Overlay;
use crate::overlay::pending::PendingObject;
use crate::overlay::state::State;
use crate::{Capabilities, StoreError};

/// Longest name of an extended attribute, with its namespace (`XATTR_NAME_MAX`).
const XATTR_NAME_BYTES_MAX: usize = 255;
/// Extended attributes that programs may set here.
const XATTR_NAMESPACES: [&[u8]; 4] = [b"user.", b"trusted.", b"security.", b"system.posix_acl_"];

/// Fails if the journal cannot be applied, whatever the lower tree is. This is independent of how
/// far an interrupted apply has come: moved names do not change what is pending.
///
/// # Errors
/// [`StoreError::Corrupt`], [`StoreError::Unsuitable`]; nothing of what the journal speaks of was
/// changed.
pub(crate) fn check_possible<L: Lower>(overlay: &Overlay<L>) -> Result<(), StoreError> {
    let state = overlay.state();
    if let Some(name) = state.name_in_root(|name| !overlay.lower().is_in_scope(name)) {
        return Err(StoreError::Unsuitable(format!(
            "what it holds is for \"{name}\", and not for the name by which it is opened: open it \
             as \"{name}\"; if it was renamed before it was closed, give it that name back, open \
             and close it, and rename it then"
        )));
    }
    let impossible = |(id, detail): (ObjectId, &str)| StoreError::Corrupt {
        what: format!("what the journal says of {id}"),
        detail: format!("{detail}; it cannot be applied, and nothing was changed"),
    };
    state
        .impossible_object()
        .map_or(Ok(()), |found| Err(impossible(found)))?;
    state
        .impossible_entry()
        .map_or(Ok(()), |found| Err(impossible(found)))
}

/// Whether a mount that had not moved any name yet could have written the journal; if so, its apply
/// can wait.
pub(crate) fn is_valid<L: Lower>(overlay: &Overlay<L>, capabilities: &Capabilities) -> bool {
    let state = overlay.state();
    let reason = state
        .suspect_object(capabilities)
        .or_else(|| state.suspect_tree());
    if let Some((id, reason)) = reason {
        tracing::warn!(
            %id,
            reason,
            "no mount writes such a journal: the store applies it before it serves"
        );
    }
    reason.is_none()
}

impl State {
    /// A name in the root, pending or known, that satisfies the predicate.
    fn name_in_root(&self, is_like_this: impl Fn(&[u8]) -> bool) -> Option<&Name> {
        let pending = self.pending.dentries().keys();
        let known = self.table.ids().filter_map(|id| self.table.get(id));
        let known = known.flat_map(|location| location.names());
        let names = pending.chain(known);
        let mut in_root = names.filter(|(parent, _)| *parent == ObjectId::ROOT);
        in_root
            .find(|(_, name)| is_like_this(name.as_bytes()))
            .map(|(_, name)| name)
    }

    fn impossible_object(&self) -> Option<(ObjectId, &'static str)> {
        self.pending.objects().iter().find_map(|(&id, object)| {
            let detail = impossible(id, object)?;
            // An object that never gets a name need not be made.
            let is_made = !object.created || self.pending.is_linked(id);
            is_made.then_some((id, detail))
        })
    }

    fn impossible_entry(&self) -> Option<(ObjectId, &'static str)> {
        let pending = &self.pending;
        pending
            .dentries()
            .iter()
            .find_map(|((parent, name), child)| {
                let detail = if is_own(*parent, name) {
                    "it changes the store's own directory"
                } else if child.is_none() {
                    return None;
                } else if *child == Some(ObjectId::ROOT) {
                    "it gives the root a name"
                } else if pending.has_other_kind(*parent, FileKind::Directory) {
                    "it has entries and is no directory"
                } else if pending.object(*parent).is_some_and(|parent| parent.created)
                    && !pending.is_linked(*parent)
                {
                    "it is a new directory with entries and has no name"
                } else {
                    return None;
                };
                Some((*parent, detail))
            })
    }

    fn suspect_object(&self, capabilities: &Capabilities) -> Option<(ObjectId, &'static str)> {
        self.pending.objects().iter().find_map(|(&id, object)| {
            let Some(attributes) = object.attributes else {
                return Some((id, "it is changed and has no attributes"));
            };
            let contradicts_table = self.table.get(id).is_some_and(|location| {
                // A new object that an interrupted apply has made is one of the lower filesystem.
                let is_another = object.created && object.bound != Some(location.inode);
                is_another || (location.is_somewhere() && location.kind != attributes.kind)
            });
            let reason = if object.created && id < ObjectId::FIRST_NEW {
                "it is new and has the number of an inode"
            } else if contradicts_table {
                "its place is that of another object"
            } else if attributes.kind == FileKind::Regular
                && attributes.size > capabilities.file_bytes_max
            {
                "it is larger than files can be"
            } else if self.pending.links_of(id) > capabilities.links_max {
                "it has more names than files can have"
            } else if !object.xattrs.keys().all(|name| is_xattr_name(name)) {
                "it has an extended attribute with an impossible name"
            } else {
                return None;
            };
            Some((id, reason))
        })
    }

    /// Checks that every directory that the journal knows will have one name at most, that none
    /// will be inside itself, and that those that get entries will be reachable from the root.
    /// Listing a forged tree might not end.
    fn suspect_tree(&self) -> Option<(ObjectId, &'static str)> {
        let parents = match self.parents_of_directories() {
            Ok(parents) => parents,
            Err(id) => return Some((id, "it is a directory with several names")),
        };
        // Whether the way up from a directory ends at the root.
        let mut is_below_root = HashMap::from([(ObjectId::ROOT, true)]);
        for &id in parents.keys() {
            let mut path = HashSet::new();
            let mut at = id;
            let ends_well = loop {
                if let Some(&known) = is_below_root.get(&at) {
                    break known;
                }
                if !path.insert(at) {
                    return Some((at, "it is a directory that contains itself"));
                }
                match parents.get(&at) {
                    Some(&parent) => at = parent,
                    None => break false,
                }
            };
            is_below_root.extend(path.into_iter().map(|id| (id, ends_well)));
        }
        let pending = &self.pending;
        pending.dentries().iter().find_map(|((parent, _), child)| {
            let reason = if pending.has_other_kind(*parent, FileKind::Directory) {
                "it lost entries and is no directory"
            } else if child.is_some() && is_below_root.get(parent) != Some(&true) {
                "it has entries and is not reachable from the root"
            } else {
                return None;
            };
            Some((*parent, reason))
        })
    }

    /// The parent that each directory will have; or a directory that would have several.
    fn parents_of_directories(&self) -> Result<HashMap<ObjectId, ObjectId>, ObjectId> {
        let Self { pending, table, .. } = self;
        let names_of = |id| table.get(id).map_or(&[][..], |location| location.names());
        let known = table.ids().flat_map(names_of).map(|(parent, _)| *parent);
        let above: HashSet<ObjectId> = known
            .chain(pending.dentries().keys().map(|(parent, _)| *parent))
            .collect();
        let is_directory = |id: ObjectId| {
            let kinds = [
                pending.kind_of(id),
                table.get(id).map(|location| location.kind),
            ];
            kinds.contains(&Some(FileKind::Directory)) || above.contains(&id)
        };
        let mut parents = HashMap::new();
        for id in table.ids().filter(|id| is_directory(*id)) {
            let kept = names_of(id)
                .iter()
                .filter(|entry| !pending.dentries().contains_key(*entry));
            for (parent, _) in kept {
                if parents.insert(id, *parent).is_some() {
                    return Err(id);
                }
            }
        }
        for ((parent, _), child) in pending.dentries() {
            if let Some(child) = child.filter(|child| is_directory(*child))
                && parents.insert(child, *parent).is_some()
            {
                return Err(child);
            }
        }
        Ok(parents)
    }
}

/// Why an object cannot be made or changed as the journal says; none if it can.
fn impossible(id: ObjectId, object: &PendingObject) -> Option<&'static str> {
    let Some(attributes) = object.attributes else {
        return object.created.then_some("it is new and has no attributes");
    };
    let Attributes { kind, uid, gid, .. } = attributes;
    if id == ObjectId::ROOT && kind != FileKind::Directory {
        return Some("it is the root and no directory");
    }
    if uid == u32::MAX || gid == u32::MAX {
        return Some("its owner is no user");
    }
    let target = object.symlink_target.as_deref();
    if object.created && kind == FileKind::Symlink && !target.is_some_and(is_target) {
        return Some("it is a new symlink that leads nowhere");
    }
    None
}

fn is_target(target: &[u8]) -> bool {
    (1..=SYMLINK_BYTES_MAX).contains(&target.len()) && !target.contains(&0)
}

fn is_xattr_name(name: &[u8]) -> bool {
    name.len() <= XATTR_NAME_BYTES_MAX
        && !name.contains(&0)
        && XATTR_NAMESPACES
            .iter()
            .any(|namespace| name.len() > namespace.len() && name.starts_with(namespace))
}

/// Whether an entry is the store's own directory.
pub(crate) fn is_own(parent: ObjectId, name: &Name) -> bool {
    parent == ObjectId::ROOT && name.as_bytes() == OWN_DIRECTORY
}
