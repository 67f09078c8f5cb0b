//! The functions of the SQLite that the VFS works for.

use std::ffi::{CStr, CString, c_char, c_int, c_void};

use crate::interface::abi::{self, Code, Vfs};

/// Why the VFS cannot be registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegisterError {
    /// The SQLite is too old, or was built without what is needed.
    #[error("this SQLite is too old: version 3.24 (2018) or newer is needed")]
    TooOld,
    /// SQLite has no VFS of its own.
    #[error("this SQLite has no VFS of its own to build upon")]
    NoDefault,
    /// SQLite refused.
    #[error("SQLite refused the VFS with error {0}")]
    Refused(i32),
}

/// A connection; only a pointer to it is ever had. The same holds for the next two.
type Connection = c_void;
type Context = c_void;
type Value = c_void;
/// A function of SQL.
pub(crate) type Function = unsafe extern "C" fn(*mut Context, c_int, *mut *mut Value);

type Find = unsafe extern "C" fn(*const c_char) -> *mut Vfs;
type Register = unsafe extern "C" fn(*mut Vfs, c_int) -> Code;
type UriParameter = unsafe extern "C" fn(*const c_char, *const c_char) -> *const c_char;
type Malloc = unsafe extern "C" fn(u64) -> *mut c_void;
type Log = unsafe extern "C" fn(c_int, *const c_char, ...);
type OpenV2 =
    unsafe extern "C" fn(*const c_char, *mut *mut Connection, c_int, *const c_char) -> Code;
type Exec = unsafe extern "C" fn(
    *mut Connection,
    *const c_char,
    *const c_void,
    *mut c_void,
    *mut *mut c_char,
) -> Code;
type Close = unsafe extern "C" fn(*mut Connection) -> Code;
type VersionNumber = unsafe extern "C" fn() -> c_int;
type CreateFunction = unsafe extern "C" fn(
    *mut Connection,
    *const c_char,
    c_int,
    c_int,
    *mut c_void,
    Option<Function>,
    *const c_void,
    *const c_void,
) -> Code;
type ResultText = unsafe extern "C" fn(*mut Context, *const c_char, c_int, isize);

/// The oldest SQLite that is worked for: 3.24.
const VERSION_MIN: c_int = 3_024_000;
const UTF8: c_int = 1;
/// `SQLITE_TRANSIENT`: SQLite makes a copy.
const TRANSIENT: isize = -1;

/// The functions of one SQLite: the one that an extension is loaded into, or that a program
/// is linked with. The C header builds it field by field.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Host {
    find: Find,
    register: Register,
    uri_parameter: UriParameter,
    malloc: Malloc,
    log: Log,
    open_v2: OpenV2,
    exec: Exec,
    close: Close,
    version_number: VersionNumber,
    create_function: CreateFunction,
    result_text: ResultText,
}

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Host").finish_non_exhaustive()
    }
}

/// Places in `sqlite3_api_routines`, which only ever grows at its end.
mod place {
    pub(super) const CLOSE: usize = 16;
    pub(super) const CREATE_FUNCTION: usize = 45;
    pub(super) const EXEC: usize = 55;
    pub(super) const LIBVERSION_NUMBER: usize = 67;
    pub(super) const RESULT_TEXT: usize = 85;
    pub(super) const OPEN_V2: usize = 135;
    pub(super) const VFS_FIND: usize = 141;
    pub(super) const VFS_REGISTER: usize = 142;
    pub(super) const LOG: usize = 167;
    pub(super) const URI_PARAMETER: usize = 189;
    pub(super) const MALLOC64: usize = 197;
}

