//! The VFS as SQLite calls it: which calls are ours, and which the default VFS's.

use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::OnceLock;

use mobifs_store::StoreScope;

use crate::database::companion_name::Companion;
use crate::database::durability;
use crate::database::finish::super_journal_in;
use crate::database::sqlite::{Sqlite, Unrecovered};
use crate::database::{OpenRequest, OpenedBy};
use crate::failure::{Failure, last_error, remember};
use crate::interface::abi::{self, Code, File, Vfs};
use crate::interface::app_data::{AppData, NAME};
use crate::interface::base_file::OwnFile;
use crate::interface::file::{self, OurFile, State};
use crate::interface::host::{Host, RegisterError};
use crate::interface::opened_file::{OpenedFile, Role};
use crate::interface::vfs_choice::{self, MainRequest, Opening};
use crate::options::Options;
use crate::registry::{Databases, Found, Lease};

/// Reads the database, so that its journal is rolled back, and brings its log into it.
const RECOVER: &CStr = c"SELECT count(*) FROM sqlite_master; PRAGMA wal_checkpoint(TRUNCATE)";

impl Sqlite for AppData {
    fn recover(&self, path: &Path) -> Result<(), Unrecovered> {
        // SAFETY: the base stays registered, and so does its name.
        let base = unsafe { CStr::from_ptr((*self.base).name) };
        self.run(path, base, RECOVER)
    }

    fn finish(&self, path: &Path) -> Result<(), Unrecovered> {
        self.run(path, NAME, RECOVER)
    }

    fn super_journal_of(&'static self, journal: &Path) -> Result<Option<Vec<u8>>, Failure> {
        // Its name, which is a path, and the numbers after that.
        const END_BYTES_MAX: u64 = 8192;
        let end = match companion(self, journal)? {
            Some((lease, name)) => {
                let end = lease
                    .database()
                    .and_then(|it| it.end_of(&name, END_BYTES_MAX));
                lease.end()?;
                end?
            }
            // SQLite does not lock its journals, so this file may be opened and closed.
            None => end_of_file(journal, END_BYTES_MAX).unwrap_or_default(),
        };
        Ok(super_journal_in(&end).map(<[u8]>::to_vec))
    }

    fn warn(&self, message: &str) {
        self.host.log(abi::WARNING, message);
    }
}

fn end_of_file(path: &Path, bytes_max: u64) -> std::io::Result<Vec<u8>> {
    let file = std::fs::File::options()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path)?;
    let size = file.metadata()?.len();
    let bytes = size.min(bytes_max);
    let mut end = vec![0; usize::try_from(bytes).unwrap_or(0)];
    file.read_exact_at(&mut end, size - bytes)?;
    Ok(end)
}

/// Makes the VFS known to a SQLite. A second call does nothing but make it the default one,
/// if that is wanted.
///
/// # Errors
/// [`RegisterError`].
pub fn register_with(host: Host, make_default: bool) -> Result<(), RegisterError> {
    host.check_version()?;
    let known = host.find(Some(NAME));
    if !known.is_null() {
        if make_default {
            // SAFETY: SQLite has found it, so it is complete and stays.
            unsafe { host.register(known, true)? };
        }
        return Ok(());
    }
    let base = host.find(None);
    // SAFETY: VFSes stay registered, and their fields do not change.
    let Some(template) = (unsafe { base.as_ref() }) else {
        return Err(RegisterError::NoDefault);
    };
    let app = Box::leak(Box::new(AppData { host, base }));
    let vfs = Vfs {
        version: 2,
        file_bytes: template
            .file_bytes
            .max(size_of::<OurFile>() as c_int)
            .max(size_of::<OwnFile>() as c_int),
        path_bytes_max: template.path_bytes_max,
        next: std::ptr::null_mut(),
        name: NAME.as_ptr(),
        app_data: std::ptr::from_mut(app).cast(),
        open: Some(open),
        delete: Some(delete),
        access: Some(access),
        full_pathname: Some(full_pathname),
        dl_open: Some(dl_open),
        dl_error: Some(dl_error),
        dl_sym: Some(dl_sym),
        dl_close: Some(dl_close),
        randomness: Some(randomness),
        sleep: Some(sleep),
        current_time: Some(current_time),
        get_last_error: Some(get_last_error),
        current_time_int64: template.current_time_int64.and(Some(current_time_int64)),
    };
    // SAFETY: complete, and leaked.
    unsafe { host.register(Box::leak(Box::new(vfs)), make_default) }
}

