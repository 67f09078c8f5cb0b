//! SQLite's C interface, as far as a VFS needs it: types and numbers as in `sqlite3.h`, which
//! promises never to change them.

use std::ffi::{c_char, c_int, c_void};

/// A result code.
pub(crate) type Code = c_int;

pub(crate) const OK: Code = 0;
pub(crate) const ERROR: Code = 1;
pub(crate) const BUSY: Code = 5;
pub(crate) const NOMEM: Code = 7;
pub(crate) const READONLY: Code = 8;
/// The part of a code that is there without what says more.
pub(crate) const PRIMARY: Code = 0xff;
pub(crate) const IOERR: Code = 10;
pub(crate) const NOTFOUND: Code = 12;
pub(crate) const FULL: Code = 13;
pub(crate) const CANTOPEN: Code = 14;
pub(crate) const MISUSE: Code = 21;
pub(crate) const NOTADB: Code = 26;
pub(crate) const NOTICE: Code = 27;
pub(crate) const WARNING: Code = 28;
pub(crate) const OK_LOAD_PERMANENTLY: Code = OK | (1 << 8);
pub(crate) const IOERR_READ: Code = IOERR | (1 << 8);
pub(crate) const IOERR_SHORT_READ: Code = IOERR | (2 << 8);
pub(crate) const IOERR_WRITE: Code = IOERR | (3 << 8);
pub(crate) const IOERR_FSYNC: Code = IOERR | (4 << 8);
pub(crate) const IOERR_TRUNCATE: Code = IOERR | (6 << 8);
pub(crate) const IOERR_FSTAT: Code = IOERR | (7 << 8);
pub(crate) const IOERR_DELETE: Code = IOERR | (10 << 8);
pub(crate) const IOERR_ACCESS: Code = IOERR | (13 << 8);
pub(crate) const IOERR_LOCK: Code = IOERR | (15 << 8);
pub(crate) const IOERR_DELETE_NOENT: Code = IOERR | (23 << 8);

pub(crate) const OPEN_READONLY: c_int = 0x0000_0001;
pub(crate) const OPEN_READWRITE: c_int = 0x0000_0002;
pub(crate) const OPEN_CREATE: c_int = 0x0000_0004;
pub(crate) const OPEN_EXCLUSIVE: c_int = 0x0000_0010;
pub(crate) const OPEN_MAIN_DB: c_int = 0x0000_0100;
pub(crate) const OPEN_MAIN_JOURNAL: c_int = 0x0000_0800;
pub(crate) const OPEN_SUPER_JOURNAL: c_int = 0x0000_4000;
pub(crate) const OPEN_PRIVATE_CACHE: c_int = 0x0004_0000;
pub(crate) const OPEN_WAL: c_int = 0x0008_0000;

pub(crate) const ACCESS_EXISTS: c_int = 0;

pub(crate) const IOCAP_SAFE_APPEND: c_int = 0x0000_0200;
pub(crate) const IOCAP_SEQUENTIAL: c_int = 0x0000_0400;
pub(crate) const IOCAP_UNDELETABLE_WHEN_OPEN: c_int = 0x0000_0800;
pub(crate) const IOCAP_POWERSAFE_OVERWRITE: c_int = 0x0000_1000;

pub(crate) const SHM_UNLOCK: c_int = 1;
pub(crate) const SHM_EXCLUSIVE: c_int = 8;
pub(crate) const SHM_LOCKS: usize = 8;

pub(crate) const FCNTL_LOCKSTATE: c_int = 1;
pub(crate) const FCNTL_SIZE_HINT: c_int = 5;
pub(crate) const FCNTL_CHUNK_SIZE: c_int = 6;
pub(crate) const FCNTL_PERSIST_WAL: c_int = 10;
pub(crate) const FCNTL_VFSNAME: c_int = 12;
pub(crate) const FCNTL_POWERSAFE_OVERWRITE: c_int = 13;
pub(crate) const FCNTL_PRAGMA: c_int = 14;
pub(crate) const FCNTL_HAS_MOVED: c_int = 20;
pub(crate) const FCNTL_COMMIT_PHASETWO: c_int = 22;

/// `sqlite3_file`: what every open file begins with.
#[repr(C)]
pub(crate) struct File {
    pub(crate) methods: *const IoMethods,
}

/// [`IoMethods`] of a version, made of the functions that have their names in the module that uses
/// this.
macro_rules! io_methods {
    (version: $version:expr, fetch: $fetch:expr, unfetch: $unfetch:expr) => {
        $crate::interface::abi::IoMethods {
            version: $version,
            close,
            read,
            write,
            truncate,
            sync,
            file_size,
            lock,
            unlock,
            check_reserved_lock,
            file_control,
            sector_size,
            device_characteristics,
            shm_map,
            shm_lock,
            shm_barrier,
            shm_unmap,
            fetch: $fetch,
            unfetch: $unfetch,
        }
    };
}
pub(crate) use io_methods;

