//! Committed state that is not in its final place yet, served over the lower tree.

pub(crate) mod lookup;
mod orphans;
pub(crate) mod pending;
mod read;
pub(crate) mod search;
pub(crate) mod state;
pub(crate) mod table;