/// What an extension's entry point does: registers the VFS and gives the connection the
/// function `mobifs_last_error()`. Returns what the entry point returns.
///
/// # Safety
/// The arguments are those of an entry point that SQLite calls.
pub unsafe fn load_extension(
    connection: *mut c_void,
    message: *mut *mut c_char,
    routines: *const c_void,
    make_default: bool,
) -> c_int {
    static LOADED_BY: OnceLock<Host> = OnceLock::new();
    unsafe extern "C" fn say_last_error(
        context: *mut c_void,
        _count: c_int,
        _arguments: *mut *mut c_void,
    ) {
        if let Some(host) = LOADED_BY.get() {
            // SAFETY: the context is this call's, of the same SQLite.
            unsafe { host.give_text(context, &last_error().unwrap_or_default()) };
        }
    }
    // SAFETY: the caller's.
    let host = unsafe { Host::from_routines(routines) };
    let loaded = host.and_then(|host| {
        register_with(host, make_default)?;
        let first = LOADED_BY.get_or_init(|| host);
        if first.is(&host) && !connection.is_null() {
            // SAFETY: the caller's.
            unsafe { host.create_function(connection, c"mobifs_last_error", say_last_error)? };
        }
        Ok(())
    });
    match loaded {
        Ok(()) => abi::OK_LOAD_PERMANENTLY,
        Err(error) => {
            if let (Ok(host), false) = (host, message.is_null()) {
                // SAFETY: a place for a message, which SQLite frees.
                unsafe { *message = host.copy(&error.to_string()) };
            }
            abi::ERROR
        }
    }
}

/// # Safety
/// `vfs` is one that [`register_with`] has registered.
unsafe fn app_data(vfs: *mut Vfs) -> &'static AppData {
    // SAFETY: the caller's; it was leaked.
    unsafe { &*(*vfs).app_data.cast::<AppData>() }
}

/// # Safety
/// `name` is a C string that lives long enough.
unsafe fn path_of(name: *const c_char) -> Option<&'static Path> {
    if name.is_null() {
        return None;
    }
    // SAFETY: the caller's.
    let name = unsafe { CStr::from_ptr(name) };
    Some(Path::new(OsStr::from_bytes(name.to_bytes())))
}

unsafe extern "C" fn open(
    vfs: *mut Vfs,
    name: *const c_char,
    out: *mut File,
    flags: c_int,
    out_flags: *mut c_int,
) -> Code {
    // SAFETY: SQLite passes the VFS that was registered, and the name in this call.
    let (app, path) = unsafe { (app_data(vfs), path_of(name)) };
    // SAFETY: SQLite passes room for a file. It closes what has methods.
    unsafe { (*out).methods = std::ptr::null() };
    let parameter = |wanted: &str| {
        let wanted = CString::new(wanted).ok()?;
        // SAFETY: the name is the one that SQLite passes to this call.
        let value = unsafe { app.host.uri_parameter(name, &wanted) }?;
        Some(value.to_string_lossy().into_owned())
    };
    let mut is_for_base = false;
    let code = file::answer(&app.host, abi::CANTOPEN, || {
        let opening = match path {
            Some(path) if flags & abi::OPEN_MAIN_DB != 0 => {
                let request = MainRequest::new(app, name, path, flags, &parameter)?;
                // SAFETY: SQLite's own arguments.
                Some(unsafe { vfs_choice::open_main(&request, out_flags) }?)
            }
            Some(path) => open_companion(app, path, flags)?.map(Opening::Engine),
            None => None,
        };
        let state = match opening {
            None => {
                is_for_base = true;
                return Ok(());
            }
            Some(Opening::BaseVfs {
                file,
                lease,
                reason,
            }) => {
                // SAFETY: room for a file of ours: `file_bytes` says how much.
                unsafe { OwnFile::place(out, &app.host, file, lease, reason) };
                return Ok(());
            }
            Some(Opening::Engine(opened)) => State::Open(opened),
            Some(Opening::Deferred(waiting)) => State::Deferred(waiting),
        };
        // SAFETY: as above.
        unsafe { OurFile::place(out, &app.host, state) };
        // SAFETY: a place for the flags, or null.
        if let Some(out_flags) = unsafe { out_flags.as_mut() } {
            *out_flags = flags;
        }
        Ok(())
    });
    if is_for_base {
        // SAFETY: SQLite's own arguments, to its own VFS.
        let code = unsafe { base_open(app, name, out, flags, out_flags) };
        if code != abi::OK {
            let what = path.map_or("a temporary file".into(), Path::to_string_lossy);
            remember(format!("SQLite's own VFS cannot open {what}: error {code}"));
        }
        return code;
    }
    code
}

