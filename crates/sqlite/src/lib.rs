//! MobiFS inside the app: a VFS for SQLite.
//!
//! A database opened through the VFS `mobifs` answers at memory speed: its files live in the
//! same engine that a MobiFS mount has, in the app's own process, and reach the device as
//! whole transactions, when the policy says so or, in class `durable`, when SQLite commits.
//! A power cut never leaves a database that did not exist at some moment.
//!
//! ```no_run
//! mobifs_sqlite::register()?;
//! // With rusqlite: Connection::open("file:notes.db?vfs=mobifs&age_max_ms=2000")
//! # Ok::<(), mobifs_sqlite::RegisterError>(())
//! ```
//!
//! From the outside in: [`register`] and the C interface ([`interface`]) hand what
//! SQLite asks for to a [`database::Database`], which is shared by all connections of the
//! process and owns the volume, the locks that connections have on each other, and the
//! memory that WAL mode shares. `docs/SQLITE.md` says what users may rely on, and why.
#![deny(unsafe_code)]

mod database;
mod descriptors;
mod failure;
#[expect(unsafe_code, reason = "handlers of fork(2) are C functions")]
mod fork;
mod interface;
mod limits;
mod options;
mod registry;
/// For the tests; no part of the interface.
#[doc(hidden)]
pub mod simulation;

pub use failure::{Failure, forget_last_error, last_error};
pub use interface::app_data::NAME;
pub use interface::host::{Host, RegisterError};
pub use interface::vfs::{load_extension, register_with};

/// Makes the VFS `mobifs` known to the SQLite that this program is linked with.
///
/// # Errors
/// [`RegisterError`].
#[inline]
pub fn register() -> Result<(), RegisterError> {
    register_with(Host::linked(), false)
}
