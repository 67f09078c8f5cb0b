//! Getting past the owner's own permission bits without privileges.

use rustix::fs::{self, Mode};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::geteuid;

use super::handle::PosixHandle;
use super::root::PosixLower;

impl PosixLower {
    /// Runs `call`, again where a signal interrupted it (no filesystem on a local disk lets
    /// one, others do). If the modes of `objects` refuse it and they belong to the
    /// daemon's user, their owner bits are raised, `call` is run again, and the modes
    /// are put back.
    pub(super) fn with_access<T>(
        &self,
        objects: &[&PosixHandle],
        mut call: impl FnMut() -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        match retry_on_intr(&mut call) {
            Err(Errno::ACCESS) => {}
            other => return other,
        }
        let _exclusive = self.modes.write();
        let mut raised = Vec::with_capacity(objects.len());
        for &object in objects {
            if let Some(mode) = raise(object) {
                raised.push((object, mode));
            }
        }
        let result = retry_on_intr(&mut call);
        let mut restored = Ok(());
        for (object, mode) in raised.into_iter().rev() {
            restored = restored.and(change_mode(object, mode));
        }
        restored.and(result)
    }
}

/// Raises the owner's bits of `object`; returns the mode to put back. None if there
/// was nothing to raise or it is not ours: the repeated call then returns the error.
fn raise(object: &PosixHandle) -> Option<Mode> {
    let stat = fs::fstat(object.fd()).ok()?;
    let mode = Mode::from_raw_mode(stat.st_mode & 0o7777);
    let wanted = mode | Mode::RWXU;
    if stat.st_uid != geteuid().as_raw() || wanted == mode {
        return None;
    }
    change_mode(object, wanted).ok().map(|()| mode)
}

/// `chmod` of an open object that is not a symlink.
pub(super) fn change_mode(object: &PosixHandle, mode: Mode) -> Result<(), Errno> {
    if object.is_reference() {
        fs::chmod(object.path().as_str(), mode)
    } else {
        fs::fchmod(object.fd(), mode)
    }
}
