#!/usr/bin/env python3
"""SQLite's own tests in Tcl, with the VFS as SQLite's default one.

Each file of a suite (`veryquick`, if no other is named) runs in a process and a directory of its
own, once with SQLite's own VFS and once through MobiFS. A file passes if the same tests run in both,
and no test fails through MobiFS that passes without, but for those that
scripts/suites/sqlite-tcl-expected.toml lists with their reasons. Another number of them than listed
fails the file as well. The databases lie in memory: this is about what SQLite answers, not about the disk.

`scripts/setup.sh --sqlite-tcl` builds what runs them, from Debian's source package; where that
is not there, the suite is skipped. Ends with one line: N passed, M failed, K skipped.

  sqlite_tcl.py [--release] [--suite NAME] [--jobs N] [--seconds N] [--outcomes FILE] [PATTERN...]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from tempfile import mkdtemp

from lib.extension import built_extension
from lib.process import ROOT, Cleanup, Failed, main_guard, run, say

PRELUDE = ROOT / "scripts" / "lib" / "sqlite_tcl.tcl"
EXPECTED = ROOT / "scripts" / "suites" / "sqlite-tcl-expected.toml"
SHARED_MEMORY = Path("/dev/shm")
STARTED = re.compile(r"^([A-Za-z0-9_][^\s!]*)\.\.\.", re.MULTILINE)
FAILED = re.compile(r"^!Failures on these tests:(.*)$", re.MULTILINE)
ENDED = re.compile(r"^(\d+) errors out of (\d+) tests", re.MULTILINE)


@dataclass
class Outcome:
    """What one file did."""

    # "finished", or why it did not come to its end.
    end: str
    ran: int = 0
    failed: list[str] = field(default_factory=list)
    output: str = ""


def tools() -> Path:
    """The directory that `scripts/setup.sh --sqlite-tcl` filled."""
    return Path(os.environ.get("MOBIFS_TOOLS", ROOT / ".cache" / "tools")) / "sqlite-tcl"


def files_of(fixture: Path, tests: Path, suite: str, scratch: Path) -> list[Path]:
    directory = Path(mkdtemp(dir=scratch))
    printed = run(fixture, PRELUDE, "list", tests, suite, cwd=directory)
    shutil.rmtree(directory)
    return [Path(line[5:]) for line in printed.splitlines() if line.startswith("file ")]


def outcome(words: list[str | Path], scratch: Path, seconds: int) -> Outcome:
    directory = Path(mkdtemp(dir=scratch))
    process = subprocess.Popen(
        words, cwd=directory, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    try:
        output = process.communicate(timeout=seconds)[0].decode(errors="replace")
        end = ""
    except subprocess.TimeoutExpired:
        # With the processes that the tests have started.
        os.killpg(process.pid, 9)
        output = process.communicate()[0].decode(errors="replace")
        end = f"not finished after {seconds} s"
    shutil.rmtree(directory, ignore_errors=True)
    failures = FAILED.search(output)
    failed = failures[1].split() if failures else []
    count = ENDED.search(output)
    if count is None and not end:
        last = output.strip().splitlines()[-1:] or [""]
        end = f"ended with {process.returncode}: {last[0][:200]}"
    ran = int(count[2]) if count else len(STARTED.findall(output))
    kept = output if failed or end else ""
    return Outcome(end or "finished", ran, failed, kept)


def arenas(directory: Path) -> set[Path]:
    """Arenas of this user's databases that lie on the filesystem of a directory."""
    prefix = f"mobifs-{os.geteuid()}-{directory.stat().st_dev:x}-"
    return set(SHARED_MEMORY.glob(f"{prefix}*"))


def remove_arenas(left: set[Path]) -> None:
    """Removes arenas of processes that the tests have killed, whose databases are gone."""
    there = {
        f"{(Path(directory) / name).stat(follow_symlinks=False).st_ino:x}"
        for directory, _, names in os.walk(SHARED_MEMORY)
        for name in names
    }
    for arena in left:
        if arena.name.split("-")[3].split(".")[0] not in there:
            arena.unlink(missing_ok=True)


