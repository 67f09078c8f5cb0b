#!/usr/bin/env python3
"""What a mount takes of a small machine's memory, by its budget, as a table in Markdown.

    memory_floor.py [--budgets 16,32,64] [--binary FILE]

For each budget: the processes after the mount, and the most that was seen while a program wrote and synced twice the
budget, in small files and one large one. Counted is the proportional set size (PSS), so that what two processes share
is counted once; the arena is memory that outlives a killed daemon, and is in it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from lib.process import target_dir

KIB_PER_MIB = 1024


def processes(binary: Path) -> list[int]:
    """The supervisor and the daemon."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if os.path.samefile(entry / "exe", binary):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def pss_kib(binary: Path) -> tuple[int, int]:
    """All of it, and what of it is shared memory (the arena)."""
    total = shared = 0
    for pid in processes(binary):
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue
        fields = dict(line.split(":", 1) for line in text.splitlines()[1:])
        total += int(fields["Pss"].split()[0])
        shared += int(fields["Pss_Shmem"].split()[0])
    return total, shared


class Watch:
    """The most that was seen."""

    def __init__(self, binary: Path) -> None:
        self.binary, self.most = binary, (0, 0)
        self.end = threading.Event()
        self.thread = threading.Thread(target=self.look)
        self.thread.start()

    def look(self) -> None:
        while not self.end.wait(0.1):
            self.most = max(self.most, pss_kib(self.binary))

    def finish(self) -> tuple[int, int]:
        self.end.set()
        self.thread.join()
        return self.most


def write_twice_the_budget(directory: Path, budget_mib: int) -> None:
    app = directory / "app"
    app.mkdir()
    block = os.urandom(4096)
    for number in range(budget_mib * 256 // 2):
        (app / f"small-{number}").write_bytes(block)
    with open(app / "large", "wb") as large:
        for _ in range(budget_mib * 3 // 2 * 256):
            large.write(block)
            if large.tell() % (1 << 20) == 0:
                large.flush()
                os.fsync(large.fileno())


def measure(binary: Path, budget_mib: int, scratch: Path) -> list[str]:
    store, mountpoint, config = scratch / "store", scratch / "mnt", scratch / "config.toml"
    for directory in (store, mountpoint):
        directory.mkdir()
    config.write_text(f'memory_budget_bytes = "{budget_mib}MiB"\njournal_bytes = "16MiB"\n')
    subprocess.run([binary, "mount", "--config", config, store, mountpoint], check=True)
    try:
        idle = pss_kib(binary)
        watch = Watch(binary)
        try:
            write_twice_the_budget(mountpoint, budget_mib)
        finally:
            most = watch.finish()
        status = json.loads(subprocess.run([binary, "status", "--json", mountpoint], check=True,
                                           stdout=subprocess.PIPE).stdout)  # fmt: skip
    finally:
        subprocess.run([binary, "umount", mountpoint], check=True)
    if status["memory"]["budget_bytes"] != budget_mib << 20:
        raise SystemExit(f"the budget is {status['memory']['budget_bytes']} bytes")
    mib = [f"{kib / KIB_PER_MIB:.1f}" for kib in (*idle, *most)]
    return [f"{budget_mib} MiB", *mib]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--budgets", default="16,32,64")
    parser.add_argument("--binary", type=Path, default=target_dir() / "release/mobifs")
    options = parser.parse_args()
    if processes(options.binary):
        raise SystemExit(f"{options.binary} has mounts already, which would be counted")
    print("| budget | idle, MiB | of it arena | at most, MiB | of it arena |")
    print("| --- | --- | --- | --- | --- |")
    for budget in options.budgets.split(","):
        with tempfile.TemporaryDirectory(dir=os.environ.get("MOBIFS_SCRATCH", "/var/tmp")) as scratch:
            row = measure(options.binary, int(budget), Path(scratch))
        print(f"| {' | '.join(row)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
