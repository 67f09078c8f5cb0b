//! Committing everything that a filesystem has in memory.

use std::os::fd::OwnedFd;
use std::path::Path;

use mobifs_steered::Claim;
use rustix::fs::{Mode, OFlags, Timestamps, UTIME_NOW, fsync, futimens, open, syncfs};
use rustix::fs::{StatVfsMountFlags, Timespec};
use rustix::io::Errno;

use super::{Filesystem, zeroing};

/// Commits a filesystem.
#[derive(Debug)]
pub(crate) struct Committer {
    root: OwnedFd,
    /// On ext4, a file without a name.
    own_file: Option<OwnedFd>,
    /// For processes that do not see the registration.
    _claim: Option<Claim>,
}

impl Committer {
    /// For the filesystem that is mounted there.
    ///
    /// # Errors
    /// The mount point cannot be opened.
    pub(crate) fn open(filesystem: &Filesystem, mountpoint: &Path) -> Result<Self, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = open(mountpoint, flags, Mode::empty())?;
        let own_file = match filesystem {
            Filesystem::Ext4(ext4) if !ext4.commits_in_part() => {
                let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
                let made = open(mountpoint, flags, Mode::RUSR | Mode::WUSR);
                made.inspect_err(|error| {
                    tracing::warn!(
                        %error,
                        "cannot make a file without a name: commits write content to its place, too"
                    );
                })
                .ok()
            }
            _ => None,
        };
        Ok(Self {
            root,
            own_file,
            _claim: Claim::take(mountpoint),
        })
    }

    /// Commits what was changed before.
    ///
    /// `syncfs` on ext4 also writes to its place all that has just gone to the journal, which
    /// doubles what a commit writes; the kernel can do that later, once for several commits. A
    /// change of a file and an `fsync` of it commit the running transaction, which has everything,
    /// and write no other file.
    ///
    /// # Errors
    /// The filesystem's.
    pub(crate) fn commit(&self) -> Result<(), Errno> {
        let Some(own_file) = &self.own_file else {
            return self.commit_and_write_back();
        };
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: UTIME_NOW,
        };
        let times = Timestamps {
            last_access: now,
            last_modification: now,
        };
        match futimens(own_file, &times) {
            Ok(()) => fsync(own_file),
            // Without a change there would be nothing for it to commit.
            Err(Errno::NOSPC | Errno::DQUOT) => self.commit_and_write_back(),
            Err(errno) => Err(errno),
        }
    }

    /// Commits what was changed before, and writes content to its place.
    ///
    /// # Errors
    /// The filesystem's.
    pub(crate) fn commit_and_write_back(&self) -> Result<(), Errno> {
        syncfs(&self.root)
    }

    /// Whether a file could be changed. Where the filesystem has failed and become read-only, `syncfs` says that
    /// everything is committed.
    ///
    /// # Errors
    /// Why not.
    pub(crate) fn require_writable(&self) -> Result<(), Errno> {
        if self.own_file.is_some() {
            return Ok(());
        }
        match rustix::fs::fstatvfs(&self.root) {
            Ok(about) if about.f_flag.contains(StatVfsMountFlags::RDONLY) => Err(Errno::ROFS),
            other => other.map(|_| ()),
        }
    }

    /// After this no recovery puts back content from before, on an ext4.
    ///
    /// # Errors
    /// The filesystem's, or the kernel does not know how.
    pub(crate) fn empty_journal(&self) -> Result<(), Errno> {
        zeroing::empty_journal(&self.root)
    }
}
