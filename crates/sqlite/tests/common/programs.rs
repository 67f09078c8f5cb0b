//! Programs that use databases as commands on their standard input say.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::Barrier;
use std::time::Duration;

use rusqlite::fallible_iterator::FallibleIterator as _;
use rusqlite::types::ValueRef;
use rusqlite::{Batch, Connection, OpenFlags};
use serde_json::{Value, json};

use super::{USER, child, kill_point};

/// What a program answers: SQLite's primary code, and what it found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub code: i64,
    pub rows: Vec<String>,
    pub words: String,
}

/// A program that executes commands.
pub struct Actor {
    pub process: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Actor {
    pub fn start(entry: &str) -> Self {
        let user = if is_root() { USER } else { 0 };
        let mut process = child(entry, &user.to_string(), Path::new("/"))
            .stdin(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let (stdin, stdout) = (process.stdin.take(), process.stdout.take());
        Self {
            process,
            stdin: stdin.unwrap(),
            stdout: BufReader::new(stdout.unwrap()),
        }
    }

    pub fn send(&mut self, call: &Value) {
        writeln!(self.stdin, "{call}").unwrap();
        self.stdin.flush().unwrap();
    }

    /// None if it was killed.
    pub fn answer(&mut self) -> Option<Answer> {
        let mut line = String::new();
        while self.stdout.read_line(&mut line).ok()? > 0 {
            if let Some(answer) = line.trim_end().strip_prefix('@') {
                let answer: Value = serde_json::from_str(answer).ok()?;
                let rows = answer["rows"].as_array()?.iter();
                return Some(Answer {
                    code: answer["code"].as_i64()?,
                    rows: rows.map(|row| row.as_str().unwrap().to_owned()).collect(),
                    words: answer["words"].as_str()?.to_owned(),
                });
            }
            line.clear();
        }
        None
    }

    pub fn call(&mut self, call: &Value) -> Answer {
        self.send(call);
        self.answer()
            .unwrap_or_else(|| panic!("a program died of {call}"))
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        let _killed = self.process.kill();
        let _waited = self.process.wait();
    }
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Does what comes from standard input until it ends. Another user than root does it, if one is
/// named.
#[allow(unsafe_code, reason = "the user of a whole process")]
pub fn serve(user: u32) {
    if user != 0 {
        // SAFETY: numbers of users.
        unsafe {
            assert_eq!(libc::setgid(user), 0);
            assert_eq!(libc::setuid(user), 0);
        }
    }
    mobifs_sqlite::register().unwrap();
    let mut connections = BTreeMap::new();
    for line in std::io::stdin().lines() {
        let call: Value = serde_json::from_str(&line.unwrap()).unwrap();
        mobifs_sqlite::forget_last_error();
        let done = perform(&mut connections, &call);
        let words = match &done {
            // An error that SQLite does not pass on: why a last close did not finish.
            Ok(_) => mobifs_sqlite::last_error().unwrap_or_default(),
            Err(error) => format!("{error} ({:?})", mobifs_sqlite::last_error()),
        };
        let (code, rows) = match done {
            Ok(rows) => (0, rows),
            Err(error) => (code_of(&error), Vec::new()),
        };
        println!(
            "\n@{}",
            json!({ "code": code, "rows": rows, "words": words })
        );
        std::io::stdout().flush().unwrap();
    }
}

fn code_of(error: &rusqlite::Error) -> i64 {
    match error {
        rusqlite::Error::SqliteFailure(failure, _) => i64::from(failure.extended_code & 0xff),
        other => panic!("{other}"),
    }
}

fn perform(
    connections: &mut BTreeMap<u64, Connection>,
    call: &Value,
) -> rusqlite::Result<Vec<String>> {
    let text = |name: &str| call[name].as_str().unwrap();
    let number = call["connection"].as_u64().unwrap_or(0);
    match text("do") {
        "open" => {
            let flags = call["flags"].as_i64().unwrap() as i32;
            let connection = open(text("uri"), flags)?;
            connection.execute_batch("PRAGMA cache_size=5")?;
            connections.insert(number, connection);
            Ok(Vec::new())
        }
        "run" => {
            let connection = &connections[&number];
            let done = run(connection, text("sql"));
            if done.is_err() && call["alone"] == true && !connection.is_autocommit() {
                let _rolled_back = connection.execute_batch("ROLLBACK");
            }
            done
        }
        "state" => {
            let is_idle = connections[&number].is_autocommit();
            Ok(vec![if is_idle { "out" } else { "in" }.to_owned()])
        }
        "end at" => {
            kill_point::end_at(call["instant"].as_u64().unwrap());
            Ok(Vec::new())
        }
        "close" => {
            drop(connections.remove(&number));
            Ok(Vec::new())
        }
        "burst" => {
            let rounds = call["rounds"].as_u64().unwrap();
            let threads = call["threads"].as_u64().unwrap();
            (0..rounds).try_for_each(|_| burst(text("uri"), text("sql"), threads))?;
            Ok(Vec::new())
        }
        other => panic!("{other}"),
    }
}

fn open(uri: &str, flags: i32) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::from_bits_truncate(flags) | OpenFlags::SQLITE_OPEN_URI;
    let connection = Connection::open_with_flags(uri, flags)?;
    connection.busy_timeout(Duration::ZERO)?;
    Ok(connection)
}

pub fn run(connection: &Connection, sql: &str) -> rusqlite::Result<Vec<String>> {
    let mut found = Vec::new();
    let mut batch = Batch::new(connection, sql);
    while let Some(mut statement) = batch.next()? {
        let columns = statement.column_count();
        let mut rows = statement.raw_query();
        while let Some(row) = rows.next()? {
            let value = |column| -> rusqlite::Result<String> {
                Ok(match row.get_ref(column)? {
                    // In words: the histories look for names of modes.
                    ValueRef::Text(text) => String::from_utf8_lossy(text).into_owned(),
                    other => format!("{other:?}"),
                })
            };
            let row: rusqlite::Result<Vec<String>> = (0..columns).map(value).collect();
            found.push(row?.join(" "));
        }
    }
    Ok(found)
}

/// Several threads open the database, access it first, work and close it, each step at once.
fn burst(uri: &str, sql: &str, threads: u64) -> rusqlite::Result<()> {
    let barrier = Barrier::new(threads as usize);
    let work = || {
        barrier.wait();
        let flags = OpenFlags::default().bits();
        let opened = open(uri, flags);
        // SQLite opens a file when the connection is made, and its log when it is used first.
        barrier.wait();
        let done = opened.and_then(|connection| {
            connection.busy_timeout(Duration::from_secs(60))?;
            connection.execute_batch(sql)?;
            Ok(connection)
        });
        barrier.wait();
        done.map(drop)
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let results: Vec<_> = threads.into_iter().map(|it| it.join().unwrap()).collect();
        results.into_iter().collect()
    })
}
