//! SQLite's C interface: the functions that SQLite calls, and the functions of SQLite that this
//! crate calls.
//!
//! SQLite calls [`vfs`] to open a file; [`vfs_choice`] decides whether the engine or SQLite's own
//! VFS has it; [`file`] is the method table of open files, whose bodies are in [`opened_file`] for
//! files in the engine and in [`base_file`] for those of SQLite's own VFS.

pub(crate) mod abi;
#[expect(unsafe_code, reason = "SQLite's C interface")]
pub(crate) mod app_data;
#[expect(unsafe_code, reason = "SQLite's C interface")]
pub(crate) mod base_file;
#[expect(unsafe_code, reason = "SQLite's C interface")]
pub(crate) mod file;
#[expect(unsafe_code, reason = "SQLite's C interface")]
pub(crate) mod host;
pub(crate) mod opened_file;
pub(crate) mod pragma;
#[expect(unsafe_code, reason = "SQLite's C interface")]
pub(crate) mod vfs;
#[expect(unsafe_code, reason = "SQLite's C interface")]
pub(crate) mod vfs_choice;
