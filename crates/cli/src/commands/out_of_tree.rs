//! Mounts that have left the tree, by the path where they were.

use std::path::{Path, PathBuf};
use std::time::Duration;

use mobifs_daemon::control::{AnswerPatience, ControlClient, Reply, Request, detached_mounts};
use mobifs_host::{MountEntry, absolute_without_touching};
use mobifs_volume::{AppSelection, Status};

/// One daemon that is stopped must not hide the others for long.
pub(super) const PATIENCE: AnswerPatience = AnswerPatience {
    limit: Some(Duration::from_secs(3)),
    report: |_| {},
};

/// The daemon of a mount that was at this path and has left the tree.
pub(super) fn client_out_of_tree(path: &Path) -> Option<ControlClient> {
    let path = absolute_without_touching(path).ok()?;
    let select = AppSelection {
        limit: Some(0),
        ..AppSelection::default()
    };
    detached_mounts().ok()?.into_iter().find_map(|mut client| {
        let select = select.clone();
        match client.ask(&Request::Status { select }, &PATIENCE) {
            Ok(Reply::Status { status }) => {
                let place = place_in_status(client.mount(), &status).mountpoint;
                (place == path).then_some(client)
            }
            _ => None,
        }
    })
}

/// A mount of which the table says nothing, as its daemon knows it.
pub(super) fn place_in_status(mount: &MountEntry, status: &Status) -> MountEntry {
    let path = |text: &Option<String>| text.as_ref().map(PathBuf::from);
    let mut mount = mount.clone();
    mount.mountpoint = path(&status.mountpoint).unwrap_or(mount.mountpoint);
    mount.source = path(&status.store.path).unwrap_or(mount.source);
    mount
}
