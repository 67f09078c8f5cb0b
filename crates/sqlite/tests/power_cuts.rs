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
//! another thread ends them. Two connections take turns, in journal modes of their own: they
//! delete, empty and keep each other's journals. Recoveries are cut as well, and so is what
//! follows them.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::simulated::{cut_image, disk, looked_at_plainly, new_path, start};
use common::{SAFE_MODES, check, number_from, open, set_mode};
use mobifs_store::JournalOptions;
use mobifs_testkit::crash::CrashLower;
use mobifs_testkit::random::Random;
use mobifs_volume::Volume;
use rusqlite::Connection;

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

/// From now on some calls to the disk leave an image of what a cut after them leaves.
fn cut_now_and_then(lower: &CrashLower, progress: &Arc<Progress>, cuts: &Cuts, how: (u64, u32)) {
    let (progress, cuts) = (Arc::clone(progress), Arc::clone(cuts));
    let (seed, depth) = how;
    let mut dice = Random::new(seed);
    lower.set_hook(Box::new(move |_, lower| {
        if dice.below(if depth == 0 { 3 } else { 12 }) > 0 {
            return;
        }
        let promised = progress.promised.load(Ordering::SeqCst);
        let image = cut_image(lower, &mut dice);
        let begun = progress.begun.load(Ordering::SeqCst);
        cuts.lock().unwrap().push(Cut {
            lower: image,
            promised,
            begun,
            depth,
        });
    }));
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

/// A transaction after the one with the number `last`, which this one would hide if it were lost.
fn transaction(
    connection: &Connection,
    last: i64,
    number: i64,
    dice: &mut Random,
) -> rusqlite::Result<()> {
    let rows = 2 + dice.below(30);
    let bytes = 1 + dice.below(400);
    connection
        .execute_batch("BEGIN IMMEDIATE; CREATE TABLE IF NOT EXISTS m(n INTEGER, rows INTEGER)")?;
    let query = "SELECT coalesce(max(n), 0) FROM m";
    let found: i64 = connection.query_row(query, [], |row| row.get(0))?;
    assert_eq!(found, last, "a transaction is lost");
    connection.execute_batch(&format!(
        "CREATE TABLE IF NOT EXISTS t(a INTEGER PRIMARY KEY, n INTEGER, b BLOB);
         CREATE INDEX IF NOT EXISTS i ON t(n, b);
         DELETE FROM m; INSERT INTO m VALUES ({number}, {rows});
         DELETE FROM t WHERE a > {rows};
         UPDATE t SET n = {number}, b = randomblob({bytes});
         WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c WHERE x < {rows})
           INSERT OR IGNORE INTO t SELECT x, {number}, randomblob({bytes}) FROM c;
         COMMIT"
    ))
}

/// Modes in which SQLite keeps a rollback journal in a file, each connection as it likes.
const ROLLBACK_MODES: [&str; 3] = ["delete", "truncate", "persist"];

/// How a history goes.
#[derive(Debug)]
struct Plan {
    #[expect(dead_code, reason = "printed with a failure")]
    seed: u64,
    /// The journal mode of each connection.
    modes: [&'static str; 2],
    is_durable: bool,
    page_bytes: u64,
    /// A log of so many pages is brought into the database, and begins anew.
    log_pages: u64,
    journal: JournalOptions,
}

impl Plan {
    fn new(seed: u64, dice: &mut Random) -> Self {
        let direct = [0, 4096, 65_536, u64::MAX][dice.below(4) as usize];
        Self {
            seed,
            modes: match SAFE_MODES[dice.below(4) as usize] {
                // This one is the database's.
                "wal" => ["wal"; 2],
                first => [first, ROLLBACK_MODES[dice.below(3) as usize]],
            },
            is_durable: dice.below(2) == 0,
            page_bytes: [512, 1024, 4096][dice.below(3) as usize],
            log_pages: [1, 20, 1000][dice.below(3) as usize],
            journal: JournalOptions {
                journal_bytes: [64 << 10, 256 << 10, 1 << 20][dice.below(3) as usize],
                direct_bytes_max: Some(direct),
                ..JournalOptions::default()
            },
        }
    }

    fn connect_both(&self, path: &Path) -> [Connection; 2] {
        self.modes.map(|mode| self.connect(path, mode))
    }

