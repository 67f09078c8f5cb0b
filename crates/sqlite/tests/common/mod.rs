//! What the tests of the VFS share.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    dead_code,
    unreachable_pub,
    reason = "each test uses what it needs, and fails where something is missing"
)]

pub mod kill_point;
pub mod programs;
pub mod simulated;
pub mod stateful;

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};

/// Every way in which SQLite makes transactions atomic, and some in which it does not.
pub const MODES: [&str; 6] = ["delete", "truncate", "persist", "memory", "wal", "off"];
/// Those in which it does, even if processes are killed.
pub const SAFE_MODES: [&str; 4] = ["delete", "truncate", "persist", "wal"];

/// Set for a process that was started by [`child`]: its purpose.
const PURPOSE: &str = "MOBIFS_TEST_CHILD";
const DATABASE: &str = "MOBIFS_TEST_DATABASE";

/// A directory with a database.
pub struct Place {
    pub directory: tempfile::TempDir,
}

impl Place {
    pub fn new() -> Self {
        mobifs_sqlite::register().unwrap();
        let directory = tempfile::tempdir().unwrap();
        Self { directory }
    }

    pub fn path(&self) -> PathBuf {
        self.directory.path().join("app.db")
    }

    /// Opens it through the VFS; `parameters` begin with `&`.
    pub fn open(&self, parameters: &str) -> Connection {
        opened(&self.path(), parameters)
    }
}

/// Opens a database through the VFS, or fails with the reason.
pub fn opened(path: &Path, parameters: &str) -> Connection {
    mobifs_sqlite::forget_last_error();
    open(path, parameters)
        .unwrap_or_else(|error| panic!("{error}: {:?}", mobifs_sqlite::last_error()))
}

/// Opens a database through the VFS.
pub fn open(path: &Path, parameters: &str) -> rusqlite::Result<Connection> {
    mobifs_sqlite::register().unwrap();
    let uri = format!("file:{}?vfs=mobifs{parameters}", path.display());
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_CREATE
        | OpenFlags::SQLITE_OPEN_URI;
    Connection::open_with_flags(uri, flags)
}

/// Opens a database as a program without MobiFS does.
pub fn plain(path: &Path) -> rusqlite::Result<Connection> {
    let plain = Connection::open_with_flags_and_vfs(path, OpenFlags::default(), "unix")?;
    plain.busy_timeout(Duration::ZERO)?;
    Ok(plain)
}

/// The error that a program without MobiFS gets for a database that is in use.
pub fn hot_error(path: &Path) -> String {
    let looked = plain(path).and_then(|plain| {
        plain.query_row("SELECT count(*) FROM sqlite_master", [], |row| {
            row.get::<_, i64>(0)
        })
    });
    looked
        .expect_err("an error: the database is in use")
        .to_string()
}

/// A program without MobiFS finds a database that is whole, with so many rows.
pub fn is_ordinary(path: &Path, rows: i64) {
    let plain = plain(path).unwrap();
    check(&plain);
    assert_eq!(count(&plain), rows);
    plain.close().unwrap();
}

pub fn check(connection: &Connection) {
    assert_eq!(text(connection, "PRAGMA integrity_check"), "ok");
}

/// The first column of the first row.
pub fn text(connection: &Connection, query: &str) -> String {
    connection.query_row(query, [], |row| row.get(0)).unwrap()
}

pub fn count(connection: &Connection) -> i64 {
    let query = "SELECT count(*) FROM t";
    connection.query_row(query, [], |row| row.get(0)).unwrap()
}

/// The table that most tests have.
pub fn make_table(connection: &Connection) {
    let statement = "CREATE TABLE IF NOT EXISTS t(a INTEGER PRIMARY KEY, b TEXT)";
    connection.execute_batch(statement).unwrap();
}

pub fn insert(connection: &Connection, rows: usize) {
    for row in 0..rows {
        let statement = "INSERT INTO t(b) VALUES (?)";
        connection
            .execute(statement, [format!("{row:0100}")])
            .unwrap();
    }
}

pub fn set_mode(connection: &Connection, mode: &str) {
    assert_eq!(
        text(connection, &format!("PRAGMA journal_mode={mode}")),
        mode
    );
}

/// Another process that runs the test `entry` of this program, which gets its purpose from
/// [`purpose`].
pub fn child(entry: &str, purpose: &str, database: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", entry, "--nocapture", "--test-threads=1"])
        .env(PURPOSE, purpose)
        .env(DATABASE, database)
        .stdout(Stdio::piped());
    command
}

/// The purpose of this process; none if it was not started by [`child`]. For programs that are no
/// tests by themselves.
pub fn purpose() -> Option<(String, PathBuf)> {
    let purpose = started_for();
    if purpose.is_none() {
        mobifs_skip::no_test();
    }
    purpose
}

