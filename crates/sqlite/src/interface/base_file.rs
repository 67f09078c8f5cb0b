//! A database that is left to SQLite's own VFS: its file, with everything handed on, so that it
//! is known when it is closed.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use crate::database::header::{Beginning, HEADER_BYTES};
use crate::interface::abi::{self, Code, File, IoMethods, Vfs};
use crate::interface::host::Host;
use crate::interface::pragma;
use crate::registry::BaseLease;

/// A file that SQLite's own VFS has opened.
pub(crate) struct BaseFile {
    /// Memory for that VFS's file object, aligned for any type.
    memory: Box<[u64]>,
    /// A name that is not SQLite's: the VFS keeps a pointer to it.
    _name: Option<Box<[u8]>>,
}

impl BaseFile {
    /// Opens a file as SQLite asks for it.
    ///
    /// # Errors
    /// SQLite's code.
    ///
    /// # Safety
    /// `base` stays registered; `name`, `flags` and `out_flags` are those of SQLite's
    /// `xOpen`, and the name lives as long as the file.
    pub(crate) unsafe fn open(
        base: *mut Vfs,
        name: *const c_char,
        flags: c_int,
        out_flags: *mut c_int,
    ) -> Result<Self, Code> {
        // SAFETY: the caller's.
        let (open, bytes) = unsafe { ((*base).open, (*base).file_bytes) };
        let (Some(open), Ok(bytes)) = (open, usize::try_from(bytes)) else {
            return Err(abi::CANTOPEN);
        };
        let words = bytes.max(size_of::<File>()).div_ceil(size_of::<u64>());
        let mut file = Self {
            memory: vec![0; words].into_boxed_slice(),
            _name: None,
        };
        // SAFETY: the caller's, and as much room as the VFS wants.
        match unsafe { open(base, name, file.file(), flags, out_flags) } {
            abi::OK => Ok(file),
            // A file with methods is closed even after an error, as SQLite does.
            code => Err(code),
        }
    }

    /// Opens a database to look at it. The descriptor is that VFS's, which knows what closing
    /// it would do to locks on the file.
    ///
    /// # Errors
    /// SQLite's code.
    ///
    /// # Safety
    /// `base` stays registered.
    pub(crate) unsafe fn open_to_read(base: *mut Vfs, path: &Path) -> Result<Self, Code> {
        // SQLite finds the parameters of a database's URI around its name: none here.
        const AROUND: [u8; 4] = [0; 4];
        let name = [&AROUND, path.as_os_str().as_bytes(), &AROUND].concat();
        let name = name.into_boxed_slice();
        let flags = abi::OPEN_READONLY | abi::OPEN_MAIN_DB;
        let mut given = 0;
        // SAFETY: the name has its end and the zeros around it, and is kept with the file.
        unsafe {
            let text = name.as_ptr().add(AROUND.len()).cast();
            let mut file = Self::open(base, text, flags, &raw mut given)?;
            file._name = Some(name);
            Ok(file)
        }
    }

    fn file(&mut self) -> *mut File {
        self.memory.as_mut_ptr().cast()
    }

    fn methods(&self) -> *const IoMethods {
        // SAFETY: what is there begins like every file; zeros are null.
        unsafe { (*self.memory.as_ptr().cast::<File>()).methods }
    }

    /// What the file begins with.
    ///
    /// # Errors
    /// SQLite's code.
    pub(crate) fn beginning(&mut self) -> Result<Beginning, Code> {
        let (file, methods) = (self.file(), self.methods());
        let mut bytes = [0_u8; HEADER_BYTES + 1];
        let mut size = 0;
        // SAFETY: an open file with its own methods, places for the size and for so many bytes.
        let code = unsafe {
            match ((*methods).file_size)(file, &raw mut size) {
                abi::OK => {
                    let length = bytes.len() as c_int;
                    ((*methods).read)(file, bytes.as_mut_ptr().cast(), length, 0)
                }
                code => code,
            }
        };
        if code != abi::OK && code != abi::IOERR_SHORT_READ {
            return Err(code);
        }
        let length = usize::try_from(size).map_or(bytes.len(), |size| size.min(bytes.len()));
        Ok(Beginning::of(&bytes[..length]))
    }
}

impl Drop for BaseFile {
    fn drop(&mut self) {
        let (file, methods) = (self.file(), self.methods());
        if !methods.is_null() {
            // SAFETY: an open file with its own methods, which is not used any more. An error of
            // closing is ignored, as in SQLite itself.
            unsafe { ((*methods).close)(file) };
        }
    }
}

/// What SQLite has room for: the file that it sees, and the file of its own VFS.
#[repr(C)]
pub(crate) struct OwnFile {
    file: File,
    inner: *mut Inner,
}

struct Inner {
    host: &'static Host,
    // The file is closed before another connection may choose a VFS for the database anew.
    base: BaseFile,
    _lease: Option<BaseLease>,
    /// Why it is left to SQLite's own VFS.
    reason: String,
}