    fn connect(&self, path: &Path, mode: &str) -> Connection {
        let class = if self.is_durable {
            "&class=durable"
        } else {
            ""
        };
        let connection = open(path, class).unwrap();
        let (page_bytes, log_pages) = (self.page_bytes, self.log_pages);
        connection
            .execute_batch(&format!(
                "PRAGMA page_size={page_bytes}; PRAGMA cache_size=4; PRAGMA synchronous=FULL;
                 PRAGMA wal_autocheckpoint={log_pages}"
            ))
            .unwrap();
        set_mode(&connection, mode);
        connection
    }
}

fn close(connections: [Connection; 2]) {
    for connection in connections {
        connection.close().unwrap();
    }
}

/// Ends what [`interfere`] does.
struct EndOfInterference<'a>(&'a AtomicBool);

impl Drop for EndOfInterference<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Ends the engine's transactions at any moment, until `stop` is set.
fn interfere(volume: &Volume, is_over: &AtomicBool, mut dice: Random) {
    while !is_over.load(Ordering::Relaxed) {
        match dice.below(12) {
            0..4 => volume.close_app("."),
            4..8 => drop(volume.commit_next()),
            8 => drop(volume.sync_app(None, true)),
            9 => volume.do_housekeeping(),
            _ => std::thread::sleep(Duration::from_micros(dice.below(300))),
        }
    }
}

/// One history with all its cuts; how many there were.
fn history(seed: u64) -> u64 {
    let mut dice = Random::new(seed);
    let plan = Plan::new(seed, &mut dice);
    let lower = disk();
    let (progress, cuts) = (Arc::new(Progress::default()), Cuts::default());
    let mut verified = 0;
    let mut number = 0;
    for life in 0..3 {
        cut_now_and_then(&lower, &progress, &cuts, (seed ^ life, 0));
        let alive = start(&lower, &plan.journal, new_path()).unwrap();
        let connections = plan.connect_both(&alive.path);
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // Also where an assertion fails.
            let _ends = EndOfInterference(&is_over);
            let other = Random::new(dice.below(u64::MAX));
            scope.spawn(|| interfere(&alive.volume, &is_over, other));
            for _ in 0..8 {
                number += 1;
                progress.begun.store(number, Ordering::SeqCst);
                let connection = &connections[dice.below(2) as usize];
                transaction(connection, number - 1, number, &mut dice).unwrap();
                let checkpoint =
                    || connection.query_row("PRAGMA mobifs_checkpoint", [], |_| Ok(()));
                if !plan.is_durable && dice.below(4) == 0 {
                    checkpoint().unwrap();
                    progress.promised.store(number, Ordering::SeqCst);
                }
                if plan.is_durable {
                    progress.promised.store(number, Ordering::SeqCst);
                }
                if dice.below(10) == 0 {
                    connection.execute_batch("VACUUM").unwrap();
                }
                verified += verify_all(&plan, &cuts, &mut dice);
            }
        });
        close(connections);
        alive.adopted.close().unwrap();
        progress.promised.store(number, Ordering::SeqCst);
        lower.clear_hook();
        verified += verify_all(&plan, &cuts, &mut dice);
    }
    verified
}

fn verify_all(plan: &Plan, cuts: &Cuts, dice: &mut Random) -> u64 {
    let mut verified = 0;
    loop {
        let cut = cuts.lock().unwrap().pop();
        let Some(cut) = cut else { return verified };
        verify(plan, cut, cuts, dice);
        verified += 1;
    }
}

fn verify(plan: &Plan, cut: Cut, cuts: &Cuts, dice: &mut Random) {
    let possible = cut.promised..=cut.begun;
    if let Some(found) = looked_at_plainly(&cut.lower, state) {
        assert!(
            possible.contains(&found),
            "plain: {found} not in {possible:?}, {plan:?}"
        );
    }
    let progress = Arc::new(Progress {
        promised: cut.promised.into(),
        begun: cut.begun.into(),
    });
    let is_cut_again = cut.depth < 3 && dice.below(6) == 0;
    if is_cut_again {
        let how = (dice.below(u64::MAX), cut.depth + 1);
        cut_now_and_then(&cut.lower, &progress, cuts, how);
    }
    let alive = start(&cut.lower, &plan.journal, new_path()).unwrap();
    let connections = plan.connect_both(&alive.path);
    let mut found = state(&connections[0]);
    let depth = cut.depth;
    assert!(
        possible.contains(&found),
        "{found} not in {possible:?}, cut {depth} deep, {plan:?}"
    );
    if dice.below(5) == 0 {
        // Life goes on.
        let next = cut.begun + 1;
        progress.begun.store(next, Ordering::SeqCst);
        let connection = &connections[dice.below(2) as usize];
        transaction(connection, found, next, dice).unwrap();
        found = next;
    }
    close(connections);
    alive.adopted.close().unwrap();
    if is_cut_again {
        cut.lower.clear_hook();
    }
    assert_eq!(
        looked_at_plainly(&cut.lower, state),
        Some(found),
        "{plan:?}"
    );
}

