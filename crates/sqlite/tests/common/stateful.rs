//! Programs that do the same through MobiFS and without it.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};
use serde_json::{Value, json};

use super::programs::{Actor, Answer, is_root, run};
use super::{SmallDisk, USER};
use mobifs_testkit::random::Random;

mod full;
mod joint;

const BUSY: i64 = 5;
const READONLY: i64 = 8;
const FULL: i64 = 13;
const NOTADB: i64 = 26;
const NAMES: [&str; 2] = ["a.db", "b.db"];
const PROCESSES: usize = 2;
const CONNECTIONS: usize = 3;

/// A connection as the history knows it.
#[derive(Clone, Debug)]
struct Open {
    /// Its databases: its own and one that is attached.
    databases: Vec<usize>,
    is_foreign: bool,
    has_no_locks: bool,
    is_immutable: bool,
    is_read_only: bool,
    in_transaction: bool,
    /// Its journal is not kept for recovery.
    is_unsafe: bool,
    is_exclusive: bool,
}

/// What a history did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Finished {
    /// Calls of both programs.
    pub calls: u64,
    /// Last closes for which the room was taken on purpose.
    pub closes_on_full_disks: u64,
    /// Last closes after which the mark stayed, and that said so.
    pub marks_left: u64,
    /// Programs that ended between two calls of a commit over two databases.
    pub joint_kills: u64,
}

/// Two places with the same databases: one that MobiFS has, and the oracle's.
pub struct World<'a> {
    dice: Random,
    start: &'a dyn Fn() -> Actor,
    /// Where MobiFS has its databases, if that can be filled. Unmounted before the directory is removed.
    disk: Option<SmallDisk>,
    directory: tempfile::TempDir,
    /// By process; the last one's programs do not know MobiFS. First MobiFS, then the oracle.
    actors: Vec<[Actor; 2]>,
    open: BTreeMap<(usize, usize), Open>,
    /// A process was killed that had it open, and it has not been opened through MobiFS since.
    is_unclean: [bool; 2],
    /// A process was killed in a transaction, which no connection that may write has rolled back since.
    is_hot: [bool; 2],
    number: u64,
    finished: Finished,
    /// The steps so far, for the report of a failure.
    steps: Vec<String>,
}

impl<'a> World<'a> {
    pub fn new(mut dice: Random, start: &'a dyn Fn() -> Actor) -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).unwrap();
        let mode = ["delete", "wal"][dice.below(2) as usize];
        let mut disk = None;
        for side in ["mobifs", "plain"] {
            let place = directory.path().join(side);
            fs::create_dir(&place).unwrap();
            if side == "mobifs" && dice.below(2) == 0 {
                disk = SmallDisk::mount(&place);
            }
            give(&place);
            for name in NAMES {
                let made = Connection::open_with_flags_and_vfs(
                    place.join(name),
                    OpenFlags::default(),
                    "unix",
                );
                let table = "CREATE TABLE t(a INTEGER PRIMARY KEY, n INTEGER, b TEXT)";
                run(
                    &made.unwrap(),
                    &format!("PRAGMA journal_mode={mode}; {table}"),
                )
                .unwrap();
                give(&place.join(name));
            }
        }
        Self {
            dice,
            start,
            disk,
            directory,
            actors: (0..=PROCESSES).map(|_| [start(), start()]).collect(),
            open: BTreeMap::new(),
            is_unclean: [false; 2],
            is_hot: [false; 2],
            number: 0,
            finished: Finished::default(),
            steps: Vec::new(),
        }
    }

    fn path(&self, side: usize, database: usize) -> PathBuf {
        let side = ["mobifs", "plain"][side];
        self.directory.path().join(side).join(NAMES[database])
    }

    fn uri(&self, side: usize, database: usize, is_foreign: bool, parameters: &str) -> String {
        let vfs = if side == 0 && !is_foreign {
            "mobifs"
        } else {
            "unix"
        };
        let path = self.path(side, database);
        format!("file:{}?vfs={vfs}{parameters}", path.display())
    }

