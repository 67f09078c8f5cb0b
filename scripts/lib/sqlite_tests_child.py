"""Runs CPython's own tests of `sqlite3` in this process and prints the outcome of each.

    sqlite_tests_child.py [--extension FILE] [--files]

With `--extension` every database is opened through MobiFS; with `--files` those that the tests
keep in memory are in files. Prints one JSON object: `outcomes` by test, `files` opened so.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import os
import sqlite3
import sys
import unittest
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bindings" / "python" / "src"))


# Exit status: this Python comes without its tests.
NO_TESTS = 77


class Outcomes(unittest.TestResult):
    """How each test ended; of failures the kind of exception, and its text."""

    def __init__(self) -> None:
        super().__init__()
        self.by_test: dict[str, str] = {}

    def note(self, test: unittest.TestCase, outcome: str, error: Any = None) -> None:
        # A subtest that failed decides for its test.
        detail = "" if error is None else f": {error[0].__name__}: {error[1]}"
        if self.by_test.get(test.id(), "passed") in ("passed", "skipped"):
            self.by_test[test.id()] = outcome + detail.replace(os.getcwd(), "DIR")

    def addSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802
        self.note(test, "passed")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802
        self.note(test, "skipped")

    def addError(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        self.note(test, "error", err)

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        self.note(test, "failed", err)

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:  # noqa: N802
        if err is not None:
            self.note(test, "failed", err)


def put_memory_into_files() -> list[str]:
    """Databases that are asked for in memory are made in files of the current directory."""
    made: list[str] = []
    connect = sqlite3.connect

    def in_a_file(database: Any = ":memory:", *arguments: Any, **named: Any) -> Any:
        if database == ":memory:":
            made.append(f"memory-{len(made)}.db")
            database = made[-1]
        return connect(database, *arguments, **named)

    sqlite3.connect = sqlite3.dbapi2.connect = in_a_file  # type: ignore[assignment]
    return made


def register(extension: str) -> None:
    os.environ["MOBIFS_SQLITE_EXTENSION"] = extension
    import mobifs_sqlite

    mobifs_sqlite.register(default=True)
    connection = sqlite3.connect("probe.db")
    if mobifs_sqlite.status(connection)["class"] != "relaxed":
        raise SystemExit("the databases are not opened through MobiFS")
    connection.close()


def run_tests() -> dict[str, str]:
    """The outcome of each."""
    package = "test.test_sqlite3" if sys.version_info >= (3, 11) else "sqlite3.test"
    try:
        directory = Path(importlib.import_module(package).__path__[0])
    except ModuleNotFoundError:
        sys.exit(NO_TESTS)
    names = sorted(path.stem for path in directory.glob("*.py") if not path.stem.startswith("__"))
    modules = [f"{package}.{name}" for name in names]
    outcomes = Outcomes()
    unittest.defaultTestLoader.loadTestsFromNames(modules).run(outcomes)
    return outcomes.by_test


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--extension")
    parser.add_argument("--files", action="store_true")
    options = parser.parse_args()
    if options.extension:
        register(options.extension)
    made = put_memory_into_files() if options.files else []
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        outcomes = run_tests()
    answer = {"outcomes": outcomes, "files": len(made), "sqlite": sqlite3.sqlite_version}
    sys.__stdout__.write(json.dumps(answer))
    sys.__stdout__.flush()
    # What the tests have left open is theirs.
    os._exit(0)


if __name__ == "__main__":
    main()
