//! SQLite through the MobiFS VFS on a real ext4 whose device loses power.
//!
//! Programs of their own insert rows, one a transaction: in every journal mode, relaxed and
//! durable. At the power cut they are killed, and their memory is lost. After that every database
//! is whole and as after one transaction: not older than what was promised (`PRAGMA
//! mobifs_checkpoint`; in class `durable` every `COMMIT`), and a program without MobiFS was
//! refused, or found just such a database.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use fastrand::Rng;
use mobifs_device_server::Keep;
use rusqlite::{Connection, OpenFlags};

use crate::disk::{Disk, Recovery, can_run, wait_until};
use crate::transactions::map_nothing;

const CUTS: u64 = 4;
const SCALE: f64 = 0.25;
const ROUNDS_OF_A_FILESYSTEM: u64 = 20;
const MODES: [&str; 4] = ["delete", "truncate", "persist", "wal"];
const CLASSES: [&str; 2] = ["relaxed", "durable"];
/// A relaxed writer asks for a checkpoint after so many transactions.
const CHECKPOINT_INTERVAL: u64 = 16;

/// Set for a process: the database that it writes to, and the place of its arena.
const DATABASE: &str = "MOBIFS_TEST_VFS_DATABASE";
const ARENA: &str = "MOBIFS_TEST_VFS_ARENA";

/// Which writer.
#[derive(Clone, Copy, Debug)]
struct Kind {
    mode: &'static str,
    class: &'static str,
}

fn kinds() -> impl Iterator<Item = Kind> {
    let of_mode = |mode| CLASSES.map(|class| Kind { mode, class });
    MODES.into_iter().flat_map(of_mode)
}

impl Kind {
    fn database(self, root: &Path) -> PathBuf {
        root.join(format!("{}-{}.db", self.mode, self.class))
    }
}

fn open(path: &Path, arena: &Path) -> Connection {
    mobifs_sqlite::register().unwrap();
    let name = path.file_stem().unwrap().to_str().unwrap();
    let (mode, class) = name.split_once('-').unwrap();
    let uri = format!(
        "file:{}?vfs=mobifs&class={class}&arena={}&journal_bytes=1MiB&age_max_ms=50",
        path.display(),
        arena.display()
    );
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_CREATE
        | OpenFlags::SQLITE_OPEN_URI;
    let connection = Connection::open_with_flags(uri, flags)
        .unwrap_or_else(|error| panic!("{error}: {:?}", mobifs_sqlite::last_error()));
    let chosen: String = connection
        .query_row(&format!("PRAGMA journal_mode={mode}"), [], |row| row.get(0))
        .unwrap();
    assert_eq!(chosen, mode);
    connection
        .execute_batch("PRAGMA synchronous=FULL; PRAGMA cache_size=20")
        .unwrap();
    connection
}

/// Not a test: the program that dies with the power.
#[test]
fn inserts_rows_until_the_power_goes() {
    let (Some(path), Some(arena)) = (std::env::var_os(DATABASE), std::env::var_os(ARENA)) else {
        mobifs_skip::no_test();
        return;
    };
    let path = Path::new(&path);
    let connection = open(path, Path::new(&arena));
    connection
        .execute_batch("CREATE TABLE IF NOT EXISTS item (id INTEGER PRIMARY KEY, body TEXT)")
        .unwrap();
    let is_durable = path.to_string_lossy().contains("durable");
    let mut id = rows(&connection);
    let mut out = std::io::stdout();
    loop {
        id += 1;
        // Printed before it begins: a transaction under way may be there.
        writeln!(out, "\nbegun {id}").unwrap();
        let body = "x".repeat((id * 7919 % 900) as usize);
        let insert = "INSERT INTO item VALUES (?1, ?2)";
        if connection
            .execute(insert, rusqlite::params![id, body])
            .is_err()
        {
            return;
        }
        let is_promised = is_durable
            || (id.is_multiple_of(CHECKPOINT_INTERVAL)
                && connection
                    .query_row("PRAGMA mobifs_checkpoint", [], |_| Ok(()))
                    .is_ok());
        if is_promised {
            writeln!(out, "\npromised {id}").unwrap();
        }
    }
}

/// Checks a database: whole, and exactly the rows 1 to n. Returns n.
fn rows(connection: &Connection) -> u64 {
    let verdict: String = connection
        .query_row("PRAGMA integrity_check", [], |row| row.get(0))
        .unwrap();
    assert_eq!(verdict, "ok");
    let tables = "SELECT count(*) FROM sqlite_master";
    let tables: u64 = connection.query_row(tables, [], |row| row.get(0)).unwrap();
    if tables == 0 {
        return 0;
    }
    let query = "SELECT count(*), coalesce(max(id), 0) FROM item";
    let (count, last): (u64, u64) = connection
        .query_row(query, [], |row| Ok((row.get(0)?, row.get(1)?)))
        .unwrap();
    assert_eq!(count, last);
    last
}

/// A program that writes, and what it has said.
struct Writer {
    kind: Kind,
    process: Child,
    begun: Arc<AtomicU64>,
    promised: Arc<AtomicU64>,
    reader: JoinHandle<()>,
}

