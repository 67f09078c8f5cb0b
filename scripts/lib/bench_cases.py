"""What `make bench` measures and how each number is to be read."""

from __future__ import annotations

import json
import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lib.process import Failed, built_binary, is_root

JOURNALS = ("delete", "truncate", "persist", "wal")
STATEMENTS = ("insert", "update", "delete")


@dataclass(frozen=True)
class Case:
    """One workload: its arguments, the number taken from it, whether more is better."""

    name: str
    arguments: tuple[str, ...]
    field: str = "per_second"
    unit: str = "/s"
    more_is_better: bool = True
    # Work that prepares the directory and is not measured.
    before: tuple[str, ...] = ()
    # Start with nothing cached, as after a boot (root only; skipped otherwise).
    cold: bool = False
    # A number derived from `bytes` and `seconds`.
    bandwidth: bool = False
    # A program in place of a workload: its number is how often a second it could run.
    command: tuple[str, ...] = ()


@dataclass(frozen=True)
class Scale:
    """How long and how large; `--quick` is for seeing that everything runs."""

    seconds: float
    mebibytes: int
    files: int
    walk_files: int
    tree_files: int
    rounds: int


FULL = Scale(seconds=3, mebibytes=256, files=5000, walk_files=100_000, tree_files=1_000_000,
             rounds=5)  # fmt: skip
QUICK = Scale(seconds=0.4, mebibytes=32, files=500, walk_files=5_000, tree_files=20_000, rounds=1)


def cases(scale: Scale) -> list[Case]:
    until = ("--seconds", str(scale.seconds))
    size = ("--mebibytes", str(scale.mebibytes))
    found = [
        Case(f"SQLite {journal.upper()} {statement}",
             ("sqlite", "--journal", journal, "--statement", statement, *until))
        for journal in JOURNALS
        for statement in STATEMENTS
    ]  # fmt: skip
    found += [
        Case("4 KiB random write", ("random-write", *until)),
        Case("4 KiB random write + fdatasync", ("random-write", "--fsync", *until)),
        Case("sequential write", ("sequential-write", *size), unit="MB/s", bandwidth=True),
        Case("sequential write + fsync", ("sequential-write", "--fsync", *size), unit="MB/s",
             bandwidth=True),
        Case("sequential read, warm", ("sequential-read",), unit="MB/s", bandwidth=True,
             before=("sequential-write", "--fsync", *size)),
        Case("sequential read, cold", ("sequential-read",), unit="MB/s", bandwidth=True,
             before=("sequential-write", "--fsync", *size), cold=True),
        Case("create + unlink, 4 KiB files", ("create-unlink", "--files", str(scale.files))),
        Case(f"walk of {scale.walk_files:,} files", ("walk",),
             before=("make-tree", "--files", str(scale.walk_files))),
        Case(f"walk of {scale.walk_files:,} files, cold", ("walk",), cold=True,
             before=("make-tree", "--files", str(scale.walk_files))),
    ]  # fmt: skip
    return found


FLASH = Scale(seconds=3, mebibytes=32, files=500, walk_files=5_000, tree_files=0, rounds=3)


def prepare(
    case: Case, directory: Path, env: dict[str, str], prefix: tuple[str, ...] = ()
) -> bool:
    """Makes what the case works on; False if the case cannot run here."""
    if case.cold and not is_root():
        return False
    if case.before:
        workload(case.before, directory, env, prefix)
    return True


def measure(
    case: Case, directory: Path, env: dict[str, str], prefix: tuple[str, ...] = ()
) -> tuple[float, float]:
    """Runs the case once in a directory prepared for it: its number, and how many
    operations that were (0 if it does not count any)."""
    if case.cold:
        subprocess.run(["sync"], check=True)
        Path("/proc/sys/vm/drop_caches").write_text("3")
    if case.command:
        directory.mkdir(exist_ok=True)
        start = time.monotonic()
        program([*prefix, *case.command], directory, env)
        return 1 / (time.monotonic() - start), 1
    measured = workload(case.arguments, directory, env, prefix)
    operations = float(measured.get("operations", 0))
    if case.bandwidth:
        return float(measured["bytes"]) / float(measured["seconds"]) / 1e6, operations
    return float(measured[case.field]), operations


def workload(
    arguments: tuple[str, ...],
    directory: Path,
    env: dict[str, str],
    prefix: tuple[str, ...] = (),
) -> dict[str, float]:
    command = [built_binary("mobifs-lab"), "workload", "--dir", directory, *arguments]
    return json.loads(program([*prefix, *command], None, env))


def program(words: list[Any], directory: Path | None, env: dict[str, str]) -> str:
    """Runs it in a directory; what it has printed."""
    done = subprocess.run(
        words,
        capture_output=True,
        text=True,
        cwd=directory,
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
    )
    if done.returncode != 0:
        raise Failed(f"{' '.join(map(str, words))}: {done.stderr.strip()}")
    return done.stdout