    /// One thing happens.
    pub fn step(&mut self) {
        self.number += 1;
        let process = self.dice.below(PROCESSES as u64 + 1) as usize;
        let process = if process == PROCESSES && self.dice.below(2) == 0 {
            0
        } else {
            process
        };
        let connection = self.dice.below(CONNECTIONS as u64) as usize;
        let slot = (process, connection);
        match self.dice.below(100) {
            0..=2 => self.kill(process),
            3..=10 => self.burst(process),
            11..=16 => self.change_permissions(),
            17..=24 => self.close(slot),
            25..=29 => self.kill_in_a_call(slot),
            30..=33 => self.work_on_a_full_disk(slot),
            39..=40 => self.kill_in_a_commit_over_both(slot),
            34..=38 => self.kill_beside_a_stale_reader(process % PROCESSES, connection),
            _ if self.open.contains_key(&slot) => self.run(slot),
            _ => self.open(slot),
        }
    }

    /// Users of a database besides one process.
    fn others(&self, process: usize, database: usize) -> impl Iterator<Item = &Open> {
        let uses = move |open: &Open| open.databases.contains(&database);
        let others = self
            .open
            .iter()
            .filter(move |((other, _), _)| *other != process);
        others.map(|(_, open)| open).filter(move |open| uses(open))
    }

    /// Whether a program may be refused because of another process.
    fn may_be_refused(&self, process: usize, databases: &[usize], answer: &Answer) -> bool {
        let is_foreign = process == PROCESSES;
        // Locks that connections of one process have on each other are SQLite's.
        let is_by_mobifs = is_foreign || answer.words.contains("MobiFS");
        databases.iter().any(|&database| {
            let is_used = self.others(process, database).next().is_some();
            let is_marked = is_used || self.is_unclean[database];
            (answer.code == BUSY && is_used && is_by_mobifs)
                || (answer.code == NOTADB && is_foreign && is_marked)
                // The journal is valid from its first byte on, since appending is safe here, so SQLite
                // asks for a connection that may write where plain SQLite's may not be valid yet.
                || (answer.code == READONLY && !is_foreign && self.has_hot_journal(database))
        })
    }

    /// Whether the rollback journal looks like that of a process that has died: it is, or its transaction
    /// has no locks (`nolock=1`).
    fn has_hot_journal(&self, database: usize) -> bool {
        let begun = |open: &Open| open.has_no_locks && open.in_transaction;
        let mut users = self.open.values();
        self.is_hot[database] || users.any(|open| begun(open) && open.databases.contains(&database))
    }

    /// Has both programs execute a command. None if only the one with MobiFS was refused, as it may
    /// be because of another process: then the oracle is not asked.
    fn both(
        &mut self,
        process: usize,
        databases: &[usize],
        call: impl Fn(&Self, usize) -> Value,
    ) -> Option<Answer> {
        self.finished.calls += 1;
        let asked = call(self, 0);
        let answer = self.actors[process][0].call(&asked);
        self.steps.push(format!(
            "{process}: {asked} -> {} {}",
            answer.code, answer.words
        ));
        let is_refused_for_room = answer.code == FULL && self.is_full();
        if is_refused_for_room || self.may_be_refused(process, databases, &answer) {
            return None;
        }
        let asked = call(self, 1);
        let expected = self.actors[process][1].call(&asked);
        assert!(
            (answer.code, &answer.rows) == (expected.code, &expected.rows),
            "{answer:?} where plain SQLite has {expected:?}:\n{}",
            self.steps.join("\n")
        );
        Some(answer)
    }

    fn open(&mut self, slot: (usize, usize)) {
        let database = self.dice.below(2) as usize;
        self.open_one(slot, database);
    }