impl Writer {
    fn start(root: &Path, kind: Kind, arena: &Path, rows: u64) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "sqlite_vfs::inserts_rows_until_the_power_goes"])
            .args(["--nocapture", "--test-threads=1"])
            .env(DATABASE, kind.database(root))
            .env(ARENA, arena)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let (begun, promised) = (AtomicU64::new(rows), AtomicU64::new(rows));
        let (begun, promised) = (Arc::new(begun), Arc::new(promised));
        let said = (Arc::clone(&begun), Arc::clone(&promised));
        let output = process.stdout.take().unwrap();
        let reader = std::thread::spawn(move || {
            for line in BufReader::new(output).lines() {
                let Ok(line) = line else { return };
                for (word, number) in [("begun ", &said.0), ("promised ", &said.1)] {
                    if let Some(Ok(value)) = line.strip_prefix(word).map(str::parse) {
                        number.store(value, Ordering::SeqCst);
                    }
                }
            }
        });
        Self {
            kind,
            process,
            begun,
            promised,
            reader,
        }
    }

    /// Kills it, as the power cut does; the last transaction that had begun.
    fn die(mut self) -> u64 {
        let _dead = self.process.kill();
        self.process.wait().unwrap();
        self.reader.join().unwrap();
        self.begun.load(Ordering::SeqCst)
    }
}

#[test]
fn databases_in_mobifs_survive_power_cuts() {
    if !can_run(&["mkfs.ext4", "e2fsck", "dumpe2fs", "mount"]) {
        return;
    }
    let number = |variable: &str, default| {
        let text = std::env::var(variable).ok();
        text.map_or(default, |text: String| text.parse().unwrap())
    };
    let cuts = number("MOBIFS_FLASH_CUTS", CUTS);
    let seed = number("MOBIFS_FLASH_SEED", 1);
    let mut disk = Disk::serve(256, SCALE, |_| {});
    let mut known = vec![0; kinds().count()];
    let mut transactions = 0;
    for round in 0..cuts {
        if round % ROUNDS_OF_A_FILESYSTEM == 0 {
            disk.format();
            known.fill(0);
        }
        let seed = seed.wrapping_mul(1_000_003).wrapping_add(round);
        let found = one_round(&disk, seed, &known);
        transactions += found.iter().sum::<u64>() - known.iter().sum::<u64>();
        known = found;
        if (round + 1) % ROUNDS_OF_A_FILESYSTEM == 0 {
            println!("{} of {cuts} cuts survived", round + 1);
        }
    }
    disk.end();
    println!(
        "{cuts} power cuts under {} databases each: {transactions} transactions kept, none that \
         was promised lost",
        known.len()
    );
}

fn one_round(disk: &Disk, seed: u64, known: &[u64]) -> Vec<u64> {
    let mut random = Rng::with_seed(seed);
    let root = &disk.mountpoint;
    disk.mount();
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let writers: Vec<Writer> = kinds()
        .zip(known)
        .map(|(kind, rows)| Writer::start(root, kind, memory.path(), *rows))
        .collect();
    let progress = random.u64(1..60);
    wait_until("transactions begin", || {
        let begun = writers
            .iter()
            .map(|writer| writer.begun.load(Ordering::SeqCst));
        begun.zip(known).any(|(now, then)| now >= then + progress)
    });
    std::thread::sleep(Duration::from_micros(random.u64(0..60_000)));
    // All of this was promised before the power cut.
    let promised: Vec<u64> = writers
        .iter()
        .map(|writer| writer.promised.load(Ordering::SeqCst))
        .collect();
    disk.cut(Keep::Random { seed });
    let ends: Vec<(Kind, u64)> = writers
        .into_iter()
        .map(|writer| (writer.kind, writer.die()))
        .collect();
    // The content of memory is lost with the power.
    drop(memory);
    disk.umount();
    disk.power_on();
    disk.recover(if seed.is_multiple_of(2) {
        Recovery::Check
    } else {
        Recovery::Mount
    });
    disk.mount();
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let found = ends.iter().zip(promised).map(|(&(kind, begun), promised)| {
        let path = kind.database(root);
        check(
            &path,
            memory.path(),
            promised..=begun,
            &format!("seed {seed}, {kind:?}"),
        )
    });
    let found = found.collect();
    disk.umount();
    found
}

fn check(path: &Path, arena: &Path, possible: std::ops::RangeInclusive<u64>, what: &str) -> u64 {
    if !path.exists() {
        assert!(
            possible.contains(&0),
            "{what}: {possible:?}, but there is nothing"
        );
        return 0;
    }
    let look = || -> Option<u64> {
        let flags = OpenFlags::default();
        let plain = Connection::open_with_flags_and_vfs(path, flags, "unix").unwrap();
        map_nothing(&plain).unwrap();
        let readable = plain.query_row("SELECT count(*) FROM sqlite_master", [], |_| Ok(()));
        match readable {
            Ok(()) => Some(rows(&plain)),
            Err(error) => {
                assert!(
                    error.to_string().contains("not a database"),
                    "{what}: {error}"
                );
                None
            }
        }
    };
    if let Some(found) = look() {
        assert!(
            possible.contains(&found),
            "{what}, plain: {found} not in {possible:?}"
        );
    }
    let connection = open(path, arena);
    let found = rows(&connection);
    assert!(
        possible.contains(&found),
        "{what}: {found} not in {possible:?}"
    );
    connection.close().unwrap();
    assert_eq!(look(), Some(found), "{what}: closed");
    found
}