impl Host {
    /// The SQLite that this program is linked with, statically or not.
    #[inline]
    pub fn linked() -> Self {
        unsafe extern "C" {
            fn sqlite3_vfs_find(name: *const c_char) -> *mut Vfs;
            fn sqlite3_vfs_register(vfs: *mut Vfs, make_default: c_int) -> Code;
            fn sqlite3_uri_parameter(file: *const c_char, name: *const c_char) -> *const c_char;
            fn sqlite3_malloc64(bytes: u64) -> *mut c_void;
            fn sqlite3_log(code: c_int, format: *const c_char, ...);
            fn sqlite3_open_v2(
                name: *const c_char,
                connection: *mut *mut Connection,
                flags: c_int,
                vfs: *const c_char,
            ) -> Code;
            fn sqlite3_exec(
                connection: *mut Connection,
                statements: *const c_char,
                callback: *const c_void,
                argument: *mut c_void,
                message: *mut *mut c_char,
            ) -> Code;
            fn sqlite3_close(connection: *mut Connection) -> Code;
            fn sqlite3_libversion_number() -> c_int;
            fn sqlite3_create_function(
                connection: *mut Connection,
                name: *const c_char,
                arguments: c_int,
                encoding: c_int,
                app: *mut c_void,
                function: Option<Function>,
                step: *const c_void,
                finish: *const c_void,
            ) -> Code;
            fn sqlite3_result_text(
                context: *mut Context,
                text: *const c_char,
                bytes: c_int,
                destructor: isize,
            );
        }
        Self {
            find: sqlite3_vfs_find,
            register: sqlite3_vfs_register,
            uri_parameter: sqlite3_uri_parameter,
            malloc: sqlite3_malloc64,
            log: sqlite3_log,
            open_v2: sqlite3_open_v2,
            exec: sqlite3_exec,
            close: sqlite3_close,
            version_number: sqlite3_libversion_number,
            create_function: sqlite3_create_function,
            result_text: sqlite3_result_text,
        }
    }

    /// The SQLite that loads an extension, by the table that it passes to the extension's
    /// entry point.
    ///
    /// # Errors
    /// [`RegisterError::TooOld`].
    ///
    /// # Safety
    /// `routines` is that table (`sqlite3_api_routines`), or null.
    pub unsafe fn from_routines(routines: *const c_void) -> Result<Self, RegisterError> {
        /// # Safety
        /// `F` is the type of the function at this place.
        unsafe fn entry<F: Copy>(
            table: *const *const c_void,
            place: usize,
        ) -> Result<F, RegisterError> {
            const { assert!(size_of::<F>() == size_of::<*const c_void>()) };
            // SAFETY: the caller's.
            unsafe {
                let function = table.add(place);
                if (*function).is_null() {
                    return Err(RegisterError::TooOld);
                }
                Ok(*function.cast::<F>())
            }
        }
        let table = routines.cast::<*const c_void>();
        if table.is_null() {
            return Err(RegisterError::TooOld);
        }
        // SAFETY: every table has the place that says how old it is, and no field after that
        // is looked at in an old one; each holds a function of just this type
        // (`sqlite3ext.h`).
        unsafe {
            let version_number: VersionNumber = entry(table, place::LIBVERSION_NUMBER)?;
            if version_number() < VERSION_MIN {
                return Err(RegisterError::TooOld);
            }
            Ok(Self {
                find: entry(table, place::VFS_FIND)?,
                register: entry(table, place::VFS_REGISTER)?,
                uri_parameter: entry(table, place::URI_PARAMETER)?,
                malloc: entry(table, place::MALLOC64)?,
                log: entry(table, place::LOG)?,
                open_v2: entry(table, place::OPEN_V2)?,
                exec: entry(table, place::EXEC)?,
                close: entry(table, place::CLOSE)?,
                version_number,
                create_function: entry(table, place::CREATE_FUNCTION)?,
                result_text: entry(table, place::RESULT_TEXT)?,
            })
        }
    }

    pub(crate) fn check_version(&self) -> Result<(), RegisterError> {
        // SAFETY: takes nothing and may be called at any time.
        let version = unsafe { (self.version_number)() };
        if version < VERSION_MIN {
            return Err(RegisterError::TooOld);
        }
        Ok(())
    }

    /// The VFS of this name, or the default one; null if there is none.
    pub(crate) fn find(&self, name: Option<&CStr>) -> *mut Vfs {
        // SAFETY: a C string or null.
        unsafe { (self.find)(name.map_or(std::ptr::null(), CStr::as_ptr)) }
    }