    fn open_one(&mut self, slot: (usize, usize), database: usize) {
        let is_foreign = slot.0 == PROCESSES;
        let is_alone = !self.is_open(database);
        let parameters = match self.dice.below(12) {
            0 if is_alone => "&nolock=1",
            1 if is_alone => "&immutable=1",
            2 => "&mode=ro",
            3 => "&mode=rw",
            4 => "&cache=shared",
            5 => "&cache=private&psow=0",
            6 => "&mode=ro&nolock=0",
            7 | 8 if !is_foreign => "&class=durable",
            9 if !is_foreign => "&class=relaxed",
            _ => "",
        };
        let flags = match self.dice.below(4) {
            0 => OpenFlags::SQLITE_OPEN_READ_ONLY,
            1 => OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NOFOLLOW,
            2 => OpenFlags::SQLITE_OPEN_READ_WRITE,
            _ => OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE,
        };
        let flags =
            if parameters.contains("mode=rw") && flags.contains(OpenFlags::SQLITE_OPEN_READ_ONLY) {
                OpenFlags::SQLITE_OPEN_READ_WRITE
            } else {
                flags
            };
        self.open_with(slot, database, parameters, flags);
    }

    fn open_with(
        &mut self,
        (process, connection): (usize, usize),
        database: usize,
        parameters: &str,
        flags: OpenFlags,
    ) {
        let is_foreign = process == PROCESSES;
        let answer = self.both(process, &[database], |world, side| {
            let uri = world.uri(side, database, is_foreign, parameters);
            let flags = flags.bits();
            json!({ "do": "open", "connection": connection, "uri": uri, "flags": flags })
        });
        if answer.is_some_and(|answer| answer.code == 0) {
            let opened = Open {
                databases: vec![database],
                is_foreign,
                has_no_locks: parameters.contains("nolock=1"),
                is_immutable: parameters.contains("immutable"),
                is_read_only: parameters.contains("mode=ro")
                    || flags.contains(OpenFlags::SQLITE_OPEN_READ_ONLY),
                in_transaction: false,
                is_unsafe: false,
                is_exclusive: false,
            };
            if !is_foreign && !opened.is_immutable {
                self.is_unclean[database] = false;
            }
            self.open.insert((process, connection), opened);
        }
    }

    fn close(&mut self, slot: (usize, usize)) {
        for (database, _) in self.disconnect(slot) {
            self.look_plainly(database);
        }
    }

    /// Closes a connection. Returns its databases, and what was said about closing them.
    fn disconnect(&mut self, slot: (usize, usize)) -> Vec<(usize, String)> {
        let (process, connection) = slot;
        let Some(open) = self.open.remove(&slot) else {
            return Vec::new();
        };
        let call = |_: &Self, _| json!({ "do": "close", "connection": connection });
        let answer = self.both(process, &[], call);
        let words = answer.map(|answer| answer.words).unwrap_or_default();
        let databases = open.databases.into_iter();
        databases
            .map(|database| (database, words.clone()))
            .collect()
    }

    fn is_full(&self) -> bool {
        self.disk.as_ref().is_some_and(SmallDisk::is_full)
    }

    fn is_open(&self, database: usize) -> bool {
        let mut open = self.open.values();
        open.any(|open| open.databases.contains(&database))
    }

    /// After the last close the file is an ordinary database, with what the oracle's holds.
    fn look_plainly(&mut self, database: usize) {
        if self.is_open(database) || self.is_unclean[database] {
            return;
        }
        let looked = [0, 1].map(|side| look(&self.path(side, database)));
        assert!(
            looked[0] == looked[1],
            "{} holds {:?}, and plain SQLite's {:?}:\n{}",
            NAMES[database],
            looked[0],
            looked[1],
            self.steps.join("\n")
        );
    }

