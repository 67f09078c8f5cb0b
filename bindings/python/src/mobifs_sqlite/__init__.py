"""SQLite databases at memory speed that a power cut cannot corrupt.

    import mobifs_sqlite

    connection = mobifs_sqlite.connect("notes.db")

The connection is an ordinary `sqlite3.Connection`. Its commits cost no system call and no
write to flash; they reach it together, in the background, at the latest after `age_max_ms`.
With `class_="durable"` a commit is on the device when it returns.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from typing import Any, Union

from mobifs_sqlite._extension import extension_path, last_error, register
from mobifs_sqlite._uri import Path, database_uri

__all__ = [
    "checkpoint",
    "connect",
    "extension_path",
    "last_error",
    "register",
    "status",
]

# A size in bytes, or as text with a unit: "64MiB".
Size = Union[int, str]


def connect(
    path: Path,
    *,
    class_: str | None = None,
    age_max_ms: int | None = None,
    staleness_max_bytes: Size | None = None,
    memory_budget_bytes: Size | None = None,
    journal_bytes: Size | None = None,
    arena: Path | None = None,
    parameters: Mapping[str, object] | None = None,
    **arguments: Any,
) -> sqlite3.Connection:
    """Opens the database at `path` through MobiFS; makes it if there is none.

    `class_` is "relaxed" (what holds if nothing is said: a power cut takes back at most the last `age_max_ms`, to one moment
    of the database's past) or "durable" (a commit is on the device when it returns).
    `staleness_max_bytes` bounds what is at risk in bytes, too; `memory_budget_bytes` what is
    held in memory; `journal_bytes` is the size of a journal that is made. `arena` is the
    directory for what survives the process being killed. `parameters` are further ones of the
    database's URI, by name: `{"policy": "quiet", "quiet_ms": 500}`. What else is given goes to
    `sqlite3.connect`.

    Raises `sqlite3.OperationalError`, which says why in words, and `ValueError` for a path
    that names no file or a parameter that does not exist.
    """
    named = {
        "class": class_,
        "age_max_ms": age_max_ms,
        "staleness_max_bytes": staleness_max_bytes,
        "memory_budget_bytes": memory_budget_bytes,
        "journal_bytes": journal_bytes,
        "arena": arena,
    }
    given = {name: value for name, value in named.items() if value is not None}
    if "uri" in arguments:
        raise TypeError("the database is named by its path; `parameters` go into its URI")
    parameters = parameters or {}
    twice = sorted(parameters.keys() & given.keys())
    if twice:
        raise TypeError(f"given twice: {', '.join(twice)}")
    uri = database_uri(path, {**parameters, **given})
    library = register()
    library.mobifs_forget_last_error()
    try:
        return sqlite3.connect(uri, uri=True, **arguments)
    except sqlite3.Error as error:
        reason = last_error()
        if reason is None:
            raise
        explained = sqlite3.OperationalError(f"{error}: {reason}")
        for name in ("sqlite_errorcode", "sqlite_errorname"):
            if hasattr(error, name):
                setattr(explained, name, getattr(error, name))
        raise explained from error


def status(connection: sqlite3.Connection) -> dict[str, Any]:
    """What a power cut would take right now, and what was written so far.

    The fields are those of `PRAGMA mobifs_status`: `bytes_at_risk`, `seconds_at_risk`,
    `last_checkpoint_seconds`, `device_written_bytes`, and others.
    """
    report: dict[str, Any] = json.loads(_pragma(connection, "mobifs_status"))
    return report


def checkpoint(connection: sqlite3.Connection) -> None:
    """Everything that was committed so far is on the device when it returns."""
    _pragma(connection, "mobifs_checkpoint")


def _pragma(connection: sqlite3.Connection, name: str) -> str:
    cursor = sqlite3.Cursor(connection)
    # Whatever the connection makes of its own rows.
    cursor.row_factory = None
    row = cursor.execute(f"PRAGMA {name}").fetchone()
    if row is None:
        raise sqlite3.ProgrammingError("this connection's database is not open through MobiFS")
    return str(row[0])
