//! Objects that another program moved or removed in the store's directory, against the rule.

use mobifs_base::{Name, ObjectId};

use crate::StoreError;
use crate::apply::work::Applier;
use crate::lower::Lower;
use crate::overlay::Overlay;
use crate::overlay::lookup;
use crate::overlay::search::Search;

/// Deeper paths are abbreviated.
const SHOWN_DEPTH_MAX: usize = 64;

/// Logs and counts an object that is open and is not at any of the names at which it should be: its
/// committed changes are applied where it is now.
pub(super) fn report_if_modified<L: Lower>(
    overlay: &Overlay<L>,
    applier: &Applier,
    id: ObjectId,
    search: &mut Search,
) -> Result<(), StoreError> {
    let Some((parent, name)) = undisputed_name(overlay, id) else {
        return Ok(());
    };
    if lookup::place_in(overlay, id, search)?.is_none() {
        applier.counters().add_externally_modified();
        tracing::error!(
            path = shown_path(overlay, parent, &name),
            "another program moved or removed this in the store's directory while it was mounted; \
             what was committed to it went with it"
        );
    }
    Ok(())
}

/// Logs and counts an object that should have a name and was not found.
pub(super) fn report_lost<L: Lower>(overlay: &Overlay<L>, applier: &Applier, id: ObjectId) {
    applier.counters().add_externally_modified();
    let name = undisputed_name(overlay, id);
    // A look-up of its name has failed.
    let path = name.map(|(parent, name)| shown_path(overlay, parent, &name));
    tracing::error!(
        %id,
        path,
        "another program moved or removed this in the store's directory; what was committed to it \
         is lost"
    );
}

/// A name of the object in the lower tree that no pending change removes.
pub(crate) fn undisputed_name<L: Lower>(
    overlay: &Overlay<L>,
    id: ObjectId,
) -> Option<(ObjectId, Name)> {
    let state = overlay.state();
    let location = state.table.get(id)?;
    let stays = |name: &&(ObjectId, Name)| !state.pending.dentries().contains_key(*name);
    location.names().iter().find(stays).cloned()
}

fn shown_path<L: Lower>(overlay: &Overlay<L>, mut parent: ObjectId, name: &Name) -> String {
    let state = overlay.state();
    let mut names = vec![name.as_bytes().escape_ascii().to_string()];
    while parent != ObjectId::ROOT && names.len() < SHOWN_DEPTH_MAX {
        let location = state.table.get(parent);
        let Some((above, name)) = location.and_then(|location| location.names().first()) else {
            break;
        };
        names.push(name.as_bytes().escape_ascii().to_string());
        parent = *above;
    }
    names.reverse();
    names.join("/")
}
