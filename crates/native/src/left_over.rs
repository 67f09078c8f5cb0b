//! What a daemon that was killed leaves on the machine, beside what it has changed of the filesystem.

use std::io;

use mobifs_daemon::control::remove_stale_socket;
use mobifs_host::{MountEntry, mounts};
use mobifs_steered::{Device, Directory, PublishError, Registration};

use crate::note::{NoteError, NoteFile};
use crate::{only, takeover};

/// What was left cannot be removed.
#[derive(Debug, thiserror::Error)]
pub enum LeftOverError {
    /// The registration.
    #[error(transparent)]
    Registration(#[from] PublishError),
    /// A note.
    #[error(transparent)]
    Note(#[from] NoteError),
    /// The socket, or the table of mounts.
    #[error("cannot remove the control socket of a daemon that was killed: {0}")]
    Socket(#[from] io::Error),
}

/// Withdraws what a daemon promised that was killed, so that no program relies on it until it lapses.
///
/// # Errors
/// [`LeftOverError`].
pub fn withdraw_after_daemon(mount: &MountEntry) -> Result<(), LeftOverError> {
    let device = Device {
        major: mount.device_major,
        minor: mount.device_minor,
    };
    Registration::remove_left_over(&Directory::from_environment(), device)?;
    Ok(())
}

/// Removes the control socket of a daemon that was killed, by which the mount would be taken for a
/// steered one, and notes of earlier mounts with the same device number. To be called when nothing of
/// this mount is left to restore.
///
/// # Errors
/// [`LeftOverError`].
pub fn forget_daemon(mount: &MountEntry) -> Result<(), LeftOverError> {
    let table = mounts()?;
    for kind in [takeover::NOTE, only::NOTE] {
        NoteFile::of(mount, kind)?.remove_if_its_mount_has_ended(&table);
    }
    remove_stale_socket(mount)?;
    Ok(())
}