@dataclass
class Expectation:
    """Tests of one file that differ, and why."""

    # A name in the list of reasons.
    reason: str
    # So many tests fail, all of them with one of these names (patterns as of a shell).
    fails: int = 0
    tests: list[str] = field(default_factory=list)
    # The file ends early or runs other tests, as a consequence.
    runs_others: bool = False


def difference(plain: Outcome, through: Outcome, known: Expectation | None) -> list[str]:
    """What differs and is not expected, or is expected and does not."""
    known = known or Expectation("")
    new = [name for name in through.failed if name not in plain.failed]
    differences = [
        f"{name} fails" for name in new
        if not any(name == pattern or fnmatchcase(name, pattern) for pattern in known.tests)
    ]  # fmt: skip
    if not differences and len(new) != known.fails:
        differences.append(f"{known.fails} tests were expected to fail, and {len(new)} do")
    is_other = (plain.end, plain.ran) != (through.end, through.ran)
    if is_other and not known.runs_others:
        differences.append(
            f"{plain.ran} tests without MobiFS ({plain.end}), {through.ran} with it ({through.end})"
        )
    return differences


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--release", action="store_true", help="with the release build")
    parser.add_argument("--suite", default="veryquick", help="a suite of permutations.test")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="files at a time")
    parser.add_argument("--seconds", type=int, default=300, help="most for one file")
    parser.add_argument("--outcomes", type=Path, help="write all outcomes there, as JSON")
    parser.add_argument("patterns", nargs="*", metavar="PATTERN", help="only these files")
    options = parser.parse_args()
    fixture, tests = tools() / "testfixture", tools() / "source" / "test"
    if not fixture.exists():
        say("skipped: no testfixture; `scripts/setup.sh --sqlite-tcl` builds it")
        say("0 passed, 0 failed, 1 skipped")
        return 0
    extension = built_extension(*(["--release"] if options.release else []))
    listed = tomllib.loads(EXPECTED.read_text())
    expected = {name: Expectation(**about) for name, about in listed.get("differs", {}).items()}
    unexplained = {about.reason for about in expected.values()} - listed.get("reasons", {}).keys()
    if unexplained:
        raise Failed(f"{EXPECTED.name} has no reason {', '.join(sorted(unexplained))}")
    passed = skipped = ran = 0
    failed: list[str] = []
    outcomes: dict[str, dict[str, dict[str, object]]] = {}
    with Cleanup() as cleanup:
        scratch = Path(mkdtemp(prefix="mobifs-sqlite-tcl-", dir=SHARED_MEMORY))
        before = arenas(scratch)
        cleanup.callback(lambda: remove_arenas(arenas(SHARED_MEMORY) - before))
        cleanup.callback(shutil.rmtree, scratch, ignore_errors=True)
        files = files_of(fixture, tests, options.suite, scratch)
        if not files:
            raise Failed(f"there is no suite {options.suite}")
        if options.patterns:
            files = [
                file for file in files
                if any(fnmatchcase(file.name, pattern) for pattern in options.patterns)
            ]  # fmt: skip

        def both(file: Path) -> tuple[Outcome, Outcome]:
            words: list[str | Path] = [fixture, PRELUDE, "run", file, options.suite]
            plain = outcome(words, scratch, options.seconds)
            return plain, outcome([*words, extension], scratch, options.seconds)

        with ThreadPoolExecutor(options.jobs) as pool:
            for file, (plain, through) in zip(files, pool.map(both, files), strict=True):
                if plain.ran == 0:
                    # For another system, or not for root.
                    skipped += 1
                    continue
                outcomes[file.name] = {"plain": asdict(plain), "through": asdict(through)}
                ran += through.ran
                differences = difference(plain, through, expected.get(file.name))
                if not differences:
                    passed += 1
                    continue
                failed.append(file.name)
                say(f"    {file.name}")
                for line in differences[:20]:
                    say(f"      {line}")
        if options.outcomes:
            options.outcomes.write_text(json.dumps(outcomes, indent=1))
    say(f"    {ran:,} tests of {len(outcomes)} files of {options.suite}; the files that differ "
        f"unexpectedly: {' '.join(failed) or 'none'}")  # fmt: skip
    say(f"{passed} passed, {len(failed)} failed, {skipped} skipped")
    return 1 if failed or not passed + skipped else 0


if __name__ == "__main__":
    main_guard(main)
