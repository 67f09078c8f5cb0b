//! SQLite with rollback journals in durable apps: one commit a transaction, and each that has returned
//! survives.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::filesystems::put_store_on;
use crate::fixture::{Fixture, mobifs, needs_mounts, succeeds};
use crate::kills::kill;

const CONFIG: &str = "[[app]]\nmatch = \"bank*\"\nclass = \"durable\"\n";
const ROWS: u64 = 12;

/// Inserts rows, one in each transaction.
const INSERT: &str = "
import sqlite3, sys
path, mode, synchronous, count = sys.argv[1:4] + [int(sys.argv[4])]
base = sqlite3.connect(path, isolation_level=None)
base.execute('pragma synchronous=' + synchronous)
base.execute('pragma journal_mode=' + mode)
base.execute('create table if not exists t (k integer primary key, v blob)')
base.execute('insert into t values (null, randomblob(900))')
print('begun', flush=True)
sys.stdin.readline()
for _ in range(count):
    base.execute('insert into t values (null, randomblob(900))')
print('done', flush=True)
sys.stdin.readline()
";

const COUNT: &str = "
import sqlite3, sys
base = sqlite3.connect(sys.argv[1])
assert base.execute('pragma integrity_check').fetchone() == ('ok',)
print(base.execute('select count(*) from t').fetchone()[0])
";

/// One transaction over databases in two apps.
const JOINT: &str = "
import sqlite3, sys
base = sqlite3.connect(sys.argv[1], isolation_level=None)
base.execute('attach ? as other', (sys.argv[2],))
for schema in ('main', 'other'):
    base.execute(f'pragma {schema}.synchronous=full')
    base.execute(f'create table {schema}.t (k integer primary key)')
base.execute('begin')
for schema in ('main', 'other'):
    base.execute(f'insert into {schema}.t values (1)')
base.execute('commit')
";

/// One transaction over databases in two apps after the other. Each changes every row of both.
const JOINT_AGAIN: &str = "
import sqlite3, sys
base = sqlite3.connect(sys.argv[1], isolation_level=None)
base.execute('attach ? as other', (sys.argv[2],))
number = 0
for schema in ('main', 'other'):
    base.execute(f'pragma {schema}.journal_mode=' + sys.argv[3])
    base.execute(f'pragma {schema}.cache_size=100')
    base.execute(f'create table if not exists {schema}.t (n integer, v blob)')
    found = base.execute(f'select max(n) from {schema}.t').fetchone()[0]
    if found is None:
        base.execute('begin')
        base.executemany(f'insert into {schema}.t values (0, randomblob(?))', [(3000,)] * 150)
        base.execute('commit')
    number = max(number, found or 0)
print('begun', flush=True)
sys.stdin.readline()
while True:
    number += 1
    base.execute('begin')
    for schema in ('main', 'other'):
        base.execute(f'update {schema}.t set n = ?, v = randomblob(3000)', (number,))
    base.execute('commit')
    print('committed', flush=True)
";

/// What is in a database that such a program has left: each row of the same transaction.
const JOINT_FOUND: &str = "
import sqlite3, sys
base = sqlite3.connect(sys.argv[1])
assert base.execute('pragma integrity_check').fetchone() == ('ok',)
(number,) = base.execute('select distinct n from t').fetchall()
print(number)
";

/// Is in the middle of a transaction, and then has written a part of the database already.
const SPILL: &str = "
import sqlite3, sys
base = sqlite3.connect(sys.argv[1], isolation_level=None)
base.execute('pragma synchronous=full')
base.execute('create table t (k integer primary key, v blob)')
base.execute('begin')
base.execute('insert into t values (null, randomblob(3000))')
print('begun', flush=True)
sys.stdin.readline()
base.execute('pragma cache_size=5')
for _ in range(200):
    base.execute('insert into t values (null, randomblob(3000))')
print('spilt', flush=True)
sys.stdin.readline()
base.execute('commit')
print('done', flush=True)
sys.stdin.readline()
";

/// Stops the filesystem of a directory, as ext4 does after an error: from now on all that is written fails.
const STOP_FILESYSTEM: &str = "
import fcntl, os, struct, sys
EXT4_IOC_SHUTDOWN, NOLOGFLUSH = 0x8004587d, 2
fcntl.ioctl(os.open(sys.argv[1], os.O_RDONLY), EXT4_IOC_SHUTDOWN, struct.pack('I', NOLOGFLUSH))
";

/// Fails to commit, and says what is there afterwards; names that the kernel has cached may take a moment.
const FAIL: &str = "
import os, sqlite3, sys, time
base = sqlite3.connect(sys.argv[1], isolation_level=None)
base.execute('pragma synchronous=full')
base.execute('create table t (k integer primary key)')
print('begun', flush=True)
sys.stdin.readline()
try:
    base.execute('insert into t values (null)')
    print('committed', flush=True)
