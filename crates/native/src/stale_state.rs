//! What a daemon that was killed leaves on the machine, beside what it has changed of the filesystem.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use mobifs_daemon::control::remove_stale_socket;
use mobifs_host::{MountEntry, mounts};
use mobifs_steered::{Device, Directory, PublishError, Registration};

use crate::note::{self, Ended, NoteError};
use crate::{history, only, takeover};

/// What was left cannot be removed.
#[derive(Debug, thiserror::Error)]
pub enum StaleStateError {
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

/// What daemons that were killed had left and what was removed by now, shown as a list.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct StaleState {
    registration: bool,
    standstill: bool,
    socket: bool,
    note: bool,
    /// Directories with the flag `+j`, of which there is no note: of a mount that has ended.
    marked: Vec<PathBuf>,
    /// A filesystem that has no mount here is in use, with the mount options of steering.
    is_in_use_elsewhere: bool,
}

impl StaleState {
    /// Nothing was found.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Directories of a mount that has ended, steered by themselves, whose files keep the flag `+j`.
    pub fn marked(&self) -> &[PathBuf] {
        &self.marked
    }

    /// Whether a filesystem that has no mount here is in use, with the options of steering, which are noted still.
    pub const fn is_in_use_elsewhere(&self) -> bool {
        self.is_in_use_elsewhere
    }

    /// Withdraws what a daemon promised that was killed, so that no program relies on it until it
    /// lapses, and lets apps go on that it has left standing still.
    ///
    /// # Errors
    /// [`StaleStateError`].
    pub fn withdraw(&mut self, mount: &MountEntry) -> Result<(), StaleStateError> {
        self.withdraw_from(Device {
            major: mount.device_major,
            minor: mount.device_minor,
        })
    }

    fn withdraw_from(&mut self, device: Device) -> Result<(), StaleStateError> {
        let directory = Directory::from_environment();
        self.standstill |= history::end_standstill_after_daemon(&directory, device);
        self.registration |= Registration::remove_left_over(&directory, device)?;
        Ok(())
    }

    /// Removes the control socket of a daemon that was killed, by which the mount would be taken for a
    /// steered one, and notes of earlier mounts with the same device number. To be called when nothing
    /// of this mount is left to restore.
    ///
    /// # Errors
    /// [`StaleStateError`].
    pub fn forget(&mut self, mount: &MountEntry) -> Result<(), StaleStateError> {
        let device = Device {
            major: mount.device_major,
            minor: mount.device_minor,
        };
        self.forget_device(device, &mounts()?)
    }

    fn forget_device(
        &mut self,
        device: Device,
        table: &[MountEntry],
    ) -> Result<(), StaleStateError> {
        match note::remove_of_ended_mount(device, takeover::NOTE, table)? {
            Ended::Nothing => {}
            Ended::InUseElsewhere => self.is_in_use_elsewhere = true,
            Ended::Removed(_) => self.note = true,
        }
        if let Ended::Removed(marked) = note::remove_of_ended_mount(device, only::NOTE, table)? {
            self.note = true;
            self.marked.extend(only::noted_directories(marked));
        }
        self.socket |= remove_stale_socket(device.major, device.minor)?;
        Ok(())
    }

    /// Forgets what a daemon left, and the promise, for mounts that were at `mountpoint` and have ended: the next one
    /// there may have another device number, and one elsewhere theirs. To be called when nothing is left to restore of
    /// a filesystem that is mounted elsewhere still.
    ///
    /// # Errors
    /// [`StaleStateError`].
    pub fn forget_ended_mounts_at(&mut self, mountpoint: &Path) -> Result<(), StaleStateError> {
        let table = mounts()?;
        let directory = Directory::from_environment();
        for device in note::devices_noted_at(mountpoint, takeover::NOTE)? {
            // A daemon that lives steers the next one, or has its mount where this process does not see it.
            if directory.find(device).is_some() {
                continue;
            }
            self.withdraw_from(device)?;
            self.forget_device(device, &table)?;
        }
        Ok(())
    }
}

impl fmt::Display for StaleState {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            (self.registration, "registration"),
            (self.socket, "control socket"),
            (self.note, "note of the mount options"),
            (self.standstill, "standstill of apps"),
        ];
        let there = parts.iter().filter(|(is_there, _)| *is_there);
        let names: Vec<_> = there.map(|(_, name)| *name).collect();
        formatter.write_str(&names.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_found_is_listed() {
        let mut left = StaleState::default();
        assert!(left.is_empty() && left.to_string().is_empty());
        (left.registration, left.note) = (true, true);
        assert_eq!(left.to_string(), "registration, note of the mount options");
        assert!(!left.is_empty());
    }
}
