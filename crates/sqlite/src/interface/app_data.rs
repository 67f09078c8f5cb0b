//! What the VFS knows of the SQLite that it is registered with.

use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use crate::database::sqlite::Unrecovered;
use crate::interface::abi::{self, Vfs};
use crate::interface::host::Host;

/// Name of the VFS.
pub const NAME: &CStr = c"mobifs";

/// What the VFS needs to do its work; never given back.
#[derive(Debug)]
pub(crate) struct AppData {
    pub(crate) host: Host,
    /// SQLite's own VFS, for everything that is not a database or its companion.
    pub(crate) base: *mut Vfs,
}

// SAFETY: SQLite calls a VFS from any thread; it stays registered and does not change.
unsafe impl Send for AppData {}
// SAFETY: as above.
unsafe impl Sync for AppData {}

impl AppData {
    /// Opens a database through a VFS, runs statements and closes it.
    pub(super) fn run(
        &self,
        path: &Path,
        vfs: &CStr,
        statements: &CStr,
    ) -> Result<(), Unrecovered> {
        let name = CString::new(path.as_os_str().as_bytes());
        let name = name.map_err(|_| Unrecovered::Code(abi::MISUSE))?;
        match self.host.run(&name, vfs, statements) {
            Ok(()) => Ok(()),
            Err(code) if code & 0xff == abi::BUSY => Err(Unrecovered::Busy),
            Err(code) if code & 0xff == abi::FULL => Err(Unrecovered::Full),
            Err(code) => Err(Unrecovered::Code(code)),
        }
    }
}