impl OwnFile {
    /// Puts an open file where SQLite wants it.
    ///
    /// # Safety
    /// There is room for an [`OwnFile`].
    pub(crate) unsafe fn place(
        out: *mut File,
        host: &'static Host,
        base: BaseFile,
        lease: Option<BaseLease>,
        reason: String,
    ) {
        // SAFETY: an open file has methods, which say of what version they are.
        let version = unsafe { (*base.methods()).version };
        let methods = match version {
            ..=1 => &METHODS_1,
            2 => &METHODS_2,
            _ => &METHODS_3,
        };
        let inner = Box::into_raw(Box::new(Inner {
            host,
            base,
            _lease: lease,
            reason,
        }));
        let file = File { methods };
        // SAFETY: the caller's.
        unsafe { out.cast::<Self>().write(Self { file, inner }) };
    }
}

const fn methods(version: c_int) -> IoMethods {
    abi::io_methods!(version: version, fetch: Some(fetch), unfetch: Some(unfetch))
}

static METHODS_1: IoMethods = methods(1);
static METHODS_2: IoMethods = methods(2);
static METHODS_3: IoMethods = methods(3);

/// # Safety
/// `file` was placed by [`OwnFile::place`] and is not closed. SQLite calls the methods of one
/// file from one thread at a time.
unsafe fn inner<'a>(file: *mut File) -> &'a mut Inner {
    // SAFETY: the caller's.
    unsafe { &mut *(*file.cast::<OwnFile>()).inner }
}

unsafe extern "C" fn close(file: *mut File) -> Code {
    // SAFETY: SQLite closes a file once, so what was placed there can be taken back.
    drop(unsafe { Box::from_raw((*file.cast::<OwnFile>()).inner) });
    abi::OK
}

unsafe extern "C" fn file_control(
    file: *mut File,
    operation: c_int,
    argument: *mut c_void,
) -> Code {
    // SAFETY: SQLite's own file.
    let Inner {
        host, base, reason, ..
    } = unsafe { inner(file) };
    if operation == abi::FCNTL_PRAGMA {
        let strings = argument.cast::<*mut c_char>();
        // SAFETY: for this operation it is an array of three strings, the second the name.
        let name = unsafe { CStr::from_ptr(*strings.add(1)) };
        if pragma::is_ours(&name.to_string_lossy()) {
            let text = format!("this database is left to SQLite's own VFS: {reason}");
            // SAFETY: as above, the first a place for the answer, which SQLite frees.
            unsafe { *strings = host.copy(&text) };
            return abi::ERROR;
        }
    }
    // SAFETY: SQLite's own arguments, for the file of its own VFS.
    unsafe { ((*base.methods()).file_control)(base.file(), operation, argument) }
}

/// Hands calls on to the file of SQLite's own VFS.
macro_rules! hand_on {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {
        $(unsafe extern "C" fn $name(file: *mut File $(, $argument: $type)*) -> $result {
            // SAFETY: SQLite's own file and arguments, for the file of its own VFS, whose methods
            // are of the version that was reported.
            unsafe {
                let base = &mut inner(file).base;
                ((*base.methods()).$name)(base.file() $(, $argument)*)
            }
        })*
    };
}

hand_on! {
    read(out: *mut c_void, length: c_int, at: i64) -> Code;
    write(data: *const c_void, length: c_int, at: i64) -> Code;
    truncate(bytes: i64) -> Code;
    sync(flags: c_int) -> Code;
    file_size(out: *mut i64) -> Code;
    lock(level: c_int) -> Code;
    unlock(level: c_int) -> Code;
    check_reserved_lock(out: *mut c_int) -> Code;
    sector_size() -> c_int;
    device_characteristics() -> c_int;
    shm_map(index: c_int, bytes: c_int, extend: c_int, out: *mut *mut c_void) -> Code;
    shm_lock(first: c_int, count: c_int, flags: c_int) -> Code;
    shm_barrier() -> ();
    shm_unmap(delete: c_int) -> Code;
}

unsafe extern "C" fn fetch(file: *mut File, at: i64, bytes: c_int, out: *mut *mut c_void) -> Code {
    // SAFETY: as above; asked for in version 3 only.
    unsafe {
        let base = &mut inner(file).base;
        match (*base.methods()).fetch {
            Some(fetch) => fetch(base.file(), at, bytes, out),
            None => abi::IOERR,
        }
    }
}

unsafe extern "C" fn unfetch(file: *mut File, at: i64, page: *mut c_void) -> Code {
    // SAFETY: as above; asked for in version 3 only.
    unsafe {
        let base = &mut inner(file).base;
        match (*base.methods()).unfetch {
            Some(unfetch) => unfetch(base.file(), at, page),
            None => abi::IOERR,
        }
    }
}