    /// What a connection does next, and the databases that it needs for that.
    fn statement(&mut self, open: &mut Open) -> (String, Vec<usize>) {
        let number = self.number;
        let is_joint = open.databases.len() > 1;
        let table = if is_joint && self.dice.below(2) == 0 {
            "x.t"
        } else {
            "t"
        };
        let rows = 1 + self.dice.below(60);
        let many = format!(
            "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c WHERE x < {rows}) \
             INSERT INTO {table}(n, b) SELECT {number}, printf('%0900d', x) FROM c"
        );
        let sql = match self.dice.below(22) {
            0..=3 => format!("SELECT count(*), sum(n), max(a) FROM {table}"),
            4 | 5 => format!("INSERT INTO {table}(n, b) VALUES ({number}, 'one')"),
            6 => many,
            7 => format!("UPDATE {table} SET n = {number}"),
            8 => format!("DELETE FROM {table} WHERE a % 5 = {}", number % 5),
            9 if !open.in_transaction => ["BEGIN", "BEGIN IMMEDIATE"][(number % 2) as usize].into(),
            10 | 11 if open.in_transaction => "COMMIT".into(),
            12 if open.in_transaction && !open.is_unsafe => "ROLLBACK".into(),
            13 if !open.in_transaction && !open.has_no_locks => {
                let modes = [
                    "delete", "truncate", "persist", "wal", "wal", "memory", "off",
                ];
                let mode = modes[self.dice.below(7) as usize];
                format!("PRAGMA journal_mode={mode}")
            }
            14 if !open.in_transaction => {
                format!(
                    "PRAGMA synchronous={}",
                    ["off", "normal", "full", "extra"][(number % 4) as usize]
                )
            }
            15 if !open.in_transaction && self.dice.below(3) == 0 => {
                open.is_exclusive = number.is_multiple_of(2);
                let mode = if open.is_exclusive {
                    "exclusive"
                } else {
                    "normal"
                };
                format!("PRAGMA locking_mode={mode}")
            }
            // A descriptor that only reads cannot bring a log into the database; the engine can.
            16 if !open.in_transaction && !open.is_read_only => {
                "PRAGMA wal_checkpoint(TRUNCATE)".into()
            }
            17 if !open.in_transaction && number.is_multiple_of(3) => "VACUUM".into(),
            18 if is_joint && !open.in_transaction => format!(
                "BEGIN IMMEDIATE; INSERT INTO t(n, b) VALUES ({number}, 'both'); \
                 UPDATE x.t SET n = {number}; INSERT INTO x.t(n, b) VALUES ({number}, 'both'); COMMIT"
            ),
            19 => "PRAGMA integrity_check".into(),
            _ => format!("SELECT count(*) FROM {table} WHERE n = {number} - 3"),
        };
        (sql, open.databases.clone())
    }

    fn run(&mut self, slot: (usize, usize)) {
        let mut open = self.open[&slot].clone();
        let (process, connection) = slot;
        // Without locks, or a journal, only a single user is promised anything.
        let is_alone = |open: &Open| {
            let same = |other: &&Open| other.databases.iter().any(|it| open.databases.contains(it));
            self.open.values().filter(same).count() == 1
        };
        let others_unlocked = self.open.iter().any(|(other, it)| {
            *other != slot
                && (it.has_no_locks || it.is_immutable)
                && it
                    .databases
                    .iter()
                    .any(|database| open.databases.contains(database))
        });
        if others_unlocked || ((open.has_no_locks || open.is_immutable) && !is_alone(&open)) {
            return self.close(slot);
        }
        if open.databases.len() == 1 && !open.in_transaction && self.dice.below(8) == 0 {
            return self.attach(slot);
        }
        let (sql, databases) = self.statement(&mut open);
        let is_batch = sql.starts_with("BEGIN IMMEDIATE;");
        let answer = self.both(
            process,
            &databases,
            |_, _| json!({ "do": "run", "connection": connection, "sql": sql, "alone": is_batch }),
        );
        if let Some(answer) = answer {
            let may_write = !open.is_foreign && !open.is_read_only && !open.is_immutable;
            if may_write && answer.code == 0 {
                databases.iter().for_each(|&it| self.is_hot[it] = false);
            }
            let mode = ["memory", "off", "delete", "truncate", "persist", "wal"]
                .into_iter()
                .find(|mode| sql.ends_with(mode) && answer.rows.concat().contains(mode));
            if let Some(mode) = mode {
                open.is_unsafe = ["memory", "off"].contains(&mode);
            }
        }
        self.open.insert(slot, open);
        self.learn_transaction(slot);
    }

    /// Whether a connection is in a transaction, as SQLite has it.
    fn learn_transaction(&mut self, slot: (usize, usize)) {
        let states = self.are_in_transaction(slot);
        assert_eq!(
            states[0],
            states[1],
            "in a transaction:\n{}",
            self.steps.join("\n")
        );
        if let Some(open) = self.open.get_mut(&slot) {
            open.in_transaction = states[0];
        }
    }

