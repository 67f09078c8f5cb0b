//! What goes wrong, in words for people and in SQLite's numbers.

use std::cell::RefCell;
use std::path::{Path, PathBuf};

use mobifs_store::StoreError;
use mobifs_volume::{ArenaError, ConfigError, FsError, VolumeError};

use crate::interface::abi::{self, Code};

/// What may be done about a database that the engine refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Nothing: the request is invalid, or the file is not a database.
    Final,
    /// Programs that do not know MobiFS use it: wait.
    InUse,
    /// The database is in the engine of another process, or was in this one's: wait.
    InEngine,
    /// The engine cannot work there: SQLite's own VFS may.
    NotHere,
    /// The database cannot be opened because of what other users have put beside it.
    Strangers,
}

/// Why a database cannot be opened, or a request about one not be met.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// A process that does not know MobiFS uses the database.
    #[error(
        "{path} is in use by a program that opened it without MobiFS; wait until that has closed \
         it",
        path = .0.display()
    )]
    InUse(PathBuf),
    /// Another process has it open through this VFS.
    #[error(
        "{path} is open through MobiFS in process {pid}; one process at a time can use a \
         database through MobiFS",
        path = path.display()
    )]
    InUseBy {
        /// The database.
        path: PathBuf,
        /// That process.
        pid: u32,
    },
    /// Another process has it open through this VFS, and its process id is unknown.
    #[error(
        "{path} is open through MobiFS in another process; one process at a time can use a \
         database through MobiFS",
        path = .0.display()
    )]
    InUseElsewhere(PathBuf),
    /// Another file lies at the path of a database that is open, or none.
    #[error(
        "{path} was deleted or replaced while this process has it open; it can be opened when \
         the last connection to what it was is closed",
        path = .0.display()
    )]
    Replaced(PathBuf),
    /// Nothing can be changed where it lies.
    #[error(
        "{path} or its directory cannot be written to",
        path = .0.display()
    )]
    ReadOnlyPlace(PathBuf),
    /// There is no such database, and none is to be made.
    #[error("{path} does not exist and was opened without SQLITE_OPEN_CREATE", path = .0.display())]
    Missing(PathBuf),
    /// SQLite's own VFS, to which it is left, refuses it.
    #[error("{reason}, and SQLite's own VFS refuses it with error {code}")]
    OwnVfs {
        /// That VFS's code.
        code: Code,
        /// Why it is left to that VFS.
        reason: String,
    },
    /// The last connection is closed, and the file is not the database.
    #[error(
        "{path} stays marked as in use, so that only MobiFS can open it, until it is opened and \
         closed again: {reason}",
        path = path.display()
    )]
    Unfinished {
        /// The database.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// A connection that was opened to read only asks for a lock for writing.
    #[error("{path} was opened to be read only, and cannot be locked for writing", path = .0.display())]
    OpenedToRead(PathBuf),
    /// The database was opened before this process was forked.
    #[error("the database was opened before fork(2); open it again in this process")]
    Forked,
    /// The file is no database, or an encrypted one.
    #[error(
        "{path} does not begin like a database; encrypted databases cannot be opened through \
         MobiFS",
        path = .0.display()
    )]
    Foreign(PathBuf),
    /// The database was used without MobiFS, has a journal of that time, and could not be recovered.
    #[error(
        "{path} was not closed properly by the program that used it last without MobiFS, and \
         cannot be recovered: {reason}",
        path = path.display()
    )]
    Unrecovered {
        /// The database.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// SQLite could not roll back or checkpoint after the last connection.
    #[error("rolling back or checkpointing {path} failed: {reason}", path = path.display())]
    NotFinished {
        /// The database.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// Its file's permissions and times could not be restored.
    #[error(
        "{path} belongs to user {owner}; only that user can use it through MobiFS",
        path = path.display()
    )]
    NotOwner {
        /// The database.
        path: PathBuf,
        /// The owner of the database's file.
        owner: u32,
    },
    /// The files beside it belong to another user.
    #[error(
        "{beside} belongs to user {owner}, and MobiFS uses nothing beside a database that could be \
         another user's forgery; {remedy}",
        beside = beside.display()
    )]
    StoreOfOther {
        /// The directory, or a journal or log.
        beside: PathBuf,
        /// Its owner.
        owner: u32,
        /// What the user can do.
        remedy: &'static str,
    },
    /// The process may not make files that are large enough.
    #[error(
        "the limit of file sizes (ulimit -f, {limit_bytes} bytes) leaves MobiFS no room for \
         {path}; it takes at least {min_bytes}",
        path = path.display(),
        min_bytes = crate::limits::FILE_BYTES_MIN
    )]
    FileSizeLimit {
        /// The database.
        path: PathBuf,
        /// The limit.
        limit_bytes: u64,
    },
    /// The name leaves no room for those of the files beside it.
    #[error(
        "the name of {path} is too long: MobiFS keeps files beside it whose names have {added} \
         bytes more, and the filesystem takes {max} bytes",
        path = path.display()
    )]
    NameTooLong {
        /// The database.
        path: PathBuf,
        /// The longest ending.
        added: usize,
        /// What a name may have.
        max: u64,
    },
    /// A parameter of the file's URI makes no sense.
    #[error("the parameter {name} of the database's URI {message}")]
    Parameter {
        /// The parameter.
        name: String,
        /// What is wrong.
        message: String,
    },
    /// The database is open in this process with other sizes.
    #[error(
        "{path} is open in this process with another {name}; it can be changed when the last \
         connection is closed",
        path = path.display()
    )]
    OpenOtherwise {
        /// The database.
        path: PathBuf,
        /// The parameter that differs.
        name: &'static str,
    },
    /// What the database's last process committed is beside another of its names.
    #[error(
        "{path} was not closed, has other names (hard links), and {store} is not there: open it by the name \
         beside which the directory is, or remove the other names",
        path = path.display(),
        store = store.display()
    )]
    OtherName {
        /// The database.
        path: PathBuf,
        /// Where its store would be by this name.
        store: PathBuf,
    },
    /// Parameters contradict each other.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A system call failed.
    #[error("{action} failed: {source}")]
    System {
        /// What was being done.
        action: String,
        /// Why it failed.
        source: std::io::Error,
    },
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The volume.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// An operation on a file.
    #[error(transparent)]
    File(#[from] FsError),
    /// The arena of a killed process cannot be used.
    #[error("what a killed process had not committed cannot be recovered: {0}")]
    Arena(#[from] ArenaError),
    /// SQLite asked for a file that does not exist.
    #[error("{0}")]
    Misuse(&'static str),
}

impl Failure {
    /// A database that is opened without a name.
    pub(crate) const NO_NAME: Self = Self::Misuse("a database needs a file name");

    /// For `map_err` on a system call.
    pub(crate) fn system<E: Into<std::io::Error>>(
        action: impl Into<String>,
    ) -> impl FnOnce(E) -> Self {
        move |source| Self::System {
            action: action.into(),
            source: source.into(),
        }
    }

    /// The store of the database at `path` could not be opened.
    pub(crate) fn of_store(path: &Path, error: StoreError) -> Self {
        match error {
            StoreError::InUse { pid: 0 } => Self::InUseElsewhere(path.to_owned()),
            StoreError::InUse { pid } => Self::InUseBy {
                path: path.to_owned(),
                pid,
            },
            other => Self::Store(other),
        }
    }

    /// The failure keeps the last connection to the database at `path` from applying everything.
    pub(crate) fn at_the_last_close(self, path: &Path) -> Self {
        Self::Unfinished {
            path: path.to_owned(),
            reason: self.to_string(),
        }
    }

    /// What may be done about it, when a database is opened.
    pub(crate) fn refusal(&self) -> Refusal {
        // It does not depend on the database's place, so it must not decide which VFS serves the
        // database.
        if self.lacks_descriptors() {
            return Refusal::Final;
        }
        match self {
            Self::InUse(_) => Refusal::InUse,
            Self::InUseBy { .. } | Self::InUseElsewhere(_) | Self::Replaced(_) => Refusal::InEngine,
            Self::Foreign(_)
            | Self::Parameter { .. }
            | Self::OpenOtherwise { .. }
            | Self::OtherName { .. }
            | Self::Config(_)
            | Self::NameTooLong { .. }
            | Self::Forked
            | Self::Misuse(_)
            | Self::Missing(_)
            | Self::OwnVfs { .. }
            | Self::OpenedToRead(_)
            | Self::Unfinished { .. } => Refusal::Final,
            Self::StoreOfOther { .. } | Self::Store(StoreError::Unsuitable(_)) => {
                Refusal::Strangers
            }
            Self::NotOwner { .. }
            | Self::ReadOnlyPlace(_)
            | Self::FileSizeLimit { .. }
            | Self::Unrecovered { .. }
            | Self::NotFinished { .. }
            | Self::System { .. }
            | Self::Store(_)
            | Self::Volume(_)
            | Self::File(_)
            | Self::Arena(_) => Refusal::NotHere,
        }
    }

    /// Whether the process, or the system, had no descriptor for another file.
    pub(crate) fn lacks_descriptors(&self) -> bool {
        let source = match self {
            Self::System { source, .. }
            | Self::Store(StoreError::Lower { source, .. })
            | Self::Volume(VolumeError::Store(StoreError::Lower { source, .. })) => source,
            _ => return false,
        };
        matches!(source.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
    }

    /// SQLite's number for it, where `otherwise` stands for what has none of its own.
    pub(crate) fn code(&self, otherwise: Code) -> Code {
        match self {
            Self::InUse(_) | Self::InUseBy { .. } | Self::InUseElsewhere(_) | Self::Replaced(_) => {
                abi::BUSY
            }
            Self::OwnVfs { code, .. } => *code,
            Self::Foreign(_) => abi::NOTADB,
            Self::Misuse(_) | Self::Forked => abi::MISUSE,
            Self::File(error) => code_of(*error, otherwise),
            Self::Volume(VolumeError::Fs(error)) => code_of(*error, otherwise),
            Self::Store(error) => code_of_store(error, otherwise),
            Self::Volume(VolumeError::Store(error)) => code_of_store(error, otherwise),
            // FULL says that the transaction is not there. A commit that has failed is tried again.
            Self::Volume(error) if error.is_full() && !is_commit(otherwise) => abi::FULL,
            Self::System { source, .. } => code_of_system(source, otherwise),
            _ => otherwise,
        }
    }
}

/// Whether a call that ends with this code may be the one that commits a transaction.
fn is_commit(otherwise: Code) -> bool {
    [abi::IOERR_FSYNC, abi::IOERR_DELETE].contains(&otherwise)
}

fn code_of(error: FsError, otherwise: Code) -> Code {
    match error {
        FsError::NoSpace => abi::FULL,
        // Only after IOERR and FULL does SQLite drop its cache. After another error of a write it
        // would write the failed transaction's pages from its cache, without a journal.
        FsError::ReadOnly if otherwise & abi::PRIMARY == abi::IOERR => otherwise,
        FsError::ReadOnly => abi::READONLY,
        _ => otherwise,
    }
}

fn code_of_store(error: &StoreError, otherwise: Code) -> Code {
    match error {
        StoreError::Lower { source, .. } => code_of_system(source, otherwise),
        _ => otherwise,
    }
}

fn code_of_system(source: &std::io::Error, otherwise: Code) -> Code {
    match source.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => abi::FULL,
        _ => otherwise,
    }
}

thread_local! {
    static LAST: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Keeps what went wrong for [`last_error`].
pub(crate) fn remember(message: String) {
    LAST.set(Some(message));
}

/// What went wrong last in a call of SQLite's from this thread, in words: SQLite itself has
/// only a number for it. None if nothing has.
pub fn last_error() -> Option<String> {
    LAST.with_borrow(Clone::clone)
}

/// Forgets it, so that after the next call [`last_error`] returns the error of that call or none.
pub fn forget_last_error() {
    LAST.set(None);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cleared_message_is_not_returned_again() {
        remember("the first".to_owned());
        assert_eq!(last_error().as_deref(), Some("the first"));
        forget_last_error();
        assert_eq!(last_error(), None);
    }

    #[test]
    fn a_write_that_is_refused_is_an_error_of_the_device() {
        let failure = Failure::File(FsError::ReadOnly);
        for call in [
            abi::IOERR,
            abi::IOERR_WRITE,
            abi::IOERR_TRUNCATE,
            abi::IOERR_DELETE,
        ] {
            assert_eq!(failure.code(call), call);
        }
        assert_eq!(failure.code(abi::CANTOPEN), abi::READONLY);
    }

    /// A database was left to SQLite's own VFS then, and the reason why that could not use it was
    /// not reported.
    #[test]
    fn what_lacks_descriptors_decides_nothing() {
        let lacking = || std::io::Error::from_raw_os_error(libc::EMFILE);
        let store = |source| StoreError::lower("opening")(source);
        for failure in [
            Failure::system("opening")(lacking()),
            Failure::Store(store(lacking())),
            Failure::Volume(VolumeError::Store(store(lacking()))),
        ] {
            assert_eq!(failure.refusal(), Refusal::Final, "{failure}");
        }
        let other = std::io::Error::from_raw_os_error(libc::EIO);
        let failure = Failure::system("opening")(other);
        assert_eq!(failure.refusal(), Refusal::NotHere);
    }

    #[test]
    fn a_full_disk_is_said_in_sqlites_own_number() {
        let full = || std::io::Error::from_raw_os_error(libc::ENOSPC);
        let store = |source| StoreError::lower("writing")(source);
        for failure in [
            Failure::File(FsError::NoSpace),
            Failure::system("writing")(full()),
            Failure::Store(store(full())),
            Failure::Volume(VolumeError::Store(store(full()))),
        ] {
            assert_eq!(failure.code(abi::IOERR_WRITE), abi::FULL, "{failure}");
        }
        let not_committed = |is_full| {
            Failure::Volume(VolumeError::NotCommitted {
                app: ".".to_owned(),
                others: 0,
                reason: "a reason".to_owned(),
                is_full,
            })
        };
        assert_eq!(not_committed(true).code(abi::IOERR_WRITE), abi::FULL);
        assert_eq!(
            not_committed(false).code(abi::IOERR_WRITE),
            abi::IOERR_WRITE
        );
        for call in [abi::IOERR_FSYNC, abi::IOERR_DELETE] {
            assert_eq!(not_committed(true).code(call), call, "it may be there");
        }
        let other = std::io::Error::from_raw_os_error(libc::EIO);
        let failure = Failure::Store(store(other));
        assert_eq!(failure.code(abi::IOERR_WRITE), abi::IOERR_WRITE);
    }
}
