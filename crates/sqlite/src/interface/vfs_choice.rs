//! Which VFS serves a database: the engine, or SQLite's own.
//!
//! The decision is made when a database is opened that no connection of this process has open, and
//! holds for it, by its inode, and for all its companions until the last one closes it. Across
//! processes locks and the mark enforce the same decision: a process that has a database in the
//! engine holds SQLite's own locks on it, and a file that bears the mark is the engine's.

use std::ffi::{c_char, c_int};
use std::path::{Path, PathBuf};

use crate::database::header::Beginning;
use crate::database::{OpenRequest, OpenedBy};
use crate::failure::{Failure, Refusal};
use crate::interface::abi;
use crate::interface::app_data::AppData;
use crate::interface::base_file::BaseFile;
use crate::interface::opened_file::OpenedFile;
use crate::limits;
use crate::options::Options;
use crate::registry::{Backend, BaseLease, Databases, Lease};

/// A database that SQLite opens.
pub(crate) struct MainRequest<'a> {
    pub(crate) app: &'static AppData,
    /// What SQLite calls it, with the parameters of its URI.
    pub(crate) name: *const c_char,
    pub(crate) path: &'a Path,
    pub(crate) flags: c_int,
    /// The opener says that the file is not changed.
    pub(crate) is_immutable: bool,
    /// The file is used without locks.
    pub(crate) has_no_locks: bool,
    pub(crate) options: Options,
}