    /// The same of the connection through MobiFS and of the oracle's.
    fn are_in_transaction(&mut self, (process, connection): (usize, usize)) -> [bool; 2] {
        let asked = json!({ "do": "state", "connection": connection });
        let actors = self.actors[process].each_mut();
        actors.map(|actor| actor.call(&asked).rows == ["in"])
    }

    fn attach(&mut self, slot: (usize, usize)) {
        let (process, connection) = slot;
        let open = self.open[&slot].clone();
        let other = 1 - open.databases[0];
        if open.has_no_locks || open.is_immutable {
            return;
        }
        let is_foreign = open.is_foreign;
        let answer = self.both(process, &[open.databases[0], other], |world, side| {
            let uri = world.uri(side, other, is_foreign, "");
            let sql = format!("ATTACH '{uri}' AS x");
            json!({ "do": "run", "connection": connection, "sql": sql, "alone": false })
        });
        if answer.is_some_and(|answer| answer.code == 0) {
            if !is_foreign {
                self.is_unclean[other] = false;
            }
            self.open.get_mut(&slot).unwrap().databases.push(other);
        } else {
            // In MobiFS it may be attached, though not in the oracle.
            self.close(slot);
        }
    }

    fn burst(&mut self, process: usize) {
        let database = self.dice.below(2) as usize;
        let users = self.open.iter();
        let users = users.filter(|(_, open)| open.databases.contains(&database));
        let is_divided = |open: &Open| open.is_unsafe && open.in_transaction;
        let (slots, opens): (Vec<_>, Vec<_>) = users.unzip();
        if process == PROCESSES || opens.into_iter().any(is_divided) {
            return;
        }
        let slots: Vec<_> = slots.into_iter().copied().collect();
        if !slots.is_empty() && self.dice.below(3) > 0 {
            return;
        }
        for slot in slots {
            self.close(slot);
        }
        let rounds = 1 + self.dice.below(4);
        let threads = 2 + self.dice.below(3);
        let number = self.number;
        let sql = match self.dice.below(3) {
            0 => "SELECT count(*) FROM t".to_owned(),
            1 => format!("INSERT INTO t(n, b) VALUES ({number}, 'burst')"),
            _ => format!("PRAGMA journal_mode; INSERT INTO t(n, b) VALUES ({number}, 'burst')"),
        };
        self.is_unclean[database] = false;
        self.both(process, &[database], |world, side| {
            let uri = world.uri(side, database, false, "");
            json!({
                "do": "burst", "uri": uri, "sql": sql, "threads": threads, "rounds": rounds
            })
        });
        self.look_plainly(database);
    }

    /// Ends a transaction that failed in only one of the two programs.
    fn roll_back(&mut self, slot: (usize, usize)) {
        let (process, connection) = slot;
        let call =
            json!({ "do": "run", "connection": connection, "sql": "ROLLBACK", "alone": false });
        for (side, is_in) in self.are_in_transaction(slot).into_iter().enumerate() {
            if is_in {
                let answer = self.actors[process][side].call(&call);
                self.steps.push(format!(
                    "{process}: {call} on side {side} -> {}",
                    answer.words
                ));
            }
        }
    }

    /// Ends a process and starts it anew. What its connections had open is gone.
    fn end(&mut self, process: usize) {
        self.actors[process] = [(self.start)(), (self.start)()];
        self.steps.push(format!("{process}: killed"));
        let slots: Vec<(usize, usize)> = self.open.keys().copied().collect();
        for slot in slots {
            if slot.0 == process {
                let open = self.open.remove(&slot).unwrap();
                for database in open.databases {
                    self.is_unclean[database] |= !open.is_foreign;
                    self.is_hot[database] |= !open.is_foreign && open.in_transaction;
                }
            }
        }
    }

    fn kill(&mut self, process: usize) {
        let is_promised = |open: &Open| !open.is_unsafe || !open.in_transaction;
        let mut own = self.open.iter().filter(|((it, _), _)| *it == process);
        if own.all(|(_, open)| is_promised(open)) {
            self.end(process);
        }
    }

