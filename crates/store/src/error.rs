//! Errors of the stores.

use mobifs_base::ObjectId;
use std::io;

use rustix::io::Errno;

/// Why a store could not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A call to the lower filesystem failed.
    #[error("{action} failed: {source}")]
    Lower {
        /// What was being done, with the object's name or id.
        action: String,
        /// The lower filesystem's answer.
        source: io::Error,
    },
    /// Something on disk is not what this program writes; nothing of what the journal speaks of was
    /// changed.
    #[error("{what} is damaged: {detail}")]
    Corrupt {
        /// The damaged thing, e.g. "journal transaction 17 at byte 40960".
        what: String,
        /// What is wrong with it.
        detail: String,
    },
    /// The on-disk format is newer than this program.
    #[error(
        "the store has format version {found}, this program knows up to {supported}; \
         mount it with a newer mobifs"
    )]
    NewerFormat {
        /// Version found on disk.
        found: u32,
        /// Newest version known.
        supported: u32,
    },
    /// Nothing can be written to the store's own files.
    #[error(
        "no mount can write to it, because parts of it are immutable or append-only: {}",
        names.join(", ")
    )]
    Immutable {
        /// Which ones: names from the store's root on.
        names: Vec<&'static str>,
    },
    /// Another process has the store.
    #[error("the store is in use by process {pid}")]
    InUse {
        /// Process id written by the holder; 0 if it could not be read.
        pid: u32,
    },
    /// The directory cannot serve as a store.
    #[error("{0}")]
    Unsuitable(String),
    /// The directory has a copy of the requested store.
    #[error("this is a copy of the store that the killed process had")]
    Copied,
    /// Everything committed is safe, but the lower filesystem refuses to apply some of it.
    #[error(
        "{count} changes cannot be brought to their places, and stay in .mobifs until they can, or \
         what they concern is moved or deleted; everything else is in its place: {}",
        shown.join("; ")
    )]
    Unapplied {
        /// How many were refused.
        count: usize,
        /// What some of them were, and why.
        shown: Vec<String>,
        /// The error number of the first.
        errno: i32,
    },
    /// The object is gone or was never known.
    #[error("object {0} is not known to the store")]
    Unknown(mobifs_base::ObjectId),
}

impl StoreError {
    /// The lower filesystem's error number where there is one, else `EIO`.
    pub fn errno(&self) -> i32 {
        const EIO: i32 = 5;
        match self {
            Self::Lower { source, .. } => source.raw_os_error().unwrap_or(EIO),
            Self::Unapplied { errno, .. } => *errno,
            _ => EIO,
        }
    }

    /// Whether the lower filesystem is full, or what its user may have of it is.
    pub fn is_full(&self) -> bool {
        let full = [Errno::NOSPC, Errno::DQUOT];
        full.map(Errno::raw_os_error).contains(&self.errno())
    }

    /// Whether the lower filesystem has no room for something, on the disk or in an inode.
    pub(crate) fn has_no_room(&self) -> bool {
        // f2fs has no more room for extended attributes with the last of these.
        let is_room = self.is_full() || self.errno() == Errno::TOOBIG.raw_os_error();
        matches!(self, Self::Lower { .. }) && is_room
    }

    /// Whether the lower filesystem refuses something, for want of room or for another reason of
    /// its own: it works, but did not do this, and may do less or something else. Every error is
    /// such a refusal but those that report that it does not work, or that the object is not there.
    pub(crate) fn is_refusal(&self) -> bool {
        const TROUBLE: [Errno; 19] = [
            Errno::IO,
            Errno::ROFS,
            // Damage that a filesystem has found in itself.
            Errno::UCLEAN,
            Errno::BADMSG,
            Errno::NODEV,
            Errno::NXIO,
            Errno::SHUTDOWN,
            Errno::NOTCONN,
            Errno::TIMEDOUT,
            Errno::REMOTEIO,
            // Errors that pass.
            Errno::NOMEM,
            Errno::INTR,
            Errno::AGAIN,
            Errno::MFILE,
            Errno::NFILE,
            // The object is another one, or not there.
            Errno::NOENT,
            Errno::STALE,
            Errno::BADF,
            Errno::FAULT,
        ];
        let Self::Lower { source, .. } = self else {
            return false;
        };
        let is_trouble = |errno| TROUBLE.map(Errno::raw_os_error).contains(&errno);
        source
            .raw_os_error()
            .is_some_and(|errno| !is_trouble(errno))
    }

    /// This error, with what was being done (`applying`, `committing`) to the object at a path.
    pub(crate) fn while_doing(self, doing: &str, path: &str) -> Self {
        match self {
            Self::Lower { action, source } => Self::Lower {
                action: format!("{doing} \"{path}\": {action}"),
                source,
            },
            Self::Corrupt { what, detail } => Self::Corrupt {
                what: format!("{what}, needed for \"{path}\","),
                detail,
            },
            other => other,
        }
    }

    /// Wraps a lower error with what was being done.
    pub fn lower(action: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Lower {
            action: action.into(),
            source,
        }
    }
}

/// The error for an object that is at none of its recorded places.
pub(crate) fn missing(id: ObjectId) -> StoreError {
    StoreError::Corrupt {
        what: format!("the store's tree ({id})"),
        detail: "an object that committed changes belong to is not there; another program removed \
                 it from the store"
            .to_owned(),
    }
}
