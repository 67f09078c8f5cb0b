"""The name of a database for SQLite."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Union
from urllib.parse import quote

Path = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]

# What the extension understands (docs/SQLITE.md), and what SQLite itself does.
PARAMETERS = frozenset(
    """age_max_ms apply_idle_ms arena class direct_write_max_bytes flush_interval_ms interval_ms
    journal_bytes memory_budget_bytes policy preallocate_database_bytes quiet_age_min_ms quiet_ms
    slope_min_micropercent staleness_bytes staleness_max_bytes staleness_min_bytes window_points""".split()
)
SQLITE_PARAMETERS = frozenset("cache immutable mode modeof nolock psow".split())


def database_uri(path: Path, parameters: Mapping[str, object]) -> str:
    """A URI that names just this file, whatever characters its path has."""
    name = os.fsencode(path)
    if name in (b"", b":memory:"):
        raise ValueError("a database that is in no file needs no MobiFS: use sqlite3.connect")
    if b"\0" in name:
        raise ValueError("a path cannot contain a null character")
    # SQLite passes over names that nothing knows, and a promise would be lost to a letter.
    unknown = sorted(parameters.keys() - PARAMETERS - SQLITE_PARAMETERS)
    if unknown:
        raise ValueError(f"no parameter is called {', '.join(unknown)}; see docs/SQLITE.md")
    words = [f"{quote(key, safe='')}={_value(value)}" for key, value in parameters.items()]
    return f"file://{quote(os.path.abspath(name), safe='/')}?" + "&".join(["vfs=mobifs", *words])


def _value(value: object) -> str:
    if isinstance(value, (str, bytes, os.PathLike)):
        return quote(os.fsencode(value), safe="/")
    return quote(str(value), safe="")
