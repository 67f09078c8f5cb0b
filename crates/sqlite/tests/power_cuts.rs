//! Power cuts under SQLite, on a simulated disk of whose unsynced effects any subset lands.
//!
//! `MOBIFS_CUTS` says how many, `MOBIFS_CUT_SEED` which. After each cut
//!
//! * a program without MobiFS is refused, or finds a database that is whole and not older
//!   than what was promised;
//! * the database comes back as after one transaction: not older than the last one that was
//!   promised (by a checkpoint; in class `durable` by its `COMMIT`), not newer than the last
//!   one begun, and whole;
//! * closed, it is an ordinary database with the same content.
//!
//! Transactions of the engine end at any moment, also in the middle of SQLite's, because
//! another thread ends them. Recoveries are cut as well, and so are what follows them.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Dice, SAFE_MODES, check, open, plain, set_mode};
use mobifs_runtime::{Config, Volume, VolumeOptions};
use mobifs_sqlite::Failure;
use mobifs_sqlite::simulation::{
    Adopted, Beginning, Ground, HEADER_BYTES, READ_VERSION_AT, marked, stand_in, unmarked,
};
use mobifs_store::lower::{Create, Lower as _};
use mobifs_store::{JournalOptions, JournalStore};
use mobifs_testing::crash::{CrashLower, Effect, Fate};
use rusqlite::Connection;

const NAME: &[u8] = b"app.db";

/// The database's file on the simulated disk.
#[derive(Debug)]
struct SimulatedFile(CrashLower);

impl SimulatedFile {
    fn content(&self) -> io::Result<Vec<u8>> {
        let file = self.0.open(&self.0.root()?, NAME, true)?;
        let mut bytes = vec![0; usize::try_from(self.0.stat(&file)?.size).unwrap()];
        let length = self.0.read_at(&file, &mut bytes, 0)?;
        bytes.truncate(length);
        Ok(bytes)
    }

    fn change(&self, change: impl Fn(u8) -> u8) -> io::Result<()> {
        let file = self.0.open(&self.0.root()?, NAME, true)?;
        let mut version = [0];
        self.0
            .read_at(&file, &mut version, READ_VERSION_AT as u64)?;
        let version = [change(version[0])];
        self.0.write_at(&file, &version, READ_VERSION_AT as u64)?;
        self.0.sync(&file)
    }

    fn beginning(&self) -> io::Result<Beginning> {
        let content = self.content()?;
        Ok(Beginning::of(&content[..content.len().min(HEADER_BYTES)]))
    }

    fn write(&self, content: &[u8]) -> io::Result<()> {
        let file = self.0.open(&self.0.root()?, NAME, true)?;
        self.0.truncate(&file, content.len() as u64)?;
        self.0.write_at(&file, content, 0)?;
        self.0.sync(&file)
    }
}

fn system(source: io::Error) -> Failure {
    Failure::System {
        action: "marking".to_owned(),
        source,
    }
}

impl Ground for SimulatedFile {
    fn mark(&self) -> Result<(), Failure> {
        match self.beginning().map_err(system)? {
            Beginning::Empty => self.write(&stand_in()).map_err(system),
            Beginning::Database { .. } => self.change(marked).map_err(system),
            _ => Ok(()),
        }
    }

    fn unmark(&self) -> Result<(), Failure> {
        match self.beginning().map_err(system)? {
            Beginning::StandIn => self.write(&[]).map_err(system),
            Beginning::Database { is_marked: true } => self.change(unmarked).map_err(system),
            _ => Ok(()),
        }
    }

    fn has_moved(&self) -> bool {
        false
    }
}

/// A disk with a database on it that is alive.
struct Alive {
    path: PathBuf,
    volume: Arc<Volume>,
    adopted: Adopted,
}

fn bring_to_life(lower: &CrashLower, journal: &JournalOptions) -> Result<Alive, String> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let path = PathBuf::from(format!("/simulated-{number}/app.db"));
    let (store, _) = JournalStore::open(lower.clone(), journal).map_err(|e| e.to_string())?;
    let config = Config::defaults().unwrap();
    let options = VolumeOptions {
        background: false,
        no_access_time: true,
        ..VolumeOptions::new(&config)
    };
    let volume = Volume::start(Arc::new(store), options).map_err(|e| e.to_string())?;
    let ground = Box::new(SimulatedFile(lower.clone()));
    let adopted = Adopted::new(&path, Arc::clone(&volume), ground).map_err(|e| e.to_string())?;
    Ok(Alive {
        path,
        volume,
        adopted,
    })
}

/// What was promised, and what was begun.
#[derive(Debug, Default)]
struct Progress {
    promised: AtomicI64,
    begun: AtomicI64,
}

/// A disk as a cut left it.
struct Cut {
    lower: CrashLower,
    promised: i64,
    begun: i64,
    depth: u32,
}

type Cuts = Arc<Mutex<Vec<Cut>>>;

