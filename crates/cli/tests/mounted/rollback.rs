//! SQLite with rollback journals in durable apps: one commit a transaction, and each that has returned
//! survives.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::fixture::{Fixture, needs_mounts};
use crate::kills::kill;

const CONFIG: &str = "[[app]]\nmatch = \"bank*\"\nclass = \"durable\"\n";
const ROWS: u64 = 12;

/// Inserts rows, one in each transaction.
const INSERT: &str = "
import sqlite3, sys
path, mode, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
base = sqlite3.connect(path, isolation_level=None)
base.execute('pragma synchronous=full')
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

/// Is in the middle of a transaction that has written a part of the database already.
const SPILL: &str = "
import sqlite3, sys
base = sqlite3.connect(sys.argv[1], isolation_level=None)
base.execute('pragma synchronous=full')
base.execute('create table t (k integer primary key, v blob)')
base.execute('pragma cache_size=5')
base.execute('begin')
for _ in range(200):
    base.execute('insert into t values (null, randomblob(3000))')
print('begun', flush=True)
sys.stdin.readline()
base.execute('commit')
print('done', flush=True)
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

fn number(fixture: &Fixture, field: &str) -> u64 {
    fixture.status()["store"][field].as_u64().unwrap()
}

fn bank(fixture: &Fixture, name: &str) -> std::path::PathBuf {
    let app = fixture.mountpoint.join(name);
    fs::create_dir(&app).unwrap();
    app.join("db")
}

#[test]
fn each_transaction_in_a_durable_app_is_one_commit_and_survives() {
    needs_mounts!();
    if !has_python() {
        return;
    }
    for mode in ["delete", "truncate", "persist"] {
        let fixture = Fixture::new();
        let config = fixture.config(CONFIG);
        let mount = || fixture.mount(&["--config", config.to_str().unwrap()]);
        mount();
        let database = bank(&fixture, "bank");
        let path = database.to_str().unwrap();
        let mut program = Program::start(INSERT, &[path, mode, &ROWS.to_string()]);
        program.said("begun");
        let (commits, ordered) = (
            number(&fixture, "commits"),
            number(&fixture, "ordered_fsyncs"),
        );
        program.go_on();
        program.said("done");
        assert_eq!(number(&fixture, "commits") - commits, ROWS, "{mode}");
        assert!(
            number(&fixture, "ordered_fsyncs") >= ordered + 3 * ROWS,
            "{mode}"
        );
        fixture.cut_power();
        program.kill();
        mount();
        assert_eq!(
            python(COUNT, &[&database]),
            (ROWS + 1).to_string(),
            "{mode}"
        );
        fixture.umount();
    }
}

#[test]
fn a_transaction_over_databases_in_two_durable_apps_is_in_both() {
    needs_mounts!();
    if !has_python() {
        return;
    }
    let fixture = Fixture::new();
    let config = fixture.config(CONFIG);
    let mount = || fixture.mount(&["--config", config.to_str().unwrap()]);
    mount();
    let (one, other) = (bank(&fixture, "bank-one"), bank(&fixture, "bank-other"));
    python(JOINT, &[&one, &other]);
    fixture.cut_power();
    mount();
    assert_eq!(
        (&*python(COUNT, &[&one]), &*python(COUNT, &[&other])),
        ("1", "1")
    );
    fixture.umount();
}

/// The successor does not know for which journals its predecessor answered calls without a commit.
#[test]
fn a_transaction_that_outlives_a_daemon_survives_when_it_has_returned() {
    needs_mounts!();
    if !has_python() {
        return;
    }
    let fixture = Fixture::new();
    let config = fixture.config(CONFIG);
    let mount = || fixture.mount(&["--config", config.to_str().unwrap()]);
    mount();
    let database = bank(&fixture, "bank");
    let mut program = Program::start(SPILL, &[database.to_str().unwrap()]);
    program.said("begun");
    assert!(number(&fixture, "ordered_fsyncs") > 0);
    let killed = fixture.daemon_pid();
    kill(killed);
    program.go_on();
    program.said("done");
    assert_ne!(fixture.daemon_pid(), killed);
    fixture.cut_power();
    program.kill();
    mount();
    assert_eq!(python(COUNT, &[&database]), "200");
    fixture.umount();
}

/// The journal's `fsync`s return at once, those of its copy do not.
#[test]
fn a_copy_made_durable_in_the_middle_of_a_transaction_survives() {
    needs_mounts!();
    if !has_python() {
        return;
    }
    let fixture = Fixture::new();
    let config = fixture.config(CONFIG);
    let mount = || fixture.mount(&["--config", config.to_str().unwrap()]);
    mount();
    let database = bank(&fixture, "bank");
    let copy = bank(&fixture, "bank-copy");
    let mut program = Program::start(SPILL, &[database.to_str().unwrap()]);
    program.said("begun");
    for suffix in ["", "-journal"] {
        let name = |of: &Path| format!("{}{suffix}", of.to_str().unwrap());
        fs::copy(name(&database), name(&copy)).unwrap();
        fs::File::open(name(&copy)).unwrap().sync_all().unwrap();
    }
    let journal = format!("{}-journal", copy.to_str().unwrap());
    let expected = (fs::read(&copy).unwrap(), fs::read(&journal).unwrap());
    fixture.cut_power();
    program.kill();
    mount();
    assert!((fs::read(&copy).unwrap(), fs::read(&journal).unwrap()) == expected);
    assert_eq!(python(COUNT, &[&copy]), "0");
    assert_eq!(python(COUNT, &[&database]), "0");
    fixture.umount();
}
