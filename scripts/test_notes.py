#!/usr/bin/env python3
"""Kills the example app, and cuts the power under it, while it takes notes.

The app says the number of a note when it is kept. Killed with SIGKILL it has lost none that it
has said, in either class. After a power cut (of a modelled flash device with an ext4, whose
unflushed writes survive in part, and whatever is in memory is gone) a durable one has lost none;
a relaxed one is as it was at one moment: the first so many notes, with the tags counted for just
these. Both are tried in Python and in Rust. Ends with one line: N passed, M failed, K skipped.

  test_notes.py [--rounds N] [--seed N]
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp

from lib.disk import loop_devices_work, scratch_dir, unmount
from lib.extension import BINDINGS, built_extension
from lib.flash_device import FlashDevice
from lib.process import ROOT, Cleanup, Failed, main_guard, run, say, target_dir

EXAMPLE = ROOT / "examples" / "notes"
FLASH_MEBIBYTES = 256
# A relaxed app's notes reach the device so often, so that a cut finds some there.
AGE_MAX_MS = 100


@dataclass(frozen=True)
class App:
    """The example in one language."""

    language: str
    command: tuple[str | Path, ...]
    environment: dict[str, str] = field(default_factory=dict)


@dataclass
class Taking:
    """An app that takes notes, fed and listened to."""

    process: subprocess.Popen[str]
    said: list[int] = field(default_factory=list)

    def feed(self) -> None:
        assert self.process.stdin is not None
        try:
            for number in range(1, 1_000_000):
                self.process.stdin.write(f"note {number} #all #of{number % 7}\n")
                self.process.stdin.flush()
        except (BrokenPipeError, ValueError):
            pass

    def listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(int(line))

    def wait_for(self, notes: int) -> None:
        deadline = time.monotonic() + 120
        while len(self.said) < notes:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise Failed(f"the app has stopped after {len(self.said)} notes")
            time.sleep(0.001)


class Notes:
    """One database of one app."""

    def __init__(self, app: App, path: Path, arena: Path, is_durable: bool) -> None:
        self.app = app
        self.path = path
        age = "3600000" if is_durable else str(AGE_MAX_MS)
        self.options = ["--arena", arena, "--age-max-ms", age]
        self.options += ["--durable"] if is_durable else []

    def words(self, *command: str) -> list[str]:
        return [str(word) for word in (*self.app.command, *self.options, self.path, *command)]

    def take(self) -> tuple[Taking, list[threading.Thread]]:
        process = subprocess.Popen(
            self.words("add", "-"), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True, env={**os.environ, **self.app.environment},
        )  # fmt: skip
        taking = Taking(process)
        threads = [threading.Thread(target=one) for one in (taking.feed, taking.listen)]
        for thread in threads:
            thread.start()
        return taking, threads

    def kept(self) -> int:
        """The notes that exist, if all are intact; else a failure."""
        output = run(*self.words("check"), env=self.app.environment)
        return int(output.split()[0])

    def interrupted(self, notes: int, interrupt: Callable[[], None]) -> tuple[int, int]:
        """Takes notes until `interrupt` and the app's end; how many it had said before, and
        in all."""
        taking, threads = self.take()
        try:
            taking.wait_for(notes)
            before = taking.said[notes - 1]
            interrupt()
        finally:
            taking.process.kill()
            for thread in threads:
                thread.join()
            taking.process.wait()
            taking.process.stdout.close()
        return before, taking.said[-1]


def must(is_so: bool, what: str) -> None:
    if not is_so:
        raise Failed(what)


def killed(app: App, scratch: Path, is_durable: bool, chance: random.Random) -> str:
    directory = Path(mkdtemp(dir=scratch))
    notes = Notes(app, directory / "notes.db", directory, is_durable)
    total = 0
    for _ in range(3):
        _, said = notes.interrupted(chance.randrange(1, 200), lambda: None)
        kept = notes.kept()
        # One more may be kept, and killed before it was said.
        must(said <= kept <= said + 1, f"{said} notes were said to be kept, {kept} are there")
        total = kept
    return f"killed three times, {total} notes and none lost"


def refused(app: App, scratch: Path) -> str:
    """What is no database, or not there, is reported in one line: users sent tracebacks."""
    directory = Path(mkdtemp(dir=scratch))
    # Nothing else is wrong.
    good = (*app.command, "--arena", directory, directory / "good.db", "add", "a note")
    run(*good, env=app.environment)
    text = directory / "text"
    text.write_text("no database\n" * 1000)
    absent = directory / "absent" / "notes.db"
    fresh = directory / "notes.db"
    attempts = [(text, "tags", b""), (absent, "list", b""), (directory, "check", b"")]
    attempts.append((fresh, "add", b"\xff\xfe no text\n"))
    for path, command, fed in attempts:
        words = [str(word) for word in (*app.command, "--arena", directory, path, command)]
        done = subprocess.run(
            words + (["-"] if fed else []),
            input=fed, capture_output=True, env={**os.environ, **app.environment},
        )  # fmt: skip
        said = done.stderr.decode(errors="replace").strip().splitlines()
        must(done.returncode == 1, f"{path} {command}: exit code {done.returncode}: {said}")
        must(len(said) == 1, f"{path} {command}: {said}")
    shutil.rmtree(directory)
    return f"{len(attempts)} times bad input, one line each"


def cut(
    app: App, scratch: Path, device: FlashDevice, is_durable: bool, chance: random.Random
) -> str:
    arena = Path(mkdtemp(dir=scratch))
    directory = Path(mkdtemp(dir=device.mountpoint))
    notes = Notes(app, directory / "notes.db", arena, is_durable)
    keep = f"random:{chance.randrange(1 << 30)}"
    # Long enough that some of a relaxed app's notes have reached the device.
    delay_seconds = 0 if is_durable else chance.uniform(2, 8) * AGE_MAX_MS / 1e3

    def cut_power() -> None:
        time.sleep(delay_seconds)
        run(device.binary, "flash", "cut", "--keep", keep, device.image)

    before, said = notes.interrupted(chance.randrange(20, 300), cut_power)
    # What was in memory is gone with the power.
    shutil.rmtree(arena)
    arena.mkdir()
    unmount(device.mountpoint)
    run(device.binary, "flash", "power-on", device.image)
    run("mount", device.device, device.mountpoint)
    kept = notes.kept() if notes.path.exists() else 0
    must(not is_durable or kept >= before, f"{before} notes were said to be kept, {kept} are there")
    must(kept <= said + 1, f"{kept} notes are there, and only {said} were taken")
    shutil.rmtree(directory)
    return f"cut after {before} notes or more, {kept} are there"


def apps(scratch: Path) -> list[App]:
    example = target_dir() / "debug" / "examples" / "notes"
    # scripts/test.sh names the programs that it has built, and this one is among them.
    if "MOBIFS_BIN" not in os.environ or not example.exists():
        run("cargo", "build", "--locked", "--package", "mobifs-sqlite", "--example", "notes", cwd=ROOT)
    python = {
        "PYTHONPATH": str(BINDINGS / "python" / "src"),
        "MOBIFS_SQLITE_EXTENSION": str(built_extension()),
    }
    return [
        App("Python", (sys.executable, EXAMPLE / "notes.py"), python),
        App("Rust", (example,)),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=2, help="of cuts, for each app and class")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    passed = failed = skipped = 0
    with Cleanup() as cleanup:
        scratch = scratch_dir(cleanup, "notes")
        reason = loop_devices_work()
        device = None
        if reason is None:
            device = FlashDevice(cleanup, scratch, "emmc51", FLASH_MEBIBYTES, 0)
        else:
            say(f"SKIPPED power cuts: {reason}")
        for app in apps(scratch):
            for is_durable in (False, True):
                trials = [lambda: killed(app, scratch, is_durable, chance)]
                if is_durable:
                    trials.append(lambda: refused(app, scratch))
                if device is not None:
                    trials += [lambda: cut(app, scratch, device, is_durable, chance)] * options.rounds
                else:
                    skipped += options.rounds
                for trial in trials:
                    label = f"{app.language}, {'durable' if is_durable else 'relaxed'}"
                    try:
                        say(f"  {label}: {trial()}")
                        passed += 1
                    except Failed as failure:
                        say(f"  {label}: FAILED, {failure}")
                        failed += 1
    say(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed or not passed + skipped else 0


if __name__ == "__main__":
    main_guard(main)