#[test]
fn a_power_cut_leaves_a_database_that_existed() {
    let cuts = number_from("MOBIFS_CUTS", 1500);
    let seed = number_from("MOBIFS_CUT_SEED", 1);
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

/// One history of transactions over two databases, on disks that lose power together.
fn joint_history(seed: u64) -> u64 {
    let mut dice = Random::new(seed);
    let plan = Plan {
        // In the other modes SQLite does not promise it.
        modes: [ROLLBACK_MODES[dice.below(3) as usize]; 2],
        ..Plan::new(seed, &mut dice)
    };
    let (lowers, paths) = ([disk(), disk()], [new_path(), new_path()]);
    let progress = Arc::new(Progress::default());
    let cuts: Arc<Mutex<Vec<[Cut; 2]>>> = Arc::default();
    let alive = [0, 1].map(|i| start(&lowers[i], &plan.journal, paths[i].clone()).unwrap());
    let connection = plan.connect(&paths[0], plan.modes[0]);
    let attach = format!("ATTACH 'file:{}?vfs=mobifs' AS other", paths[1].display());
    let create = "CREATE TABLE j(n INTEGER); INSERT INTO j VALUES (0); \
                  CREATE TABLE other.j(n INTEGER); INSERT INTO other.j VALUES (0)";
    connection
        .execute_batch(&format!(
            "{attach}; PRAGMA other.synchronous=FULL; {create}"
        ))
        .unwrap();
    for volume in alive.iter().map(|alive| &alive.volume) {
        volume.sync_app(None, false).unwrap();
    }
    for lower in &lowers {
        let (lowers, progress, cuts) = (lowers.clone(), Arc::clone(&progress), Arc::clone(&cuts));
        let mut dice = Random::new(dice.below(u64::MAX));
        lower.set_hook(Box::new(move |_, _| {
            let (promised, begun) = (&progress.promised, &progress.begun);
            let cut = lowers.each_ref().map(|lower| Cut {
                lower: cut_image(lower, &mut dice),
                promised: promised.load(Ordering::SeqCst),
                begun: begun.load(Ordering::SeqCst),
                depth: 0,
            });
            cuts.lock().unwrap().push(cut);
        }));
    }
    for number in 1..12 {
        progress.begun.store(number, Ordering::SeqCst);
        let both = format!(
            "BEGIN; UPDATE main.j SET n = {number}; UPDATE other.j SET n = {number}; COMMIT"
        );
        connection.execute_batch(&both).unwrap();
        // Committed in both, whatever their class.
        progress.promised.store(number, Ordering::SeqCst);
        if dice.below(3) == 0 {
            alive[dice.below(2) as usize]
                .volume
                .sync_app(None, true)
                .unwrap();
        }
    }
    lowers.iter().for_each(CrashLower::clear_hook);
    connection.close().unwrap();
    alive.into_iter().for_each(|alive| alive.adopted.abandon());
    let cuts = std::mem::take(&mut *cuts.lock().unwrap());
    let count = cuts.len() as u64;
    for cut in cuts {
        check_joint_cut(&plan, &paths, &cut);
    }
    count
}

/// After a cut both databases are at the same transaction, which was promised or begun.
fn check_joint_cut(plan: &Plan, paths: &[PathBuf; 2], cut: &[Cut; 2]) {
    let alive = [0, 1].map(|i| start(&cut[i].lower, &plan.journal, paths[i].clone()).unwrap());
    let found = paths.each_ref().map(|path| {
        let connection = plan.connect(path, plan.modes[0]);
        check(&connection);
        connection
            .query_row("SELECT n FROM j", [], |row| row.get::<_, i64>(0))
            .unwrap()
    });
    let possible = cut[0].promised..=cut[0].begun;
    assert!(
        found[0] == found[1] && possible.contains(&found[0]),
        "{found:?}, {possible:?}"
    );
    alive
        .into_iter()
        .for_each(|alive| alive.adopted.close().unwrap());
}

#[test]
fn a_power_cut_leaves_several_databases_at_the_same_transaction() {
    let cuts = number_from("MOBIFS_CUTS", 1500) / 3;
    let seed = number_from("MOBIFS_CUT_SEED", 1);
    let (mut done, mut histories) = (0, 0);
    while done < cuts {
        done += joint_history(seed.wrapping_mul(1_000_003) + histories);
        histories += 1;
    }
    eprintln!("{done} cuts of two databases in {histories} histories");
}