except sqlite3.OperationalError as error:
    print(error, flush=True)
sys.stdin.readline()
for _ in range(100):
    if not os.path.exists(sys.argv[1] + '-journal'):
        break
    time.sleep(0.1)
print(os.path.exists(sys.argv[1] + '-journal'), os.listdir(os.path.dirname(sys.argv[1])), flush=True)
sys.stdin.readline()
";

/// A Python program that goes on line by line.
struct Program {
    child: Child,
}

impl Program {
    fn start(script: &str, arguments: &[&str]) -> Self {
        let mut command = Command::new("python3");
        command.args(["-c", script]).args(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        Self {
            child: command.spawn().unwrap(),
        }
    }

    /// Waits for its next line.
    fn said(&mut self, line: &str) {
        use std::io::Read as _;
        let output = self.child.stdout.as_mut().unwrap();
        let mut said = vec![0; line.len() + 1];
        output.read_exact(&mut said).unwrap();
        assert_eq!(String::from_utf8_lossy(&said).trim_end(), line);
    }

    fn go_on(&mut self) {
        use std::io::Write as _;
        self.child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    }

    fn stop(&self) {
        let pid = Pid::from_raw(self.child.id() as i32).unwrap();
        kill_process(pid, Signal::STOP).unwrap();
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

fn python(script: &str, arguments: &[&Path]) -> String {
    let output = Command::new("python3")
        .args(["-c", script])
        .args(arguments)
        .output();
    let output = output.unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn has_python() -> bool {
    let found = Command::new("python3")
        .args(["-c", "import sqlite3"])
        .status();
    let is_there = found.is_ok_and(|status| status.success());
    if !is_there {
        mobifs_skip::skip("there is no python3 with sqlite3");
    }
    is_there
}

/// A mount with durable apps.
struct Bank {
    fixture: Fixture,
    config: PathBuf,
}

impl Bank {
    fn new() -> Self {
        Self::of(Fixture::new())
    }

    fn of(fixture: Fixture) -> Self {
        let config = fixture.config(CONFIG);
        let bank = Self { fixture, config };
        bank.mount();
        bank
    }

    fn mount(&self) {
        let config = self.config.to_str().unwrap();
        self.fixture.mount(&["--config", config]);
    }

    /// Cuts the power under a program, and mounts again.
    fn cut(&self, program: Program) {
        self.fixture.cut_power();
        program.kill();
        self.mount();
    }

    /// Where a database of an app may be.
    fn database(&self, app: &str) -> PathBuf {
        let app = self.fixture.mountpoint.join(app);
        fs::create_dir(&app).unwrap();
        app.join("db")
    }

    fn number(&self, field: &str) -> u64 {
        self.fixture.status()["store"][field].as_u64().unwrap()
    }
}

#[test]
fn each_transaction_in_a_durable_app_is_one_commit_and_survives() {
    needs_mounts!();
    if !has_python() {
        return;
    }
    for (mode, synchronous) in [
        ("delete", "full"),
        ("truncate", "full"),
        ("persist", "full"),
        ("delete", "normal"),
        ("truncate", "normal"),
        ("persist", "normal"),
    ] {
        let about = format!("{mode}, {synchronous}");
        let bank = Bank::new();
        let database = bank.database("bank");
        let path = database.to_str().unwrap();
        let mut program = Program::start(INSERT, &[path, mode, synchronous, &ROWS.to_string()]);
        program.said("begun");
        let (commits, ordered) = (bank.number("commits"), bank.number("ordered_fsyncs"));
        program.go_on();
        program.said("done");
        assert_eq!(bank.number("commits") - commits, ROWS, "{about}");
        assert!(
            bank.number("ordered_fsyncs") >= ordered + 2 * ROWS,
            "{about}"
        );
        bank.cut(program);
        assert_eq!(
            python(COUNT, &[&database]),
            (ROWS + 1).to_string(),
            "{about}"
        );
        bank.fixture.umount();
    }
}

#[test]
fn a_transaction_over_databases_in_two_durable_apps_is_in_both() {
    needs_mounts!();
    if !has_python() {
        return;
    }
    let bank = Bank::new();
    let (one, other) = (bank.database("bank-one"), bank.database("bank-other"));
    python(JOINT, &[&one, &other]);
    bank.fixture.cut_power();
    bank.mount();
    let found = [&one, &other].map(|database| python(COUNT, &[database]));
    assert_eq!(found, ["1", "1"]);
    bank.fixture.umount();
}

/// Each app went back to a moment of its own: the journal in the one named a super-journal that was not in the
/// other any more, or not yet, and a database of which a part was changed was malformed.
#[test]
fn a_cut_leaves_transactions_over_databases_in_several_apps_whole() {
    needs_mounts!();
    if !has_python() {
        return;
    }
    for (one, other, mode) in [
        ("bank-one", "other", "delete"),
        ("one", "bank-other", "truncate"),
        ("one", "other", "persist"),
    ] {
        let bank = Bank::new();
        let databases = [one, other].map(|app| bank.database(app));
        let [one_path, other_path] = databases.each_ref().map(|path| path.to_str().unwrap());
        for cut in 0..6 {
            let mut program = Program::start(JOINT_AGAIN, &[one_path, other_path, mode]);
            program.said("begun");
            if cut == 0 {
                succeeds(&mobifs(&["sync"], &bank.fixture.mountpoint));
            }
            program.go_on();
            program.said("committed");
            // Somewhere in the next transaction, other places each time.
            std::thread::sleep(Duration::from_micros(1500 * cut));
            program.stop();
            let app = if cut % 2 == 0 { one } else { other };
            succeeds(&mobifs(&["sync", "--app", app], &bank.fixture.mountpoint));
            bank.cut(program);
            let found = databases
                .each_ref()
                .map(|path| python(JOINT_FOUND, &[path]));
            assert_eq!(found[0], found[1], "{mode}, cut {cut}");
        }
        bank.fixture.umount();
    }
}

/// The successor does not know for which journals its predecessor answered calls without a commit.
#[test]
fn a_transaction_that_outlives_a_daemon_survives_when_it_has_returned() {
    needs_mounts!();
    if !has_python() {
        return;
    }
    let bank = Bank::new();
    let database = bank.database("bank");
    let mut program = Program::start(SPILL, &[database.to_str().unwrap()]);
    program.said("begun");
    program.go_on();
    program.said("spilt");
    assert!(bank.number("ordered_fsyncs") > 0);
    let killed = bank.fixture.daemon_pid();
    kill(killed);
    program.go_on();
    program.said("done");
    assert_ne!(bank.fixture.daemon_pid(), killed);
    bank.cut(program);
    assert_eq!(python(COUNT, &[&database]), "201");
    bank.fixture.umount();
}

/// A backup by one thread, in SQLite's order, when the header of the journal is not valid yet and
/// again when it is. The journal's `fsync`s return at once, those of its copy did, too, and lost it.
#[test]
fn copies_made_durable_in_the_middle_of_a_transaction_survive() {
    needs_mounts!();
    if !has_python() {
        return;
    }
    let bank = Bank::new();
    let (database, copy) = (bank.database("bank"), bank.database("bank-copy"));
    // What the copy replaces is a database.
    drop(python(JOINT, &[&copy, &bank.database("bank-other")]));
    let mut program = Program::start(SPILL, &[database.to_str().unwrap()]);
    program.said("begun");
    let named = |of: &Path, suffix| format!("{}{suffix}", of.to_str().unwrap());
    let copy_all = || {
        for suffix in ["-journal", ""] {
            fs::copy(named(&database, suffix), named(&copy, suffix)).unwrap();
            let copied = fs::File::open(named(&copy, suffix)).unwrap();
            copied.sync_all().unwrap();
        }
    };
    copy_all();
    program.go_on();
    program.said("spilt");
    let ordered = bank.number("ordered_fsyncs");
    copy_all();
    assert_eq!(bank.number("ordered_fsyncs"), ordered);
    let contents = || ["-journal", ""].map(|suffix| fs::read(named(&copy, suffix)).unwrap());
    let expected = contents();
    bank.cut(program);
    assert!(contents() == expected);
    assert_eq!(python(COUNT, &[&copy]), "0");
    assert_eq!(python(COUNT, &[&database]), "0");
    bank.fixture.umount();
}

/// The kernel was not told that the name was gone, since the request had failed, and showed it for a day: the next
/// transaction would have written its journal into the removed file.
#[test]
fn a_journal_whose_removal_could_not_be_made_durable_is_not_seen_any_more() {
    needs_mounts!();
    let mut fixture = Fixture::new();
    if !has_python() || !put_store_on(&mut fixture, &["mkfs.ext4", "-q"]) {
        return;
    }
    let bank = Bank::of(fixture);
    let database = bank.database("bank");
    let mut program = Program::start(FAIL, &[database.to_str().unwrap()]);
    program.said("begun");
    python(STOP_FILESYSTEM, &[&bank.fixture.store]);
    program.go_on();
    program.said("disk I/O error");
    program.go_on();
    program.said("False ['db']");
    bank.fixture.cut_power();
    program.kill();
}
