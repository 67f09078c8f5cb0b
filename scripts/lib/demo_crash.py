"""The power cut of the demo: programs at work, the cut, recovery, and what is left."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from lib.demo_jobs import commit
from lib.inputs import GIT, unpack, unpacked_prefix
from lib.mount import MobiMount
from lib.process import Failed, built_binary, run, say


@dataclass
class Verdict:
    """What the check of one app found."""

    app: str
    check: str
    found: str
    good: bool


@dataclass
class Progress:
    """How far a worker has come; read by the main thread."""

    done: int = 0
    stop: threading.Event = field(default_factory=threading.Event)


def _work(progress: Progress, step: Callable[[int], None]) -> None:
    """Step after step until a request to stop, or until the mount is gone under it."""
    while not progress.stop.is_set():
        try:
            step(progress.done + 1)
        except (Failed, OSError):
            return
        progress.done += 1


class Workload:
    """Several apps at work at the same time, each with a history that can be checked."""

    def __init__(self, root: Path, source: Path, package: Path) -> None:
        self.root = root
        self.package = package
        self.progress = {name: Progress() for name in ("git", "package")}
        self.databases: list[subprocess.Popen[bytes]] = []
        self.threads: list[threading.Thread] = []
        (root / "git").mkdir()
        run("git", "clone", "--quiet", "--no-hardlinks", source, self.repository, env=GIT)
        self.commits_before = self._commits()

    @property
    def repository(self) -> Path:
        return self.root / "git" / "repository"

    def _commits(self) -> int:
        return int(run("git", "rev-list", "--count", "HEAD", cwd=self.repository, env=GIT))

    def database(self, mode: str) -> Path:
        return self.root / f"sqlite-{mode}" / f"{mode}-Insert.db"

    def start(self) -> None:
        for mode in ("delete", "truncate", "wal"):
            self.databases.append(
                subprocess.Popen(
                    [
                        built_binary("mobifs-lab"), "workload",
                        "--dir", self.database(mode).parent,
                        "sqlite", "--journal", mode, "--statement", "insert",
                        "--operations", "1000000",
                    ],
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )  # fmt: skip
            )
        steps = {
            "git": lambda number: commit(self.repository, number),
            "package": lambda number: unpack(self.package, self.root / "package" / str(number)),
        }
        for name, step in steps.items():
            thread = threading.Thread(target=_work, args=(self.progress[name], step))
            thread.start()
            self.threads.append(thread)

    def end(self) -> None:
        for progress in self.progress.values():
            progress.stop.set()
        for process in self.databases:
            process.kill()
            process.wait()
        for thread in self.threads:
            thread.join()

    def rows(self, mode: str) -> int:
        """Rows of a live database, without touching it: SQLite's own reader."""
        # The writer holds its lock most of the time; the reader waits for its turn.
        count = "SELECT count(*) FROM item"
        return int(run("sqlite3", "-readonly", "-cmd", ".timeout 30000", self.database(mode), count))

    def check(self, synced: dict[str, int]) -> list[Verdict]:
        verdicts = [self._check_database(mode, synced) for mode in ("delete", "truncate", "wal")]
        return [*verdicts, self._check_git(synced), self._check_package(synced)]

    def _check_database(self, mode: str, synced: dict[str, int]) -> Verdict:
        app = f"SQLite {mode.upper()}"
        try:
            rows = int(run(built_binary("mobifs-lab"), "check-sqlite", self.database(mode)))
        except Failed as failure:
            return Verdict(app, "integrity_check, rows 1..n", str(failure), False)
        found = f"ok, rows 1..{rows} (synced: {synced[mode]})"
        return Verdict(app, "integrity_check, rows 1..n", found, rows >= synced[mode])

    def _check_git(self, synced: dict[str, int]) -> Verdict:
        check = "git fsck --full --strict, commits 1..n"
        try:
            run("git", "fsck", "--full", "--strict", cwd=self.repository, env=GIT)
            commits = self._commits() - self.commits_before
            log = run("git", "log", f"-{commits}", "--format=%s", cwd=self.repository, env=GIT)
            names = log.split("\n")[:commits] if commits else []
            if names != [f"commit {number}" for number in range(commits, 0, -1)]:
                raise Failed(f"the history is {names}")
        except Failed as failure:
            return Verdict("git", check, str(failure), False)
        good = synced["git"] <= commits <= self.progress["git"].done + 1
        found = f"clean, commits 1..{commits} (synced: {synced['git']})"
        return Verdict("git", check, found, good)

    def _check_package(self, synced: dict[str, int]) -> Verdict:
        check = "files compared, in the order they were written"
        whole, partly = 0, ""
        try:
            last = self.progress["package"].done + 1
            for number in range(1, last + 1):
                there, total = unpacked_prefix(self.package, self.root / "package" / str(number))
                if there == total:
                    if number > whole + 1:
                        raise Failed(f"copy {number} is whole, but an earlier one is not")
                    whole = number
                elif there and number > whole + 1:
                    raise Failed(f"copy {number} is begun, but an earlier one is not whole")
                elif there:
                    partly = f" and {there} of {total} files"
        except Failed as failure:
            return Verdict("package", check, str(failure), False)
        found = f"{whole} whole copies{partly} (synced: {synced['package']})"
        return Verdict("package", check, found, whole >= synced["package"])


def power_cut(mount: MobiMount, source: Path, package: Path, seconds: float) -> list[Verdict]:
    """Programs at work, a sync at half time, the cut, recovery, the checks."""
    # Each program is an app of its own: directories at the top of the mount.
    root = mount.mountpoint
    workload = Workload(root, source, package)
    try:
        workload.start()
        say(f"  SQLite in three modes, git and tar at work for {seconds:.0f} s ...")
        time.sleep(seconds / 2)
        synced = {mode: workload.rows(mode) for mode in ("delete", "truncate", "wal")}
        synced |= {name: progress.done for name, progress in workload.progress.items()}
        mount.sync()
        say("  `mobifs sync`, and on they go ...")
        time.sleep(seconds / 2)
        say("  power cut (`mobifs drill power-cut --yes`)")
        mount.cut_power()
    finally:
        workload.end()
    start = time.monotonic()
    mount.mount()
    say(f"  mounted again and recovered in {time.monotonic() - start:.2f} s; checking ...")
    return workload.check(synced)