/// From now on some calls to the disk leave an image of what a cut behind them leaves.
fn cut_now_and_then(lower: &CrashLower, progress: &Arc<Progress>, cuts: &Cuts, how: (u64, u32)) {
    let (progress, cuts) = (Arc::clone(progress), Arc::clone(cuts));
    let (seed, depth) = how;
    let mut dice = Dice(seed);
    lower.set_hook(Box::new(move |_, lower| {
        if dice.roll(if depth == 0 { 3 } else { 12 }) > 0 {
            return;
        }
        let land_percent = [0, 10, 50, 90, 100][dice.roll(5) as usize];
        let promised = progress.promised.load(Ordering::SeqCst);
        let image = lower.crash_image(&mut |_: &Effect| {
            if dice.roll(100) < land_percent {
                Fate::Land
            } else {
                Fate::Vanish
            }
        });
        let begun = progress.begun.load(Ordering::SeqCst);
        cuts.lock().unwrap().push(Cut {
            lower: image,
            promised,
            begun,
            depth,
        });
    }));
}

fn disk() -> CrashLower {
    let lower = CrashLower::new();
    let root = lower.root().unwrap();
    lower.create(&root, NAME, Create::Regular).unwrap();
    lower.sync(&root).unwrap();
    SimulatedFile(lower.clone()).write(&stand_in()).unwrap();
    lower
}

/// Number of the last transaction; 0: there is none yet.
fn state(connection: &Connection) -> i64 {
    check(connection);
    let tables = "SELECT count(*) FROM sqlite_master WHERE name IN ('t', 'm')";
    let tables: i64 = connection.query_row(tables, [], |row| row.get(0)).unwrap();
    if tables == 0 {
        return 0;
    }
    assert_eq!(tables, 2, "the first transaction is there in part");
    let (number, rows): (i64, i64) = connection
        .query_row("SELECT n, rows FROM m", [], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })
        .unwrap();
    let (least, most, count): (i64, i64, i64) = connection
        .query_row("SELECT min(n), max(n), count(*) FROM t", [], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        })
        .unwrap();
    assert_eq!((least, most, count), (number, number, rows));
    number
}

fn transaction(connection: &Connection, number: i64, dice: &mut Dice) -> rusqlite::Result<()> {
    let rows = 2 + dice.roll(30);
    let bytes = 1 + dice.roll(400);
    connection.execute_batch(&format!(
        "BEGIN IMMEDIATE;
         CREATE TABLE IF NOT EXISTS m(n INTEGER, rows INTEGER);
         CREATE TABLE IF NOT EXISTS t(a INTEGER PRIMARY KEY, n INTEGER, b BLOB);
         CREATE INDEX IF NOT EXISTS i ON t(n, b);
         DELETE FROM m; INSERT INTO m VALUES ({number}, {rows});
         DELETE FROM t WHERE a > {rows};
         UPDATE t SET n = {number}, b = randomblob({bytes});
         WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c WHERE x < {rows})
           INSERT OR IGNORE INTO t SELECT x, {number}, randomblob({bytes}) FROM c;
         COMMIT"
    ))
}

/// How a history goes.
struct Plan {
    mode: &'static str,
    is_durable: bool,
    page_bytes: u64,
    journal: JournalOptions,
}

impl Plan {
    fn new(dice: &mut Dice) -> Self {
        let direct = [0, 4096, 65_536, u64::MAX][dice.roll(4) as usize];
        Self {
            mode: SAFE_MODES[dice.roll(4) as usize],
            is_durable: dice.roll(2) == 0,
            page_bytes: [512, 1024, 4096][dice.roll(3) as usize],
            journal: JournalOptions {
                journal_bytes: [64 << 10, 256 << 10, 1 << 20][dice.roll(3) as usize],
                direct_bytes_max: Some(direct),
                ..JournalOptions::default()
            },
        }
    }

    fn connect(&self, path: &Path) -> Connection {
        let class = if self.is_durable {
            "&class=durable"
        } else {
            ""
        };
        let connection = open(path, class).unwrap();
        let page_bytes = self.page_bytes;
        connection
            .execute_batch(&format!(
                "PRAGMA page_size={page_bytes}; PRAGMA cache_size=4; PRAGMA synchronous=FULL"
            ))
            .unwrap();
        set_mode(&connection, self.mode);
        connection
    }
}

/// Ends what [`interfere`] does.
struct EndOfInterference<'a>(&'a AtomicBool);

impl Drop for EndOfInterference<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Ends the engine's transactions at any moment, until it is told to stop.
fn interfere(volume: &Volume, is_over: &AtomicBool, mut dice: Dice) {
    while !is_over.load(Ordering::Relaxed) {
        match dice.roll(12) {
            0..4 => volume.close_app("."),
            4..8 => drop(volume.commit_next()),
            8 => drop(volume.sync_app(None, true)),
            9 => volume.tidy_up(),
            _ => std::thread::sleep(Duration::from_micros(dice.roll(300))),
        }
    }
}

