//! Going on after a process was killed, with the ids that its kernel connection knows.
//!
//! No power was lost: the lower filesystem is as the killed process left it, between two calls. Its
//! knowledge is in the restart-state sink, but the effect of its last call may not have been
//! reported; that is found out first. Pending changes are served as before; only if names had begun
//! to move it is applied first, as far as the lower filesystem allows. `docs/DESIGN.md` has the
//! cases.

use mobifs_base::ObjectId;

use crate::overlay::state::State;

/// Whether a name in `stage/` belongs to an object that the killed process was making, or that is
/// in use. Not so a file that was made for a transaction that did not reach the journal.
pub(crate) fn is_staged_by_us(state: &State, id: ObjectId) -> bool {
    let is_pending = |object: &crate::overlay::pending::PendingObject| {
        object.created || object.bound.is_some() || !object.direct.is_empty()
    };
    let is_in_use = state.is_pinned(id) || state.spilled(id).is_some();
    // Otherwise it is half of a spill, which will be repeated.
    let is_noted = state
        .table
        .get(id)
        .is_some_and(|location| location.in_stage());
    (is_in_use && is_noted) || state.pending.object(id).is_some_and(is_pending)
}
