//! SQLite under a power cut: transactions of one row each, every one durable when it
//! returns.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use rusqlite::Connection;

/// Journal modes and the synchronous setting with which they promise durability. In mode
/// DELETE with FULL the last transaction may roll back (SQLite does not sync the directory
/// from which the journal was deleted); EXTRA does.
pub(crate) const MODES: [(&str, &str); 4] = [
    ("wal", "FULL"),
    ("truncate", "FULL"),
    ("persist", "FULL"),
    ("delete", "EXTRA"),
];

fn database(root: &Path, mode: &str) -> PathBuf {
    root.join(format!("{mode}.db"))
}

/// The text of a row: of different lengths, so that rows span pages now and then.
fn body(id: u64) -> String {
    let length = 40 + (id * 7919 % 900) as usize;
    format!("{id:08}-").repeat(length / 9 + 1)
}

/// Has SQLite keep the index of its log in its own memory and not in a mapped file. That file
/// would be on a filesystem that this process serves: a fault in it waits for our server, a fork
/// of another test for the fault, and the server's own faults for the fork.
pub(crate) fn map_nothing(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch("PRAGMA locking_mode=EXCLUSIVE")
}

fn open(path: &Path, (mode, synchronous): (&str, &str)) -> rusqlite::Result<Connection> {
    let connection = Connection::open(path)?;
    // In the other modes nothing is mapped, and journals would end in another way.
    if mode == "wal" {
        map_nothing(&connection)?;
    }
    let pragma = format!("PRAGMA journal_mode={mode}");
    let chosen: String = connection.query_row(&pragma, [], |row| row.get(0))?;
    assert_eq!(chosen, mode);
    connection.execute_batch(&format!(
        "PRAGMA synchronous={synchronous};
         CREATE TABLE IF NOT EXISTS item (id INTEGER PRIMARY KEY, body TEXT);"
    ))?;
    Ok(connection)
}

/// Writers, one for each mode, until the disk fails under them or they are stopped.
pub(crate) struct Writers {
    stop: Arc<AtomicBool>,
    returned: Vec<Arc<AtomicU64>>,
    threads: Vec<JoinHandle<()>>,
}

impl Writers {
    /// Goes on after the rows that are there.
    pub(crate) fn start(root: &Path, rows: &[u64]) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let returned: Vec<_> = rows
            .iter()
            .map(|&count| Arc::new(AtomicU64::new(count)))
            .collect();
        let threads = MODES
            .into_iter()
            .zip(&returned)
            .map(|(mode, returned)| {
                let path = database(root, mode.0);
                let (stop, returned) = (Arc::clone(&stop), Arc::clone(returned));
                std::thread::spawn(move || {
                    // The error that ends it is the power cut's.
                    let _cut = write(&path, mode, &stop, &returned);
                })
            })
            .collect();
        Self {
            stop,
            returned,
            threads,
        }
    }

    /// Rows whose transactions have returned, by mode.
    pub(crate) fn returned(&self) -> Vec<u64> {
        let counts = self.returned.iter();
        counts.map(|count| count.load(Ordering::SeqCst)).collect()
    }

    pub(crate) fn join(self) -> Vec<u64> {
        self.stop.store(true, Ordering::SeqCst);
        for thread in self.threads {
            thread.join().unwrap();
        }
        let counts = self.returned.iter();
        counts.map(|count| count.load(Ordering::SeqCst)).collect()
    }
}

fn write(
    path: &Path,
    mode: (&str, &str),
    stop: &AtomicBool,
    returned: &AtomicU64,
) -> rusqlite::Result<()> {
    let connection = open(path, mode)?;
    while !stop.load(Ordering::SeqCst) {
        let id = returned.load(Ordering::SeqCst) + 1;
        connection
            .prepare_cached("INSERT INTO item (id, body) VALUES (?1, ?2)")?
            .execute(rusqlite::params![id, body(id)])?;
        returned.store(id, Ordering::SeqCst);
    }
    Ok(())
}

/// Checks every database: consistent, and exactly the rows 1 to n. Returns the n, by mode.
pub(crate) fn check(root: &Path) -> Vec<u64> {
    MODES
        .map(|(mode, _)| check_one(&database(root, mode), mode))
        .to_vec()
}

fn check_one(path: &Path, mode: &str) -> u64 {
    if !path.exists() {
        return 0;
    }
    let connection = Connection::open(path).unwrap();
    if mode == "wal" {
        map_nothing(&connection).unwrap();
    }
    let verdict: String = connection
        .query_row("PRAGMA integrity_check", [], |row| row.get(0))
        .unwrap();
    assert_eq!(verdict, "ok", "{}", path.display());
    let tables = "SELECT count(*) FROM sqlite_master WHERE name='item'";
    let tables: u64 = connection.query_row(tables, [], |row| row.get(0)).unwrap();
    if tables == 0 {
        return 0;
    }
    let mut query = connection
        .prepare("SELECT id, body FROM item ORDER BY id")
        .unwrap();
    let rows = query
        .query_map([], |row| {
            Ok((row.get::<_, u64>(0)?, row.get::<_, String>(1)?))
        })
        .unwrap();
    let mut count = 0;
    for row in rows {
        count += 1;
        assert_eq!(row.unwrap(), (count, body(count)), "{}", path.display());
    }
    count
}