    /// A program without MobiFS has read a database when another one changes it through MobiFS and
    /// is killed; then it goes on with its cache, or is refused.
    fn kill_beside_a_stale_reader(&mut self, process: usize, connection: usize) {
        let (slot, knows) = ((process, connection), (PROCESSES, connection));
        let database = self.dice.below(2) as usize;
        for slot in [knows, slot] {
            if !self.open.contains_key(&slot) {
                self.open_one(slot, database);
            }
        }
        let number = self.number;
        self.say(knows, "SELECT count(*), sum(n) FROM t");
        self.say(slot, &format!("UPDATE t SET n = {number}"));
        if self.open.contains_key(&slot) {
            self.run(slot);
        }
        self.kill(process);
        self.say(knows, "SELECT count(*), sum(n) FROM t");
        self.say(
            knows,
            &format!("INSERT INTO t(n, b) VALUES ({number}, 'known')"),
        );
    }

    /// Runs a statement, if the connection is open and in no transaction.
    fn say(&mut self, slot: (usize, usize), sql: &str) {
        let Some(open) = self.open.get(&slot).cloned() else {
            return;
        };
        if open.in_transaction || open.has_no_locks || open.is_immutable {
            return;
        }
        let (process, connection) = slot;
        let call = json!({ "do": "run", "connection": connection, "sql": sql, "alone": false });
        self.both(process, &open.databases, |_, _| call.clone());
    }

    /// A transaction is killed somewhere: it is there, or it is not, in all its databases.
    fn kill_in_a_call(&mut self, slot: (usize, usize)) {
        let (process, connection) = slot;
        let is_idle = |open: &Open| !open.in_transaction && !open.is_exclusive && !open.is_unsafe;
        let Some(open) = self.open.get(&slot).cloned() else {
            return;
        };
        if process == PROCESSES || self.open.len() != 1 || !is_idle(&open) || open.is_immutable {
            return;
        }
        let number = self.number;
        let rows = 1 + self.dice.below(200);
        let also = if open.databases.len() > 1 {
            format!("UPDATE x.t SET n = {number}; INSERT INTO x.t(n, b) VALUES ({number}, 'both');")
        } else {
            String::new()
        };
        let sql = format!(
            "BEGIN IMMEDIATE; UPDATE t SET n = {number}; WITH RECURSIVE c(x) AS \
             (SELECT 1 UNION ALL SELECT x + 1 FROM c WHERE x < {rows}) \
             INSERT INTO t(n, b) SELECT {number}, printf('%0900d', x) FROM c; {also} COMMIT"
        );
        let call = json!({ "do": "run", "connection": connection, "sql": sql, "alone": true });
        let patience = Duration::from_micros(self.dice.below(20_000));
        self.finished.calls += 1;
        self.steps
            .push(format!("{process}: {call}, killed after {patience:?}"));
        let is_joint = open.databases.len() > 1;
        let answer = self.end_in_a_call(process, &call, is_joint, patience);
        let before: Vec<Looked> = (0..2).map(|it| self.look_through(1, it)).collect();
        // Each is opened alone, whichever comes first.
        let first = self.dice.below(2) as usize;
        let mut found = [first, 1 - first].map(|it| self.look_through(0, it));
        if first == 1 {
            found.reverse();
        }
        let found = Vec::from(found);
        let is_done = found != before;
        if let Some(answer) = answer.filter(|answer| answer.code == 0) {
            assert!(
                is_done,
                "a committed transaction is lost: {answer:?}:\n{}",
                self.steps.join("\n")
            );
        }
        if is_done {
            self.actors[process][1].call(&call);
        }
        self.end(process);
        self.is_unclean = [false; 2];
        for database in 0..2 {
            self.look_plainly(database);
        }
    }