/// The same for a test that starts itself anew as another process.
pub fn started_for() -> Option<(String, PathBuf)> {
    let purpose = std::env::var(PURPOSE).ok()?;
    Some((purpose, std::env::var_os(DATABASE)?.into()))
}

/// A number from the environment.
pub fn number_from(variable: &str, otherwise: u64) -> u64 {
    let value = std::env::var(variable).ok();
    value.map_or(otherwise, |value| value.parse().unwrap())
}

/// Makes the journal of a transaction over several databases beside one that is open, with the
/// names of journals in it, as SQLite does before it commits there.
#[allow(unsafe_code, reason = "SQLite's C interface")]
pub fn plant_super_journal(database: &Path, journal: &[u8]) {
    use rusqlite::ffi;
    use std::os::unix::ffi::OsStrExt as _;
    let other = database.parent().unwrap().join("x");
    let mut content = other.as_os_str().as_bytes().to_vec();
    content.truncate(content.len() - 1);
    content.extend_from_slice(journal);
    content.push(0);
    let name = [database.as_os_str().as_bytes(), b"-mj0A1B2C9FF\0"].concat();
    // SAFETY: a VFS that is registered, room for a file of it, names with their ends.
    unsafe {
        let vfs = ffi::sqlite3_vfs_find(c"mobifs".as_ptr());
        let mut room = vec![0_u64; (*vfs).szOsFile as usize / 8 + 1];
        let file = room.as_mut_ptr().cast::<ffi::sqlite3_file>();
        let flags = ffi::SQLITE_OPEN_READWRITE
            | ffi::SQLITE_OPEN_CREATE
            | ffi::SQLITE_OPEN_EXCLUSIVE
            | ffi::SQLITE_OPEN_SUPER_JOURNAL;
        let open = (*vfs).xOpen.unwrap();
        let code = open(vfs, name.as_ptr().cast(), file, flags, std::ptr::null_mut());
        assert_eq!(code, ffi::SQLITE_OK);
        let methods = &*(*file).pMethods;
        let length = i32::try_from(content.len()).unwrap();
        let code = methods.xWrite.unwrap()(file, content.as_ptr().cast(), length, 0);
        assert_eq!(code, ffi::SQLITE_OK);
        assert_eq!(methods.xClose.unwrap()(file), ffi::SQLITE_OK);
    }
}

/// An ordinary user.
pub const USER: u32 = 65_534;

/// Runs `body` in a thread of an ordinary user: on Linux user ids belong to threads, and are
/// those of the threads that it starts.
pub fn as_user<T: Send>(body: impl FnOnce() -> T + Send) -> T {
    use rustix::thread::{set_thread_res_gid, set_thread_res_uid};
    let run = || {
        let (gid, uid) = (
            rustix::fs::Gid::from_raw(USER),
            rustix::fs::Uid::from_raw(USER),
        );
        set_thread_res_gid(gid, gid, gid).unwrap();
        set_thread_res_uid(uid, uid, uid).unwrap();
        body()
    };
    std::thread::scope(|scope| scope.spawn(run).join().unwrap())
}

/// A disk of 24 MiB. Only root can have one.
pub struct SmallDisk(PathBuf);

impl SmallDisk {
    /// One that is mounted on a directory; none if nothing can be mounted here.
    pub fn mount(place: &Path) -> Option<Self> {
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=24m,mode=755", "tmpfs"]);
        let status = mount.arg(place).status();
        let is_mounted = status.is_ok_and(|status| status.success());
        is_mounted.then(|| Self(place.to_owned()))
    }

    /// What fills it.
    pub fn ballast(&self) -> PathBuf {
        self.0.join("ballast")
    }

    pub fn is_full(&self) -> bool {
        self.ballast().exists()
    }

    /// Fills it to its last byte.
    pub fn fill(&self) {
        let mut file = File::create(self.ballast()).unwrap();
        for length in [1 << 20, 4096, 1] {
            while file.write_all(&vec![1; length]).is_ok() {}
        }
    }

    /// The same, and gives so much back.
    pub fn fill_but(&self, left_bytes: u64) {
        self.fill();
        let ballast = File::options().write(true).open(self.ballast()).unwrap();
        let bytes = ballast.metadata().unwrap().len();
        ballast.set_len(bytes.saturating_sub(left_bytes)).unwrap();
    }

    /// Takes away what fills it.
    pub fn clear(&self) {
        std::fs::remove_file(self.ballast()).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Of a test that failed, the database may still be open.
        let _status = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// Calls it with a place for a database on a small disk, and that disk.
pub fn on_a_small_disk(test: impl FnOnce(&Path, &SmallDisk)) {
    let directory = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::mount(directory.path()) else {
        mobifs_skip::skip("a tmpfs cannot be mounted here");
        return;
    };
    test(&directory.path().join("app.db"), &disk);
}
