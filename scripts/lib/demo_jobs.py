"""The jobs of the demo: what programs do all day, on any directory."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lib.inputs import GIT, unpack
from lib.process import built_binary, run


@dataclass(frozen=True)
class Job:
    """One job: a name for the table and the work itself, in a directory of its own."""

    name: str
    work: Callable[[Path], None]


@dataclass
class Cost:
    """What a job cost on one filesystem."""

    seconds: float = 0.0
    seconds_with_sync: float = 0.0
    bytes_written: int = 0


def sqlite_job(mode: str, transactions: int) -> Job:
    def work(directory: Path) -> None:
        run(
            built_binary("mobifs-lab"), "workload", "--dir", directory, "sqlite",
            "--journal", mode, "--statement", "insert", "--operations", str(transactions),
        )  # fmt: skip

    return Job(f"SQLite {mode.upper()}, {transactions} transactions", work)


def commit(repository: Path, number: int) -> None:
    """One change and one commit, as a person makes them."""
    (repository / "demo.txt").write_text("".join(f"line {line}\n" for line in range(number)))
    (repository / f"demo-{number}.txt").write_text(f"file of commit {number}\n" * 50)
    run("git", "add", "--all", cwd=repository, env=GIT)
    run("git", "commit", "--quiet", "-m", f"commit {number}", cwd=repository, env=GIT)


def git_job(source: Path, commits: int) -> Job:
    def work(directory: Path) -> None:
        repository = directory / "repository"
        run("git", "clone", "--quiet", "--no-hardlinks", source, repository, env=GIT)
        for number in range(1, commits + 1):
            commit(repository, number)

    return Job(f"git clone, {commits} commits", work)


def package_job(packages: list[Path]) -> Job:
    names = ", ".join(path.name.removesuffix(".crate") for path in packages)

    def work(directory: Path) -> None:
        for package in packages:
            unpack(package, directory)

    return Job(f"unpack {names}", work)


def measure(
    job: Job, directory: Path, written: Callable[[], int], sync: Callable[[], None]
) -> Cost:
    """Runs a job; afterwards everything is made durable, so that every side pays in full."""
    sync()
    directory.mkdir(parents=True)
    before = written()
    start = time.monotonic()
    job.work(directory)
    seconds = time.monotonic() - start
    sync()
    return Cost(seconds, time.monotonic() - start, written() - before)