    /// What a database holds, through MobiFS or the oracle; closed again.
    fn look_through(&mut self, side: usize, database: usize) -> Looked {
        let mut actor = (self.start)();
        let uri = self.uri(side, database, false, "");
        let flags = OpenFlags::default().bits();
        let mut call = |call: &Value| {
            let answer = actor.call(call);
            self.steps
                .push(format!("look: {call} -> {} {}", answer.code, answer.words));
            assert_eq!(
                answer.code,
                0,
                "{}:\n{}",
                answer.words,
                self.steps.join("\n")
            );
            answer.rows
        };
        call(&json!({ "do": "open", "connection": 0, "uri": uri, "flags": flags }));
        let rows = call(&json!({ "do": "run", "connection": 0, "sql": LOOK, "alone": true }));
        call(&json!({ "do": "close", "connection": 0 }));
        if side == 0 {
            self.is_hot[database] = false;
        }
        Ok(rows)
    }

    /// Files and directories get other owners, when no process has them open.
    fn change_permissions(&mut self) {
        if !is_root() || !self.open.is_empty() || self.is_unclean != [false; 2] {
            return;
        }
        let directory = [0o755, 0o755, 0o555][self.dice.below(3) as usize];
        let file = [0o644, 0o644, 0o444, 0o666][self.dice.below(4) as usize];
        let owners = [USER, USER, 0];
        let owner = owners[self.dice.below(3) as usize];
        let place_owner = owners[self.dice.below(3) as usize];
        self.steps.push(format!(
            "{directory:o} of {place_owner}, files {file:o} of {owner}"
        ));
        for side in 0..2 {
            for database in 0..2 {
                let path = self.path(side, database);
                fs::set_permissions(&path, Permissions::from_mode(file)).unwrap();
                chown(&path, Some(owner), None).unwrap();
            }
            let path = self.path(side, 0);
            let place = path.parent().unwrap();
            fs::set_permissions(place, Permissions::from_mode(directory)).unwrap();
            chown(place, Some(place_owner), None).unwrap();
        }
    }

    /// Everything is closed, what was killed is opened and closed once; one last close finds no
    /// room.
    pub fn finish(mut self) -> Finished {
        for slot in self.open.keys().copied().collect::<Vec<_>>() {
            self.close(slot);
        }
        for side in 0..2 {
            for database in 0..2 {
                let path = self.path(side, database);
                fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
                give(&path);
            }
            let path = self.path(side, 0);
            let place = path.parent().unwrap();
            fs::set_permissions(place, Permissions::from_mode(0o755)).unwrap();
            give(place);
        }
        self.clean();
        // A log that its user may not write to (SQLite gives it the mode of its database) makes the
        // database read-only for SQLite, and not for MobiFS, which keeps its own.
        for side in 0..2 {
            (0..2).for_each(|database| give_companions(&self.path(side, database)));
        }
        let database = self.dice.below(2) as usize;
        self.close_last_on_a_full_disk(database);
        self.clean();
        for database in 0..2 {
            self.look_plainly(database);
        }
        self.finished
    }

    /// What was not closed is opened and closed once.
    fn clean(&mut self) {
        for database in 0..2 {
            if self.is_unclean[database] {
                let _looked = self.look_through(0, database);
                self.is_unclean[database] = false;
            }
        }
    }
}

/// What was found in a database, or why nothing was.
type Looked = Result<Vec<String>, String>;

const LOOK: &str = "PRAGMA integrity_check; SELECT a, n, length(b) FROM t";

/// Looks as a program without MobiFS does.
fn look(path: &Path) -> Looked {
    let looked = Connection::open_with_flags_and_vfs(path, OpenFlags::default(), "unix")
        .and_then(|connection| run(&connection, LOOK));
    // A log may have been root's from now on.
    give_companions(path);
    looked.map_err(|error| error.to_string())
}

/// Gives what SQLite keeps beside a database to the ordinary user, too.
fn give_companions(path: &Path) {
    for ending in ["-wal", "-shm"] {
        let mut name = path.as_os_str().to_owned();
        name.push(ending);
        let name = Path::new(&name);
        if name.exists() {
            give(name);
            fs::set_permissions(name, Permissions::from_mode(0o644)).unwrap();
        }
    }
}

/// Gives a file to the ordinary user that runs the programs.
fn give(path: &Path) {
    if is_root() {
        chown(path, Some(USER), Some(USER)).unwrap();
    }
}
