//! A mount at its beginning.

use std::path::Path;
use std::sync::Arc;

use mobifs_host::mount_at;
use mobifs_volume::{Arena, OpenedStore, OwnerState, Volume};

use crate::adapter::VolumeSession;
use crate::recording::Recording;
use crate::store_owner::serving;

/// A mount that is made or taken over, and not served yet.
pub(super) struct Serving {
    pub(super) opened: OpenedStore,
    pub(super) volume: Arc<Volume>,
    pub(super) session: VolumeSession,
    /// What a successor needs; none if there will be none.
    pub(super) arena: Option<Arena>,
    pub(super) recording: Option<Recording>,
}

/// Says in the store's lock which mount this process serves, as soon as it is there: it may leave
/// the tree before anything else is done. A mount that is out of it already ends by itself.
pub(super) fn record_serving(opened: &OpenedStore, mountpoint: &Path) {
    match mount_at(mountpoint) {
        Ok(Some(mount)) => opened.set_owner_state(serving(&mount)),
        Ok(None) => opened.set_owner_state(OwnerState::Finishing),
        Err(error) => {
            tracing::debug!(
                %error,
                "cannot find the mount in the mount table: the store's lock does not name it"
            )
        }
    }
}
