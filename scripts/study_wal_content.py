#!/usr/bin/env python3
"""What transactions of SQLite in WAL mode would take in a journal, in three ways.

A row is inserted, updated or deleted in each transaction. For each, the frames that SQLite appends
to its log are taken from the log itself, and it is computed what a journal has to hold of them:

  whole        the bytes that are not zero, as if a frame were new content;
  LZ4          the same, compressed frame by frame (with the Python package `lz4`, if it is there);
  last version the bytes in which a frame differs from the last version of the page that it has,
               in an earlier frame or in the database. MobiFS's journal refers to that.

Blocks are of 4 KiB, with what else a commit has (a header, the state of one object, places).

  study_wal_content.py [--transactions N] [--text hex|words]
"""

from __future__ import annotations

import argparse
import random
import sqlite3
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path

from lib.process import ROOT, main_guard, say
from lib.report import table

try:
    from lz4.block import compress
except ImportError:
    compress = None

PAGE = 4096
FRAME_HEADER = 24
LOG_HEADER = 32
ROWS = 10_000
TEXT = 100
# The journal stores changes with fewer equal bytes than this between them as one.
GAP = 16
# Header of a transaction, state of the log file, place of each page.
COMMIT_BYTES, PLACE_BYTES, RUN_BYTES = 110, 12, 4
Frame = tuple[int, bytes, bytes]


def texts(kind: str, chance: random.Random) -> Callable[[], str]:
    words = (ROOT / "docs" / "DESIGN.md").read_text().split()
    if kind == "words":
        return lambda: " ".join(chance.choices(words, k=30))[:TEXT]
    return lambda: f"{chance.getrandbits(8 * TEXT):0{TEXT}x}"[:TEXT]


def transactions_of(log: bytes) -> list[list[Frame]]:
    """The frames of each transaction: page, header of the frame, content."""
    salt, found, frames = log[16:24], [], []
    for at in range(LOG_HEADER, len(log) - FRAME_HEADER - PAGE + 1, FRAME_HEADER + PAGE):
        header = log[at : at + FRAME_HEADER]
        if header[8:16] != salt:
            break
        page, ends = struct.unpack(">II", header[:8])
        frames.append((page, header, log[at + FRAME_HEADER : at + FRAME_HEADER + PAGE]))
        if ends:
            found.append(frames)
            frames = []
    return found


def changed_bytes(old: bytes, new: bytes) -> tuple[int, int]:
    """Bytes that are stored of the changes, and in how many runs."""
    stored, runs, last = 0, 0, -GAP - 1
    for at in range(PAGE):
        if old[at] != new[at]:
            joins = at - last < GAP
            stored += at - last if joins else 1
            runs += not joins
            last = at
    return stored, runs


def work(path: Path, statement: str, count: int, kind: str) -> tuple[bytes, bytes]:
    """The database before the transactions, and the log after them."""
    chance = random.Random(1)
    text = texts(kind, chance)
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("PRAGMA journal_mode=wal")
    database.execute("CREATE TABLE item(id INTEGER PRIMARY KEY, stamp INTEGER, body TEXT)")
    database.execute("CREATE INDEX item_stamp ON item(stamp)")
    if statement != "insert":
        rows = ((number, number, text()) for number in range(1, ROWS + 1))
        database.execute("BEGIN")
        database.executemany("INSERT INTO item VALUES (?, ?, ?)", rows)
        database.execute("COMMIT")
    database.execute("PRAGMA wal_checkpoint(truncate)")
    database.execute("PRAGMA wal_autocheckpoint=0")
    before = path.read_bytes()
    chosen = chance.sample(range(1, ROWS + 1), count)
    for number, row in enumerate(chosen, 1):
        if statement == "insert":
            database.execute("INSERT INTO item VALUES (?, ?, ?)", (number, number, text()))
        elif statement == "update":
            database.execute("UPDATE item SET stamp=?, body=? WHERE id=?", (number, text(), row))
        else:
            database.execute("DELETE FROM item WHERE id=?", (row,))
    log = path.with_name(path.name + "-wal").read_bytes()
    database.close()
    return before, log


def costs(before: bytes, log: bytes, count: int) -> list[list[int]]:
    """Of each transaction the bytes in each of the three ways."""
    pages = {at // PAGE + 1: before[at : at + PAGE] for at in range(0, len(before), PAGE)}
    rows = []
    for frames in transactions_of(log)[-count:]:
        row = [COMMIT_BYTES + PLACE_BYTES * len(frames)] * 3
        for page, header, content in frames:
            whole = changed_bytes(bytes(PAGE), content)[0] + FRAME_HEADER
            packed = len(compress(header + content, store_size=False)) if compress else whole
            stored, runs = changed_bytes(pages.get(page, bytes(PAGE)), content)
            pages[page] = content
            row[0] += whole
            row[1] += min(whole, packed)
            row[2] += stored + FRAME_HEADER + RUN_BYTES * runs + PLACE_BYTES
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--transactions", type=int, default=400)
    parser.add_argument("--text", choices=("hex", "words"), default="words", help="of the rows")
    options = parser.parse_args()
    ways = ["whole", "LZ4" if compress else "LZ4 (no package)", "last version"]
    rows = []
    for statement in ("insert", "update", "delete"):
        with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
            path = Path(directory) / "rows.db"
            before, log = work(path, statement, options.transactions, options.text)
        found = costs(before, log, options.transactions)
        means = [sum(row[way] for row in found) / len(found) for way in range(3)]
        blocks = [sum(-(-row[way] // PAGE) for row in found) / len(found) for way in range(3)]
        cells = [f"{mean:,.0f} B, {count:.2f}" for mean, count in zip(means, blocks, strict=True)]
        rows.append([statement, *cells])
    say(table(["a transaction: bytes, blocks", *ways], rows))


if __name__ == "__main__":
    main_guard(main)