/// # Safety
/// The arguments are those of SQLite's `xOpen`.
unsafe fn base_open(
    app: &AppData,
    name: *const c_char,
    out: *mut File,
    flags: c_int,
    out_flags: *mut c_int,
) -> Code {
    // SAFETY: the base stays registered; the rest is the caller's.
    unsafe {
        match (*app.base).open {
            Some(open) => open(app.base, name, out, flags, out_flags),
            None => abi::CANTOPEN,
        }
    }
}

/// A journal or log; none if it is none of a database of ours.
fn open_companion(
    app: &'static AppData,
    path: &Path,
    flags: c_int,
) -> Result<Option<OpenedFile>, Failure> {
    let is_super = flags & abi::OPEN_SUPER_JOURNAL != 0;
    let role = if is_super {
        Role::SuperJournal(path.to_owned())
    } else if flags & abi::OPEN_MAIN_JOURNAL != 0 {
        Role::Journal
    } else if flags & abi::OPEN_WAL != 0 {
        Role::Log
    } else {
        return Ok(None);
    };
    let Some((lease, name)) = companion(app, path)? else {
        return Ok(None);
    };
    let may_create = flags & abi::OPEN_CREATE != 0;
    let must_be_new = flags & abi::OPEN_EXCLUSIVE != 0;
    let opened = lease
        .database()
        .and_then(|database| database.open_companion(&name, may_create, must_be_new));
    let object = match opened {
        Ok(object) => object,
        Err(failure) => {
            lease.end()?;
            return Err(failure);
        }
    };
    if is_super && may_create {
        durability::begin_joint(path);
    }
    Ok(Some(OpenedFile::companion(lease, object, role)?))
}

/// The database that a journal or log belongs to, and its name there; none if that database is
/// left to SQLite's own VFS. A database that was not closed, and that this process does not have
/// open, is opened for it, and closed again as it was: SQLite looks at the journals of all databases
/// that a transaction was over.
fn companion(app: &'static AppData, path: &Path) -> Result<Option<(Lease, Vec<u8>)>, Failure> {
    let Some(companion) = Companion::of(path) else {
        return Ok(None);
    };
    let database = &companion.database;
    let mut databases = Databases::lock();
    let lease = match databases.find(database) {
        Found::Engine(lease) => lease,
        Found::Sqlite => return Ok(None),
        Found::Nothing => {
            if !has_store(database) || !vfs_choice::is_in_use(app, database) {
                return Ok(None);
            }
            let arena = databases.arena_in_use();
            let arena = arena.and_then(|arena| arena.to_str().map(str::to_owned));
            databases.open(&OpenRequest {
                path: database,
                options: Options::read(&|name| arena.clone().filter(|_| name == "arena"))?,
                may_create: false,
                by: OpenedBy::Recovery,
                sqlite: app,
            })?
        }
    };
    drop(databases);
    let name = lease
        .database()
        .map(|database| database.name_of(&companion));
    match name {
        Ok(name) => Ok(Some((lease, name))),
        Err(failure) => {
            lease.end()?;
            Err(failure)
        }
    }
}

/// Whether there is a database with a store beside it.
fn has_store(database: &Path) -> bool {
    let (Some(directory), Some(name)) = (database.parent(), database.file_name()) else {
        return false;
    };
    let scope = StoreScope::File(name.to_owned());
    scope.own_path(directory).is_dir() && database.is_file()
}

/// Before the journal of a transaction over several databases is deleted in a recovery, what was
/// rolled back for it has to be durable in all of them: without it the rest would be taken for
/// committed. Those that are not open are durable.
fn commit_members(super_journal: &[u8]) -> Result<(), Failure> {
    for journal in super_journal.split(|&byte| byte == 0) {
        let Some(member) = Companion::of(Path::new(OsStr::from_bytes(journal))) else {
            continue;
        };
        let found = Databases::lock().find(&member.database);
        if let Found::Engine(lease) = found {
            let committed = lease.database().and_then(|database| database.commit());
            lease.end()?;
            committed?;
        }
    }
    Ok(())
}

