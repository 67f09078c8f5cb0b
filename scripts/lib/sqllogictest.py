"""SQL logic tests, run through two VFSes at once and compared statement by statement."""

from __future__ import annotations

import sqlite3
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

JOURNAL_MODES = ("delete", "truncate", "persist", "wal")
ENGINE = "sqlite"


@dataclass
class Compared:
    """What came of a file."""

    statements: int = 0
    # That SQLite refused, the same way through both.
    refused: int = 0
    differences: list[str] = field(default_factory=list)

    def add(self, other: Compared) -> None:
        self.statements += other.statements
        self.refused += other.refused
        self.differences += other.differences


def statements(text: str) -> Iterator[str]:
    """The statements of a test that are meant for SQLite.

    A record is a block of lines: conditions (`skipif`, `onlyif`), `statement` or `query`, the
    SQL, and for a query `----` and what it returns, which is not looked at.
    """
    for record in text.replace("\r\n", "\n").split("\n\n"):
        lines = [line for line in record.splitlines() if not line.startswith("#")]
        while lines and lines[0].split(" ")[0] in ("skipif", "onlyif", "hash-threshold"):
            word, _, engine = lines.pop(0).partition(" ")
            engine = engine.split(" ")[0]
            is_other = engine == ENGINE if word == "skipif" else engine != ENGINE
            if word != "hash-threshold" and is_other:
                lines = []
        if not lines:
            continue
        word = lines[0].split(" ")[0]
        if word == "halt":
            return
        if word in ("statement", "query"):
            sql = "\n".join(lines[1:])
            yield sql.partition("\n----")[0]


def outcome(connection: sqlite3.Connection, statement: str) -> object:
    try:
        return connection.execute(statement).fetchall()
    except (sqlite3.Error, sqlite3.Warning) as error:
        return (type(error).__name__, str(error))


def opened(path: Path, vfs: str, mode: str) -> sqlite3.Connection:
    connection = sqlite3.connect(f"file:{path}?vfs={vfs}", uri=True, isolation_level=None)
    (set_mode,) = connection.execute(f"PRAGMA journal_mode={mode}").fetchone()
    assert set_mode == mode, f"{vfs}: {mode} is {set_mode}"
    # Hardly any page stays in SQLite, so what it reads comes through the VFS.
    connection.execute("PRAGMA cache_size=5")
    return connection


def compare(name: str, text: str, directory: Path, mode: str, most: int | None) -> Compared:
    """Runs a file's statements (at most `most`) through the default VFS and through MobiFS,
    in a new database each; both files are the same in the end."""
    compared = Compared()
    paths = {vfs: directory / f"{vfs}.db" for vfs in ("unix", "mobifs")}
    connections = {vfs: opened(path, vfs, mode) for vfs, path in paths.items()}
    for statement in statements(text):
        if compared.statements == most:
            break
        expected, found = (outcome(connection, statement) for connection in connections.values())
        compared.statements += 1
        compared.refused += isinstance(expected, tuple)
        if found != expected:
            message = f"{name} ({mode}): {statement}: {expected!r:.200} but {found!r:.200}"
            compared.differences.append(message)
    for connection in connections.values():
        connection.close()
    if paths["unix"].read_bytes() != paths["mobifs"].read_bytes():
        compared.differences.append(f"{name} ({mode}): the databases differ")
    for path in paths.values():
        path.unlink()
    return compared


def tests(archive: Path) -> Iterator[tuple[str, str]]:
    """The tests in an archive, in the order of their names."""
    with zipfile.ZipFile(archive) as opened_archive:
        for name in sorted(opened_archive.namelist()):
            if name.endswith(".test"):
                yield name, opened_archive.read(name).decode()