    /// # Safety
    /// `vfs` is complete, and stays where it is for as long as the process lives.
    pub(crate) unsafe fn register(
        &self,
        vfs: *mut Vfs,
        make_default: bool,
    ) -> Result<(), RegisterError> {
        // SAFETY: as the caller promises.
        match unsafe { (self.register)(vfs, c_int::from(make_default)) } {
            abi::OK => Ok(()),
            code => Err(RegisterError::Refused(code)),
        }
    }

    /// Value of a parameter of a file's URI; none if it has none of that name.
    ///
    /// # Safety
    /// `file` is a name that SQLite passed to `xOpen`, and lives as long as `'a`.
    pub(crate) unsafe fn uri_parameter<'a>(
        &self,
        file: *const c_char,
        name: &CStr,
    ) -> Option<&'a CStr> {
        // SAFETY: the caller promises the first, the second is a C string.
        let value = unsafe { (self.uri_parameter)(file, name.as_ptr()) };
        // SAFETY: it lies in what SQLite passed, and lives as long.
        (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) })
    }

    /// Writes to SQLite's error log.
    pub(crate) fn log(&self, code: Code, message: &str) {
        let Ok(message) = CString::new(message.replace('\0', " ")) else {
            return;
        };
        // SAFETY: the format takes just this one string.
        unsafe { (self.log)(code, c"mobifs: %s".as_ptr(), message.as_ptr()) };
    }

    /// A copy of `text` that SQLite frees; null if there is no memory.
    pub(crate) fn copy(&self, text: &str) -> *mut c_char {
        // SAFETY: any size is allowed.
        let memory = unsafe { (self.malloc)(text.len() as u64 + 1) }.cast::<u8>();
        if !memory.is_null() {
            // SAFETY: it has room for the text and its end, and it has no other owner.
            unsafe {
                memory.copy_from_nonoverlapping(text.as_ptr(), text.len());
                memory.add(text.len()).write(0);
            }
        }
        memory.cast()
    }

    /// Opens a database through a VFS, runs statements in it and closes it again.
    ///
    /// # Errors
    /// SQLite's code.
    pub(crate) fn run(&self, file: &CStr, vfs: &CStr, statements: &CStr) -> Result<(), Code> {
        let mut connection = std::ptr::null_mut();
        let (none, nothing) = (std::ptr::null(), std::ptr::null_mut());
        // A connection that is opening a shared cache has locked all that are shared.
        let flags = abi::OPEN_READWRITE | abi::OPEN_PRIVATE_CACHE;
        // SAFETY: C strings, a place for the connection, and a connection that is closed
        // whether it could be opened or not, as SQLite asks for.
        unsafe {
            let mut code = (self.open_v2)(file.as_ptr(), &raw mut connection, flags, vfs.as_ptr());
            if code == abi::OK {
                let message = std::ptr::null_mut();
                code = (self.exec)(connection, statements.as_ptr(), none, nothing, message);
            }
            let closed = (self.close)(connection);
            match if code == abi::OK { closed } else { code } {
                abi::OK => Ok(()),
                code => Err(code),
            }
        }
    }

    /// Whether it is the same SQLite.
    pub(crate) fn is(&self, other: &Self) -> bool {
        std::ptr::fn_addr_eq(self.find, other.find)
    }

    /// Gives a connection a function of SQL without arguments.
    ///
    /// # Safety
    /// `connection` is open.
    pub(crate) unsafe fn create_function(
        &self,
        connection: *mut c_void,
        name: &CStr,
        function: Function,
    ) -> Result<(), RegisterError> {
        let (none, nothing) = (std::ptr::null(), std::ptr::null_mut());
        // SAFETY: as the caller promises.
        let code = unsafe {
            let create = self.create_function;
            create(
                connection,
                name.as_ptr(),
                0,
                UTF8,
                nothing,
                Some(function),
                none,
                none,
            )
        };
        match code {
            abi::OK => Ok(()),
            code => Err(RegisterError::Refused(code)),
        }
    }

    /// Gives a function of SQL its result.
    ///
    /// # Safety
    /// `context` is that of the call.
    pub(crate) unsafe fn give_text(&self, context: *mut Context, text: &str) {
        let length = c_int::try_from(text.len()).unwrap_or(0);
        // SAFETY: SQLite copies so many bytes.
        unsafe { (self.result_text)(context, text.as_ptr().cast(), length, TRANSIENT) };
    }
}