/// `sqlite3_io_methods`, version 3. Of another VFS's file only those of its version are
/// there.
#[repr(C)]
pub(crate) struct IoMethods {
    pub(crate) version: c_int,
    pub(crate) close: unsafe extern "C" fn(*mut File) -> Code,
    pub(crate) read: unsafe extern "C" fn(*mut File, *mut c_void, c_int, i64) -> Code,
    pub(crate) write: unsafe extern "C" fn(*mut File, *const c_void, c_int, i64) -> Code,
    pub(crate) truncate: unsafe extern "C" fn(*mut File, i64) -> Code,
    pub(crate) sync: unsafe extern "C" fn(*mut File, c_int) -> Code,
    pub(crate) file_size: unsafe extern "C" fn(*mut File, *mut i64) -> Code,
    pub(crate) lock: unsafe extern "C" fn(*mut File, c_int) -> Code,
    pub(crate) unlock: unsafe extern "C" fn(*mut File, c_int) -> Code,
    pub(crate) check_reserved_lock: unsafe extern "C" fn(*mut File, *mut c_int) -> Code,
    pub(crate) file_control: unsafe extern "C" fn(*mut File, c_int, *mut c_void) -> Code,
    pub(crate) sector_size: unsafe extern "C" fn(*mut File) -> c_int,
    pub(crate) device_characteristics: unsafe extern "C" fn(*mut File) -> c_int,
    pub(crate) shm_map:
        unsafe extern "C" fn(*mut File, c_int, c_int, c_int, *mut *mut c_void) -> Code,
    pub(crate) shm_lock: unsafe extern "C" fn(*mut File, c_int, c_int, c_int) -> Code,
    pub(crate) shm_barrier: unsafe extern "C" fn(*mut File),
    pub(crate) shm_unmap: unsafe extern "C" fn(*mut File, c_int) -> Code,
    /// From version 3 on.
    pub(crate) fetch: Option<unsafe extern "C" fn(*mut File, i64, c_int, *mut *mut c_void) -> Code>,
    pub(crate) unfetch: Option<unsafe extern "C" fn(*mut File, i64, *mut c_void) -> Code>,
}

/// A function that is only handed on.
pub(crate) type Opaque = Option<unsafe extern "C" fn()>;

/// `sqlite3_vfs`, version 2: without replaceable system calls. A version 3 of some VFS
/// else begins with the same fields.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Vfs {
    pub(crate) version: c_int,
    pub(crate) file_bytes: c_int,
    pub(crate) path_bytes_max: c_int,
    pub(crate) next: *mut Vfs,
    pub(crate) name: *const c_char,
    pub(crate) app_data: *mut c_void,
    pub(crate) open:
        Option<unsafe extern "C" fn(*mut Vfs, *const c_char, *mut File, c_int, *mut c_int) -> Code>,
    pub(crate) delete: Option<unsafe extern "C" fn(*mut Vfs, *const c_char, c_int) -> Code>,
    pub(crate) access:
        Option<unsafe extern "C" fn(*mut Vfs, *const c_char, c_int, *mut c_int) -> Code>,
    pub(crate) full_pathname:
        Option<unsafe extern "C" fn(*mut Vfs, *const c_char, c_int, *mut c_char) -> Code>,
    pub(crate) dl_open: Option<unsafe extern "C" fn(*mut Vfs, *const c_char) -> *mut c_void>,
    pub(crate) dl_error: Option<unsafe extern "C" fn(*mut Vfs, c_int, *mut c_char)>,
    pub(crate) dl_sym: Option<unsafe extern "C" fn(*mut Vfs, *mut c_void, *const c_char) -> Opaque>,
    pub(crate) dl_close: Option<unsafe extern "C" fn(*mut Vfs, *mut c_void)>,
    pub(crate) randomness: Option<unsafe extern "C" fn(*mut Vfs, c_int, *mut c_char) -> c_int>,
    pub(crate) sleep: Option<unsafe extern "C" fn(*mut Vfs, c_int) -> c_int>,
    pub(crate) current_time: Option<unsafe extern "C" fn(*mut Vfs, *mut f64) -> Code>,
    pub(crate) get_last_error: Option<unsafe extern "C" fn(*mut Vfs, c_int, *mut c_char) -> Code>,
    pub(crate) current_time_int64: Option<unsafe extern "C" fn(*mut Vfs, *mut i64) -> Code>,
}