unsafe extern "C" fn delete(vfs: *mut Vfs, name: *const c_char, sync: c_int) -> Code {
    // SAFETY: SQLite passes the VFS that was registered, and a name.
    let (app, path) = unsafe { (app_data(vfs), path_of(name)) };
    let mut is_for_base = false;
    let mut found = true;
    let code = file::answer(&app.host, abi::IOERR_DELETE, || {
        let Some(path) = path else {
            return Err(Failure::Misuse("a file without a name is deleted"));
        };
        let Some((lease, name)) = companion(app, path)? else {
            is_for_base = true;
            return Ok(());
        };
        let is_super = Companion::of(path).is_some_and(|it| it.is_super_journal());
        let deleted = lease.database().and_then(|database| {
            if is_super && durability::is_joint_of(path) {
                // Without this file the transaction cannot be rolled back any more.
                database.require_promised_room()?;
            } else if is_super {
                commit_members(&database.content(&name)?)?;
            }
            found = database.delete(&name)?;
            if name.ends_with(b"-journal") {
                database.journal_ended();
            }
            // Here a transaction over several databases is committed in all of them.
            if durability::end_joint(path) {
                database.commit()?;
            }
            Ok(())
        });
        lease.end()?;
        deleted
    });
    if is_for_base {
        // SAFETY: SQLite's own arguments, to its own VFS.
        return unsafe {
            match (*app.base).delete {
                Some(delete) => delete(app.base, name, sync),
                None => abi::IOERR_DELETE,
            }
        };
    }
    if code == abi::OK && !found {
        return abi::IOERR_DELETE_NOENT;
    }
    code
}

unsafe extern "C" fn access(
    vfs: *mut Vfs,
    name: *const c_char,
    flags: c_int,
    out: *mut c_int,
) -> Code {
    // SAFETY: SQLite passes the VFS that was registered, and a name.
    let (app, path) = unsafe { (app_data(vfs), path_of(name)) };
    let mut exists = None;
    let code = file::answer(&app.host, abi::IOERR_ACCESS, || {
        let Some(path) = path else { return Ok(()) };
        let Some((lease, name)) = companion(app, path)? else {
            return Ok(());
        };
        let found = lease.database().and_then(|database| database.exists(&name));
        lease.end()?;
        exists = Some(found?);
        Ok(())
    });
    if code != abi::OK {
        return code;
    }
    let Some(exists) = exists else {
        // SAFETY: SQLite's own arguments, to its own VFS.
        return unsafe {
            match (*app.base).access {
                Some(access) => access(app.base, name, flags, out),
                None => abi::IOERR_ACCESS,
            }
        };
    };
    debug_assert!(
        flags >= abi::ACCESS_EXISTS,
        "all access is granted to a companion that exists"
    );
    // SAFETY: a place for the answer.
    unsafe { *out = c_int::from(exists) };
    abi::OK
}

/// Hands calls on to the default VFS.
macro_rules! hand_on {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty, or $otherwise:expr;)*) => {
        $(unsafe extern "C" fn $name(vfs: *mut Vfs $(, $argument: $type)*) -> $result {
            // SAFETY: SQLite passes the VFS that was registered, and its own arguments are
            // for its own VFS, which stays registered.
            unsafe {
                let base = app_data(vfs).base;
                match (*base).$name {
                    Some(method) => method(base $(, $argument)*),
                    None => $otherwise,
                }
            }
        })*
    };
}

hand_on! {
    full_pathname(name: *const c_char, room: c_int, out: *mut c_char) -> Code, or abi::CANTOPEN;
    dl_open(name: *const c_char) -> *mut c_void, or std::ptr::null_mut();
    dl_error(room: c_int, out: *mut c_char) -> (), or ();
    dl_sym(library: *mut c_void, name: *const c_char) -> abi::Opaque, or None;
    dl_close(library: *mut c_void) -> (), or ();
    randomness(bytes: c_int, out: *mut c_char) -> c_int, or 0;
    sleep(microseconds: c_int) -> c_int, or 0;
    current_time(out: *mut f64) -> Code, or abi::ERROR;
    current_time_int64(out: *mut i64) -> Code, or abi::ERROR;
    get_last_error(room: c_int, out: *mut c_char) -> Code, or abi::OK;
}
