//! Ending a mount that may be in use.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::mount_users::{MountUser, users_of};
use mobifs_fuse::UnmountError;
use mobifs_host::mount_at;

/// How long a mount whose users cannot be found may stay busy: the kernel drops its own last
/// references a moment after the last user has closed it, and a process that looks at all mounts of
/// a machine (`df`) is inside for a moment.
const UNSEEN_USERS_MAX: Duration = Duration::from_secs(2);
/// How long one may stay busy whose users are found. A process that another one is just
/// starting has all its files until it executes its program, and one that was ended has them until
/// its memory is given back.
const SEEN_USERS_MAX: Duration = Duration::from_secs(1);
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// Ends the mount at `mountpoint` by `unmount`, also if it is busy for a moment without being used.
///
/// # Errors
/// Those of `unmount`; with [`UnmountError::Busy`] come the users, as far as they can be seen.
pub fn unmount_unused(
    mountpoint: &Path,
    unmount: impl Fn() -> Result<(), UnmountError>,
) -> Result<(), (UnmountError, Vec<MountUser>)> {
    let start = Instant::now();
    let mut pause = PAUSE_MIN;
    loop {
        let error = match unmount() {
            Err(error @ UnmountError::Busy(_)) => error,
            other => return other.map_err(|error| (error, Vec::new())),
        };
        let users = users_at(mountpoint);
        let patience = if users.is_empty() {
            UNSEEN_USERS_MAX
        } else {
            SEEN_USERS_MAX
        };
        if start.elapsed() >= patience {
            return Err((error, users));
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

fn users_at(mountpoint: &Path) -> Vec<MountUser> {
    let mount = mount_at(mountpoint).ok().flatten();
    mount.as_ref().map(users_of).unwrap_or_default()
}