/// One history with all its cuts; how many there were.
fn history(seed: u64) -> u64 {
    let mut dice = Dice(seed);
    let plan = Plan::new(&mut dice);
    let lower = disk();
    let (progress, cuts) = (Arc::new(Progress::default()), Cuts::default());
    let mut verified = 0;
    let mut number = 0;
    for life in 0..3 {
        cut_now_and_then(&lower, &progress, &cuts, (seed ^ life, 0));
        let alive = bring_to_life(&lower, &plan.journal).unwrap();
        let connection = plan.connect(&alive.path);
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // Also where an assertion fails.
            let _ends = EndOfInterference(&is_over);
            let other = Dice(dice.roll(u64::MAX));
            scope.spawn(|| interfere(&alive.volume, &is_over, other));
            for _ in 0..8 {
                number += 1;
                progress.begun.store(number, Ordering::SeqCst);
                transaction(&connection, number, &mut dice).unwrap();
                let checkpoint =
                    || connection.query_row("PRAGMA mobifs_checkpoint", [], |_| Ok(()));
                if !plan.is_durable && dice.roll(4) == 0 {
                    checkpoint().unwrap();
                    progress.promised.store(number, Ordering::SeqCst);
                }
                if plan.is_durable {
                    progress.promised.store(number, Ordering::SeqCst);
                }
                if dice.roll(10) == 0 {
                    connection.execute_batch("VACUUM").unwrap();
                }
                verified += verify_all(&plan, &cuts, &mut dice);
            }
        });
        connection.close().unwrap();
        alive.adopted.close().unwrap();
        progress.promised.store(number, Ordering::SeqCst);
        lower.clear_hook();
        verified += verify_all(&plan, &cuts, &mut dice);
    }
    verified
}

fn verify_all(plan: &Plan, cuts: &Cuts, dice: &mut Dice) -> u64 {
    let mut verified = 0;
    loop {
        let cut = cuts.lock().unwrap().pop();
        let Some(cut) = cut else { return verified };
        verify(plan, cut, cuts, dice);
        verified += 1;
    }
}

/// What a program without MobiFS finds: nothing that it may read, or what there is.
fn looked_at_plainly(lower: &CrashLower, page_of: &str) -> Option<i64> {
    let file = SimulatedFile(lower.clone());
    match file.beginning().unwrap() {
        Beginning::StandIn | Beginning::Database { is_marked: true } => None,
        Beginning::Empty => Some(0),
        Beginning::Database { is_marked: false } => {
            let directory = tempfile::tempdir_in("/dev/shm").unwrap();
            let path = directory.path().join(page_of);
            std::fs::write(&path, file.content().unwrap()).unwrap();
            Some(state(&plain(&path).unwrap()))
        }
        Beginning::Foreign => panic!("the file is no database any more"),
    }
}

fn verify(plan: &Plan, cut: Cut, cuts: &Cuts, dice: &mut Dice) {
    let possible = cut.promised..=cut.begun;
    if let Some(found) = looked_at_plainly(&cut.lower, "cut.db") {
        assert!(
            possible.contains(&found),
            "plain: {found} not in {possible:?}"
        );
    }
    let progress = Arc::new(Progress {
        promised: cut.promised.into(),
        begun: cut.begun.into(),
    });
    let is_cut_again = cut.depth < 3 && dice.roll(6) == 0;
    if is_cut_again {
        let how = (dice.roll(u64::MAX), cut.depth + 1);
        cut_now_and_then(&cut.lower, &progress, cuts, how);
    }
    let alive = bring_to_life(&cut.lower, &plan.journal).unwrap();
    let connection = plan.connect(&alive.path);
    let mut found = state(&connection);
    assert!(possible.contains(&found), "{found} not in {possible:?}");
    if dice.roll(5) == 0 {
        // Life goes on.
        found = cut.begun + 1;
        progress.begun.store(found, Ordering::SeqCst);
        transaction(&connection, found, dice).unwrap();
    }
    connection.close().unwrap();
    alive.adopted.close().unwrap();
    if is_cut_again {
        cut.lower.clear_hook();
    }
    assert_eq!(looked_at_plainly(&cut.lower, "closed.db"), Some(found));
}

fn number(variable: &str, otherwise: u64) -> u64 {
    let value = std::env::var(variable).ok();
    value.map_or(otherwise, |value| value.parse().unwrap())
}

#[test]
fn a_power_cut_leaves_a_database_that_existed() {
    let cuts = number("MOBIFS_CUTS", 1500);
    let seed = number("MOBIFS_CUT_SEED", 1);
    let (mut done, mut histories) = (0, 0);
    while done < cuts {
        done += history(seed.wrapping_mul(1_000_003) + histories);
        histories += 1;
        if histories % 50 == 0 {
            eprintln!("{done} of {cuts} cuts, {histories} histories");
        }
    }
    eprintln!("{done} cuts in {histories} histories");
}
