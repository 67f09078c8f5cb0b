#!/usr/bin/env python3
"""Notes with tags, kept in SQLite through MobiFS.

    notes.py [--durable] [--age-max-ms N] [--arena DIR] FILE COMMAND

Commands: `add TEXT...`, `add -` (each line of the input is a note; its number is printed when it
is kept), `list`, `search WORD`, `tags`, `check`.
"""

from __future__ import annotations

import argparse
import sqlite3
import sys
from collections import Counter

import mobifs_sqlite

SCHEMA = """
    CREATE TABLE IF NOT EXISTS note(id INTEGER PRIMARY KEY, text TEXT NOT NULL);
    CREATE TABLE IF NOT EXISTS tag(name TEXT PRIMARY KEY, notes INTEGER NOT NULL)
"""


def open_notes(options: argparse.Namespace) -> sqlite3.Connection:
    """The only line that knows MobiFS is the first."""
    connection = mobifs_sqlite.connect(
        options.file,
        class_="durable" if options.durable else "relaxed",
        age_max_ms=options.age_max_ms,
        arena=options.arena,
    )
    connection.execute("PRAGMA journal_mode=wal")
    connection.executescript(SCHEMA)
    return connection


def tags(text: str) -> set[str]:
    return {word for word in text.split() if word.startswith("#") and len(word) > 1}


def add(connection: sqlite3.Connection, text: str) -> int:
    """The note and the counts of its tags, in one transaction."""
    with connection:
        added = connection.execute("INSERT INTO note(text) VALUES (?)", (text,)).lastrowid
        connection.executemany(
            "INSERT INTO tag VALUES (?, 1) ON CONFLICT(name) DO UPDATE SET notes = notes + 1",
            [(tag,) for tag in tags(text)],
        )
    assert added is not None
    return added


def print_notes(connection: sqlite3.Connection, word: str) -> None:
    for row in connection.execute("SELECT id, text FROM note WHERE instr(text, ?) > 0", (word,)):
        print(*row)


def check(connection: sqlite3.Connection) -> int:
    """Whether the notes are 1 to n, and their tags were counted with them; returns n."""
    (verdict,) = connection.execute("PRAGMA integrity_check").fetchone()
    if verdict != "ok":
        sys.exit(verdict)
    notes = connection.execute("SELECT id, text FROM note ORDER BY id").fetchall()
    if [number for number, _ in notes] != list(range(1, len(notes) + 1)):
        sys.exit("a note is missing")
    found = Counter(tag for _, text in notes for tag in tags(text))
    if dict(connection.execute("SELECT name, notes FROM tag")) != found:
        sys.exit("the tags are not those of the notes")
    return len(notes)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--durable", action="store_true", help="kept when it is said to be")
    parser.add_argument("--age-max-ms", type=int, help="a power cut takes no more than this")
    parser.add_argument("--arena", help="where what survives a kill is, instead of /dev/shm")
    parser.add_argument("file")
    parser.add_argument("command", choices=("add", "list", "search", "tags", "check"))
    parser.add_argument("words", nargs="*")
    options = parser.parse_args()
    text = " ".join(options.words)
    if options.command in ("add", "search") and not text:
        parser.error(f"{options.command} what?")
    try:
        run(options, text)
    except (sqlite3.Error, OSError, ValueError) as error:
        # Not a database, a directory that is not there, an input that is no text, …
        sys.exit(f"{parser.prog}: {options.file}: {error}")


def run(options: argparse.Namespace, text: str) -> None:
    connection = open_notes(options)
    if options.command == "add":
        for line in sys.stdin if text == "-" else [text]:
            print(add(connection, line.rstrip("\n")), flush=True)
    elif options.command == "tags":
        for row in connection.execute("SELECT name, notes FROM tag ORDER BY name"):
            print(*row)
    elif options.command == "check":
        print(f"{check(connection)} notes, all sound")
    else:
        print_notes(connection, text if options.command == "search" else "")
    connection.close()


if __name__ == "__main__":
    main()