impl<'a> MainRequest<'a> {
    /// Reads what the URI says, by `parameter`.
    ///
    /// # Errors
    /// [`Failure::Parameter`].
    pub(crate) fn new(
        app: &'static AppData,
        name: *const c_char,
        path: &'a Path,
        flags: c_int,
        parameter: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, Failure> {
        Ok(Self {
            app,
            name,
            path,
            flags,
            is_immutable: is_set(parameter("immutable")),
            has_no_locks: is_set(parameter("nolock")),
            options: Options::read(parameter)?,
        })
    }
}

/// Whether a boolean parameter is true, in one of SQLite's spellings.
fn is_set(parameter: Option<String>) -> bool {
    parameter.is_some_and(|value| {
        let is_number = value.parse().is_ok_and(|number: i64| number != 0);
        is_number || ["yes", "true", "on"].contains(&value.to_ascii_lowercase().as_str())
    })
}

/// The outcome of the choice.
pub(crate) enum Opening {
    /// The file is open in the engine.
    Engine(OpenedFile),
    /// Another process uses it; it is opened when SQLite first locks it.
    Deferred(Box<DeferredOpen>),
    /// The file is left to SQLite's own VFS.
    BaseVfs {
        file: BaseFile,
        lease: Option<BaseLease>,
        reason: String,
    },
}

/// A database that could not be opened because another process uses it. SQLite expects no such
/// error when it opens a file, so it waits, or gets the error, when it asks for a lock.
pub(crate) struct DeferredOpen {
    app: &'static AppData,
    path: PathBuf,
    options: Options,
    may_create: bool,
    may_write: bool,
}

impl DeferredOpen {
    /// Tries again.
    ///
    /// # Errors
    /// [`Failure`].
    pub(crate) fn open(&self) -> Result<OpenedFile, Failure> {
        let mut databases = Databases::lock();
        let options = self.options.clone();
        let opened = open_in_engine(
            &mut databases,
            self.app,
            &self.path,
            options,
            self.may_create,
        )?;
        OpenedFile::main(opened, self.may_write)
    }
}

/// Opens a database.
///
/// # Errors
/// [`Failure`].
///
/// # Safety
/// The request is one of SQLite's, and `out_flags` a place for flags, or null.
pub(crate) unsafe fn open_main(
    request: &MainRequest<'_>,
    out_flags: *mut c_int,
) -> Result<Opening, Failure> {
    let path = request.path;
    // SAFETY: the caller's.
    let own = || unsafe { open_with_base(request, out_flags) };
    let mut databases = Databases::lock();
    let decided = databases.backend_of(path);
    if decided == Some(Backend::Sqlite) {
        let (file, _) = own()?;
        return Ok(Opening::BaseVfs {
            file,
            lease: databases.leave_to_sqlite(path),
            reason: "another connection of this process has it open so".to_owned(),
        });
    }
    let may_write = request.flags & abi::OPEN_READWRITE != 0;
    if decided.is_none() {
        if request.flags & abi::OPEN_CREATE == 0 && is_missing(path) {
            return Err(Failure::Missing(path.to_owned()));
        }
        // SQLite never locks or changes such a file, nor looks at what is beside it.
        if request.is_immutable
            && let Ok((file, beginning)) = own()
            && !beginning.is_in_use()
        {
            return Ok(Opening::BaseVfs {
                file,
                lease: None,
                reason: "it was opened as immutable".to_owned(),
            });
        }
        if let Some(limit_bytes) = limits::file_bytes_max_too_low() {
            let path = path.to_owned();
            let failure = Failure::FileSizeLimit { path, limit_bytes };
            // SAFETY: the caller's.
            return unsafe { leave(request, &mut databases, out_flags, failure) };
        }
        // What was committed could not be brought to its place, even where its store exists.
        if !can_write_beside(path, may_write) {
            let failure = Failure::ReadOnlyPlace(path.to_owned());
            // SAFETY: the caller's.
            match unsafe { leave(request, &mut databases, out_flags, failure) } {
                // A database that only the engine can open: the engine's error says why it cannot.
                Err(Failure::ReadOnlyPlace(_)) => {}
                outcome => return outcome,
            }
        }
    }
    let may_create = request.flags & abi::OPEN_CREATE != 0;
    let options = request.options.clone();
    let failure = match open_in_engine(&mut databases, request.app, path, options, may_create) {
        Ok(lease) => return Ok(Opening::Engine(OpenedFile::main(lease, may_write)?)),
        Err(failure) => failure,
    };
    // SAFETY: the caller's.
    unsafe { refused(request, &mut databases, out_flags, failure) }
}

/// What becomes of a database that the engine has refused.
///
/// # Safety
/// As [`open_main`].
unsafe fn refused(
    request: &MainRequest<'_>,
    databases: &mut Databases,
    out_flags: *mut c_int,
    failure: Failure,
) -> Result<Opening, Failure> {
    match failure.refusal() {
        Refusal::Final => Err(failure),
        // Without locks it would be changed under the process that has it open in the engine.
        Refusal::InEngine if request.has_no_locks => Err(failure),
        // SAFETY: the caller's.
        Refusal::InUse if request.has_no_locks => unsafe {
            leave(request, databases, out_flags, failure)
        },
        Refusal::InEngine | Refusal::InUse => Ok(Opening::Deferred(Box::new(DeferredOpen {
            app: request.app,
            path: request.path.to_owned(),
            options: request.options.clone(),
            may_create: request.flags & abi::OPEN_CREATE != 0,
            may_write: request.flags & abi::OPEN_READWRITE != 0,
        }))),
        // SAFETY: the caller's.
        Refusal::NotHere | Refusal::Strangers => unsafe {
            leave(request, databases, out_flags, failure)
        },
    }
}

fn open_in_engine(
    databases: &mut Databases,
    app: &'static AppData,
    path: &Path,
    options: Options,
    may_create: bool,
) -> Result<Lease, Failure> {
    databases.open(&OpenRequest {
        path,
        options,
        may_create,
        by: OpenedBy::Connection,
        sqlite: app,
    })
}

/// Leaves a database to SQLite's own VFS, unless its file is not the database: then it is
/// refused, with the reason why the engine cannot have it.
///
/// # Safety
/// As [`open_main`].
unsafe fn leave(
    request: &MainRequest<'_>,
    databases: &mut Databases,
    out_flags: *mut c_int,
    failure: Failure,
) -> Result<Opening, Failure> {
    let reason = failure.to_string();
    // SAFETY: the caller's.
    let (file, beginning) = match unsafe { open_with_base(request, out_flags) } {
        Ok(opened) => opened,
        Err(Failure::OwnVfs { code, .. }) => return Err(Failure::OwnVfs { code, reason }),
        Err(other) => return Err(other),
    };
    let has_nothing = beginning == Beginning::Empty && failure.refusal() == Refusal::Strangers;
    if beginning.is_in_use() || has_nothing {
        return Err(failure);
    }
    let path = request.path.display();
    let message = format!("{path} is left to SQLite's own VFS: {reason}");
    request.app.host.log(abi::NOTICE, &message);
    Ok(Opening::BaseVfs {
        file,
        lease: databases.leave_to_sqlite(request.path),
        reason,
    })
}

/// Has SQLite's own VFS open a database, and looks how the file begins.
///
/// # Safety
/// As [`open_main`].
unsafe fn open_with_base(
    request: &MainRequest<'_>,
    out_flags: *mut c_int,
) -> Result<(BaseFile, Beginning), Failure> {
    let refused = |code| Failure::OwnVfs {
        code,
        reason: "SQLite's own VFS cannot open it".to_owned(),
    };
    let mut given = request.flags;
    // SAFETY: the caller's.
    let opened = unsafe {
        BaseFile::open(
            request.app.base,
            request.name,
            request.flags,
            &raw mut given,
        )
    };
    let mut file = opened.map_err(refused)?;
    let beginning = file.beginning().map_err(refused)?;
    // SAFETY: the caller's.
    if let Some(out_flags) = unsafe { out_flags.as_mut() } {
        *out_flags = given;
    }
    Ok((file, beginning))
}

fn is_missing(path: &Path) -> bool {
    let looked = path.symlink_metadata();
    looked.is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
}

/// Whether the directory of a database takes new files, and the database changes, if it is there
/// or not to be made.
fn can_write_beside(path: &Path, may_make: bool) -> bool {
    use rustix::fs::{Access, access};
    let directory = path.parent().unwrap_or(Path::new("/"));
    access(directory, Access::WRITE_OK | Access::EXEC_OK).is_ok()
        && match access(path, Access::WRITE_OK) {
            Err(rustix::io::Errno::NOENT) => may_make,
            answer => answer.is_ok(),
        }
}

/// Whether the file at a path is that of a database that was not closed: its companions are in
/// the engine then.
pub(crate) fn is_in_use(app: &AppData, path: &Path) -> bool {
    // SAFETY: the base stays registered.
    let opened = unsafe { BaseFile::open_to_read(app.base, path) };
    opened.is_ok_and(|mut file| file.beginning().is_ok_and(Beginning::is_in_use))
}
