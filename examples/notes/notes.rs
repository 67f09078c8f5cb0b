//! Notes with tags, kept in SQLite through MobiFS: the same program as `notes.py`, on the same
//! database. The README beside it shows both.

use std::io::{self, BufRead as _, Write as _};
use std::path::PathBuf;

use rusqlite::{Connection, OpenFlags, OptionalExtension as _, params};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const USAGE: &str = "usage: notes [--durable] [--age-max-ms N] [--arena DIR] FILE COMMAND\n\
    commands: add TEXT..., add - (each line of the input), list, search WORD, tags, check";
const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS note(id INTEGER PRIMARY KEY, text TEXT NOT NULL);
    CREATE TABLE IF NOT EXISTS tag(name TEXT PRIMARY KEY, notes INTEGER NOT NULL)";

/// What the command line says.
struct Arguments {
    parameters: String,
    file: PathBuf,
    command: String,
    words: Vec<String>,
}

impl Arguments {
    fn read() -> Result<Self> {
        let mut given = std::env::args().skip(1);
        let mut parameters = String::from("?vfs=mobifs");
        let mut next = || given.next().ok_or(USAGE);
        let file = loop {
            match &*next()? {
                "--durable" => parameters.push_str("&class=durable"),
                "--age-max-ms" => parameters.push_str(&format!("&age_max_ms={}", next()?)),
                "--arena" => parameters.push_str(&format!("&arena={}", next()?)),
                file => break std::path::absolute(file)?,
            }
        };
        let command = next()?;
        let words = given.collect();
        Ok(Self {
            parameters,
            file,
            command,
            words,
        })
    }
}

/// The only lines that know MobiFS.
fn open(arguments: &Arguments) -> Result<Connection> {
    mobifs_sqlite::register()?;
    let mut uri = String::from("file:");
    for byte in arguments.file.as_os_str().as_encoded_bytes() {
        match byte {
            b'%' | b'?' | b'#' => uri.push_str(&format!("%{byte:02x}")),
            0x21..0x7f => uri.push(char::from(*byte)),
            _ => uri.push_str(&format!("%{byte:02x}")),
        }
    }
    uri.push_str(&arguments.parameters);
    let opened =
        Connection::open_with_flags(uri, OpenFlags::default() | OpenFlags::SQLITE_OPEN_URI);
    let connection = opened.map_err(|error| match mobifs_sqlite::last_error() {
        Some(reason) => format!("{error}: {reason}"),
        None => error.to_string(),
    })?;
    connection.pragma_update(None, "journal_mode", "wal")?;
    connection.execute_batch(SCHEMA)?;
    Ok(connection)
}

fn tags(text: &str) -> Vec<&str> {
    let mut found: Vec<&str> = text
        .split_whitespace()
        .filter(|word| is_tag(word))
        .collect();
    found.sort_unstable();
    found.dedup();
    found
}

fn is_tag(word: &str) -> bool {
    word.len() > 1 && word.starts_with('#')
}

/// The note and the counts of its tags, in one transaction.
fn add(connection: &mut Connection, text: &str) -> Result<i64> {
    let transaction = connection.transaction()?;
    transaction.execute("INSERT INTO note(text) VALUES (?1)", [text])?;
    let id = transaction.last_insert_rowid();
    for tag in tags(text) {
        transaction.execute(
            "INSERT INTO tag VALUES (?1, 1) ON CONFLICT(name) DO UPDATE SET notes = notes + 1",
            [tag],
        )?;
    }
    transaction.commit()?;
    Ok(id)
}

fn print_notes(connection: &Connection, word: &str) -> Result<()> {
    let mut query = connection.prepare("SELECT id, text FROM note WHERE instr(text, ?1) > 0")?;
    let mut rows = query.query(params![word])?;
    while let Some(row) = rows.next()? {
        println!("{} {}", row.get::<_, i64>(0)?, row.get::<_, String>(1)?);
    }
    Ok(())
}

/// Whether the notes are 1 to n, and their tags were counted with them; returns n.
fn check(connection: &Connection) -> Result<i64> {
    let verdict: String = connection.query_row("PRAGMA integrity_check", [], |row| row.get(0))?;
    if verdict != "ok" {
        return Err(verdict.into());
    }
    let mut counts = std::collections::BTreeMap::<String, i64>::new();
    let mut query = connection.prepare("SELECT id, text FROM note ORDER BY id")?;
    let mut rows = query.query([])?;
    let mut count = 0;
    while let Some(row) = rows.next()? {
        count += 1;
        let (id, text): (i64, String) = (row.get(0)?, row.get(1)?);
        if id != count {
            return Err(format!("note {count} is missing").into());
        }
        for tag in tags(&text) {
            *counts.entry(tag.to_owned()).or_default() += 1;
        }
    }
    for (tag, expected) in &counts {
        let kept = connection
            .query_row("SELECT notes FROM tag WHERE name = ?1", [tag], |row| {
                row.get::<_, i64>(0)
            })
            .optional()?;
        if kept != Some(*expected) {
            return Err(format!("{tag} is on {expected} notes and counted as {kept:?}").into());
        }
    }
    let tags: i64 = connection.query_row("SELECT count(*) FROM tag", [], |row| row.get(0))?;
    if tags != counts.len() as i64 {
        return Err(format!("{tags} tags are counted, and {} are there", counts.len()).into());
    }
    Ok(count)
}

fn run() -> Result<()> {
    let arguments = Arguments::read()?;
    let mut connection = open(&arguments)?;
    let text = arguments.words.join(" ");
    match &*arguments.command {
        "add" if text == "-" => {
            for line in io::stdin().lock().lines() {
                println!("{}", add(&mut connection, &line?)?);
                io::stdout().flush()?;
            }
        }
        "add" if !text.is_empty() => println!("{}", add(&mut connection, &text)?),
        "list" => print_notes(&connection, "")?,
        "search" if !text.is_empty() => print_notes(&connection, &text)?,
        "tags" => {
            let mut query = connection.prepare("SELECT name, notes FROM tag ORDER BY name")?;
            let mut rows = query.query([])?;
            while let Some(row) = rows.next()? {
                println!("{} {}", row.get::<_, String>(0)?, row.get::<_, i64>(1)?);
            }
        }
        "check" => println!("{} notes, all sound", check(&connection)?),
        _ => return Err(USAGE.into()),
    }
    connection.close().map_err(|(_, error)| error)?;
    Ok(())
}

fn main() {
    if let Err(error) = run() {
        eprintln!("notes: {error}");
        std::process::exit(1);
    }
}
