#!/usr/bin/env python3
"""SQLite through MobiFS does what it does through its own VFS.

Two suites, each run through both and compared outcome by outcome:

 - CPython's own tests of its module sqlite3, as they are, and once more with the databases that
   they keep in memory put into files;
 - the SQL logic tests of SQLite, as an archive of them on Maven Central has them, in all journal
   modes in turn, with a cache of five pages; in the end the database files are compared byte by
   byte. Fetched once with mvn; `MOBIFS_SQLLOGICTEST` names an archive that is there.

The databases lie in memory: this is about what SQLite answers, not about the disk. Ends with one
line: N passed, M failed, K skipped; there a file of SQL logic tests counts as one.

  sqlite_conformance.py [--short] [--release] [--statements N] [--only WORD]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from tempfile import mkdtemp

from lib import sqllogictest
from lib.extension import BINDINGS, built_extension
from lib.process import ROOT, Cleanup, Failed, main_guard, run, say
from lib.sqlite_tests_child import NO_TESTS

CHILD = ROOT / "scripts" / "lib" / "sqlite_tests_child.py"
EXPECTED = ROOT / "scripts" / "suites" / "sqlite-expected.toml"
CORPUS = "net.hydromatic:sql-logic-test:0.3"
# A short run takes this many statements of these.
SHORT_STATEMENTS = 300
SHORT = ("test/evidence/", "test/select1.test", "test/index/delete/10/")


class Skipped(Exception):
    """What is missing here."""


def outcomes(scratch: Path, *arguments: str | Path) -> dict[str, str]:
    """Outcomes of CPython's tests, each run in a directory of its own."""
    directory = Path(mkdtemp(dir=scratch))
    words = [sys.executable, CHILD, *arguments]
    done = subprocess.run(words, cwd=directory, capture_output=True, text=True)
    shutil.rmtree(directory)
    if done.returncode == NO_TESTS:
        raise Skipped("this Python comes without its tests")
    if done.returncode != 0:
        raise Failed(f"the tests ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout)["outcomes"]


def cpython(extension: Path, scratch: Path, *arguments: str) -> tuple[int, int, int]:
    """Passed, failed, skipped: a test passes if its outcome is the same through both."""
    expected = tomllib.loads(EXPECTED.read_text())["differs"]
    plain = outcomes(scratch, *arguments)
    through = outcomes(scratch, *arguments, "--extension", extension)
    failed = 0
    for test in sorted(plain.keys() | through.keys()):
        if plain.get(test) == through.get(test):
            continue
        known = expected.get(test, {})
        if known.get("outcome") == through.get(test):
            say(f"    {test} differs as expected: {known['why']}")
            continue
        failed += 1
        say(f"    {test}: {plain.get(test)} without MobiFS, but {through.get(test)}")
    # What Python itself skips here has not been compared.
    skipped = sum(plain[test] == through.get(test) == "skipped" for test in plain)
    return len(plain) - failed - skipped, failed, skipped


def corpus(may_fetch: bool) -> Path:
    """The archive of SQL logic tests."""
    chosen = os.environ.get("MOBIFS_SQLLOGICTEST")
    if chosen:
        return Path(chosen)
    tools = Path(os.environ.get("MOBIFS_TOOLS", ROOT / ".cache" / "tools")) / "sqllogictest"
    _, name, version = CORPUS.split(":")
    archive = tools / f"{name}-{version}.jar"
    if archive.exists():
        return archive
    if not may_fetch:
        raise Skipped("the SQL logic tests are not there; `make sqlite-conformance` fetches them")
    if shutil.which("mvn") is None:
        raise Skipped(f"no mvn to fetch {CORPUS} with; MOBIFS_SQLLOGICTEST may name the archive")
    run("mvn", "--quiet", "dependency:copy", f"-Dartifact={CORPUS}", f"-DoutputDirectory={tools}")
    return archive


def register(extension: Path) -> None:
    os.environ["MOBIFS_SQLITE_EXTENSION"] = str(extension)
    sys.path.insert(0, str(BINDINGS / "python" / "src"))
    import mobifs_sqlite

    mobifs_sqlite.register()


def sql_logic(extension: Path, scratch: Path, options: argparse.Namespace) -> tuple[int, int, int]:
    archive = corpus(may_fetch=not options.short)
    register(extension)
    most = SHORT_STATEMENTS if options.short else options.statements
    total = sqllogictest.Compared()
    files = failed = 0
    for name, text in sqllogictest.tests(archive):
        if options.short and not name.startswith(SHORT):
            continue
        if options.only and options.only not in name:
            continue
        mode = sqllogictest.JOURNAL_MODES[files % len(sqllogictest.JOURNAL_MODES)]
        compared = sqllogictest.compare(name, text, scratch, mode, most)
        files += 1
        failed += bool(compared.differences)
        total.add(compared)
        for difference in compared.differences[:3]:
            say(f"    {difference}")
        if files % 50 == 0:
            say(f"    {files} files, {total.statements:,} statements, {failed} files differ")
    say(f"    {total.statements:,} statements of {files} files, {total.refused:,} of them refused "
        f"by SQLite the same way; {len(total.differences)} differences")  # fmt: skip
    return files - failed, failed, 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--short", action="store_true", help="the part that `make test` runs")
    parser.add_argument("--release", action="store_true", help="with the release build")
    parser.add_argument("--statements", type=int, help="at most so many of each file")
    parser.add_argument("--only", metavar="WORD", help="SQL logic tests whose name has WORD")
    options = parser.parse_args()
    extension = built_extension(*(["--release"] if options.release else []))
    passed = failed = skipped = 0
    with Cleanup() as cleanup:
        scratch = Path(mkdtemp(prefix="mobifs-conformance-", dir="/dev/shm"))
        cleanup.callback(shutil.rmtree, scratch, ignore_errors=True)
        suites = {
            "CPython's tests": lambda: cpython(extension, scratch),
            "CPython's tests, in files": lambda: cpython(extension, scratch, "--files"),
            "SQL logic tests": lambda: sql_logic(extension, scratch, options),
        }
        for name, suite in suites.items():
            say(f"  {name}")
            try:
                done = suite()
            except Skipped as reason:
                skipped += 1
                say(f"    SKIPPED {name}: {reason}")
                continue
            passed, failed, skipped = passed + done[0], failed + done[1], skipped + done[2]
            say(f"    {done[0]} the same, {done[1]} not, {done[2]} skipped")
    say(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed or not passed + skipped else 0


if __name__ == "__main__":
    main_guard(main)
