#!/usr/bin/env python3
"""What the daemon of native mode itself costs: its CPU time and wake-ups, at rest and under load.

A new filesystem in an image on the disk (loop device with direct I/O) is steered with the default
policy. CPU time is that which the kernel's scheduler counts for the process with all its threads
(its CPU clock), so it does not depend on what else runs on the machine; how much of the load's work
is done meanwhile does. All of it runs in a mount namespace with a runtime directory of its own, because
mounts and unmounts of other programs, and other daemons that begin, wake the daemon. On btrfs a history is kept as well, with a snapshot every ten seconds.

The exit status is 1 if the daemon takes more than the targets: 0.2 % of a CPU at rest, 1 % under load.

  bench_native_cost.py [--seconds N] [--only WORD]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from lib import machine
from lib.disk import LoopImage, loop_devices_work, scratch_dir
from lib.process import Cleanup, Failed, built_binary, find_tool, main_guard, run, say
from lib.report import human_count, table

IMAGE_MEBIBYTES = 1024
OPTIONS = {"ext4": "data=journal", "btrfs": "defaults"}
HISTORY = "[history]\nkeep_count = 48\ninterval_min_ms = 10000\n"
RUNTIME = Path("/run/mobifs")
REST_MAX, LOAD_MAX = 0.2, 1.0

# Each works in its directory until it is ended, and prints after every round how much it has done.
PAGES = """
import os, random, sys
files = [os.open(f"pages{n}", os.O_RDWR | os.O_CREAT) for n in range(8)]
page = os.urandom(4096)
done = 0
while True:
    for _ in range(4096):
        os.pwrite(random.choice(files), page, 4096 * random.randrange(1024))
    done += 4096
    print(done, flush=True)
"""
INSERTS = """
import sqlite3, sys
base = sqlite3.connect("base.db", isolation_level=None)
base.execute("PRAGMA journal_mode=WAL")
base.execute("PRAGMA synchronous=FULL")
base.execute("CREATE TABLE lines (number INTEGER PRIMARY KEY, text TEXT)")
done = 0
while True:
    for _ in range(256):
        base.execute("INSERT INTO lines (text) VALUES (?)", ("x" * 100,))
    done += 256
    print(done, flush=True)
"""
FILES = """
import os
done = 0
while True:
    for n in range(256):
        with open(f"file{n}", "w") as file:
            file.write("words" * 100)
    for n in range(256):
        os.unlink(f"file{n}")
    done += 256
    print(done, flush=True)
"""
SLOW = """
import time
done = 0
while True:
    with open("log", "a") as log:
        log.write("a line\\n")
    done += 1
    print(done, flush=True)
    time.sleep(0.1)
"""


@dataclass
class Load:
    """What programs do meanwhile; `program` none: nothing."""

    name: str
    unit: str = ""
    program: str | None = None

    def limit(self) -> float:
        return REST_MAX if self.program is None else LOAD_MAX


LOADS = [
    Load("at rest"),
    Load("a line every 100 ms", "lines", SLOW),
    Load("pages of eight files", "pages", PAGES),
    Load("SQLite inserts, WAL", "inserts", INSERTS),
    Load("files made and removed", "files", FILES),
]


def cpu_seconds(pid: int) -> float:
    """Of all threads of a process, those that have ended too."""
    # CPUCLOCK_SCHED of a process, as clock_getcpuclockid(3) makes it.
    return time.clock_gettime((~pid << 3) | 2)


def wake_ups(pid: int) -> int:
    count = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        for line in status.read_text().splitlines():
            if line.startswith("voluntary_ctxt_switches:"):
                count += int(line.split()[1])
    return count


def last_number(output: Path) -> int:
    lines = output.read_text().split()
    return int(lines[-1]) if lines else 0


def measure(load: Load, pid: int, directory: Path, seconds: float) -> tuple[list[str], float]:
    """A row of the table, and the daemon's share of a CPU in percent."""
    directory.mkdir()
    output = directory.parent.parent / "output"
    worker = None
    if load.program is not None:
        words = [built_binary("mobifs"), "run", "--", sys.executable, "-c", load.program]
        with output.open("w") as out:
            # On btrfs it warns that calls wait.
            worker = subprocess.Popen(
                words,
                cwd=directory,
                stdout=out,
                stderr=subprocess.DEVNULL,
                stdin=subprocess.DEVNULL,
            )
        time.sleep(2)
    else:
        # What was written before is committed and forgotten.
        time.sleep(10)
    done = last_number(output) if worker else 0
    began, spent, woken = time.monotonic(), cpu_seconds(pid), wake_ups(pid)
    try:
        time.sleep(seconds)
        took = time.monotonic() - began
        spent, woken = cpu_seconds(pid) - spent, wake_ups(pid) - woken
        if worker and worker.poll() is not None:
            raise Failed(f"the load `{load.name}` has ended with {worker.returncode}")
    finally:
        if worker:
            worker.terminate()
            worker.wait()
    rate = (last_number(output) - done) / took if worker else 0
    work = f"{human_count(rate)} {load.unit}/s" if worker else "nothing"
    percent = 100 * spent / took
    return [load.name, work, f"{spent * 1e3:.1f} ms", f"{percent:.4f} %", str(woken)], percent


def costs(kind: str, loads: list[Load], seconds: float) -> bool:
    """Whether the daemon keeps to its targets."""
    with Cleanup() as cleanup:
        scratch = scratch_dir(cleanup, "native-cost")
        image = LoopImage(
            cleanup, scratch, kind, IMAGE_MEBIBYTES, allocated=True, options=OPTIONS[kind]
        )
        config = scratch / "steer.toml"
        config.write_text(HISTORY if kind == "btrfs" else "")
        binary = built_binary("mobifs")
        run(binary, "steer", "--config", config, image.mountpoint)
        cleanup.callback(run, binary, "steer", "--stop", image.mountpoint)
        status = json.loads(run(binary, "status", "--json", image.mountpoint))
        say(f"\n{kind}: {machine.one_line(machine.describe(image.mountpoint))}, {seconds:.0f} s each")
        rows, is_met = [], True
        for number, load in enumerate(loads):
            directory = image.mountpoint / f"load{number}"
            row, percent = measure(load, status["daemon_pid"], directory, seconds)
            is_met &= percent <= load.limit()
            rows.append([*row, f"{load.limit()} %"])
        say(table(["", "done", "CPU of the daemon", "of a CPU", "wake-ups", "target"], rows))
    return is_met


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--seconds", type=float, default=60, help="for each load (default: 60)")
    parser.add_argument("--only", default="", help="filesystems whose name has this word")
    arguments = parser.parse_args()
    obstacle = loop_devices_work()
    if obstacle:
        raise Failed(f"cannot measure here: {obstacle}")
    if "MOBIFS_COST_INSIDE" not in os.environ:
        words = ["unshare", "--mount", "--propagation", "private", sys.executable, *sys.argv]
        os.execvpe(words[0], words, {**os.environ, "MOBIFS_COST_INSIDE": "1"})
    RUNTIME.mkdir(exist_ok=True)
    run("mount", "-t", "tmpfs", "tmpfs", RUNTIME)
    kinds = [kind for kind in OPTIONS if arguments.only in kind and find_tool(f"mkfs.{kind}")]
    met = [costs(kind, LOADS, arguments.seconds) for kind in kinds]
    return 0 if all(met) else 1


if __name__ == "__main__":
    main_guard(main)
