#!/usr/bin/env python3
"""How often content is written to the device, by how a program writes it: on ext4 and on a durable mount.

Each case writes content, makes it durable, and ends with everything in its place (`mobifs sync` on the mount).
Counted is what the device got, by the kernel's counter, divided by what the program wrote:

  new          a new file of 32 MiB, one `fsync`;
  append       16 KiB at a time, an `fsync` each;
  overwrite    a file of 32 MiB is overwritten from begin to end, one `fsync`;
  random       4 KiB at random places of it, an `fsync` each;
  replace      a file of 4 MiB is written anew beside the old one and renamed over it;
  WAL          rows of 4 KiB into SQLite in WAL mode, a transaction each.

  study_write_once.py [--only NAME,…]
"""

from __future__ import annotations

import argparse
import os
import random
import sqlite3
from collections.abc import Callable
from pathlib import Path

from lib import machine
from lib.disk import LoopImage, loop_devices_work, scratch_dir
from lib.mount import MobiMount
from lib.process import Cleanup, Failed, main_guard, say
from lib.report import ratio, table

DURABLE = '[[app]]\nmatch = "*"\nclass = "durable"\n'
IMAGE_MEBIBYTES = 1024
LARGE = 32 << 20
PIECE = 1 << 20


def fill(path: Path, size: int, chance: random.Random, flags: int = 0) -> int:
    """Writes a file from its begin, and makes it durable; how many bytes."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | flags, 0o644)
    for _ in range(size // PIECE):
        os.write(handle, chance.randbytes(PIECE))
    os.fsync(handle)
    os.close(handle)
    return size


def pieces(path: Path, places: list[int], size: int, chance: random.Random) -> int:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    for place in places:
        os.pwrite(handle, chance.randbytes(size), place)
        os.fsync(handle)
    os.close(handle)
    return size * len(places)


def new(directory: Path, chance: random.Random) -> int:
    return fill(directory / "new", LARGE, chance)


def append(directory: Path, chance: random.Random) -> int:
    return pieces(directory / "log", [place << 14 for place in range(512)], 1 << 14, chance)


def overwrite(directory: Path, chance: random.Random) -> int:
    return fill(directory / "large", LARGE, chance)


def scattered(directory: Path, chance: random.Random) -> int:
    places = [chance.randrange(LARGE >> 12) << 12 for _ in range(1024)]
    return pieces(directory / "large", places, 4096, chance)


def replace(directory: Path, chance: random.Random) -> int:
    written = 0
    for _ in range(4):
        written += fill(directory / "small.new", 4 << 20, chance)
        os.rename(directory / "small.new", directory / "small")
    return written


def wal(directory: Path, chance: random.Random) -> int:
    database = sqlite3.connect(directory / "wal.db", isolation_level=None)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=FULL")
    database.execute("CREATE TABLE IF NOT EXISTS item (id INTEGER PRIMARY KEY, body BLOB)")
    for _ in range(2000):
        database.execute("INSERT INTO item (body) VALUES (?)", (chance.randbytes(3500),))
    database.close()
    return 2000 * 3500


CASES: dict[str, Callable[[Path, random.Random], int]] = {
    "new": new, "append": append, "overwrite": overwrite, "random": scattered, "replace": replace, "WAL": wal,
}  # fmt: skip


def measure(disk: LoopImage, directory: Path, mount: MobiMount | None, name: str) -> tuple[float, float]:
    """Bytes that the device got until the program went on, and until all was in place, for each that it wrote."""
    chance = random.Random(1)

    def make_durable() -> None:
        if mount is not None:
            mount.sync()
        disk.sync()

    if name in ("overwrite", "random"):
        fill(directory / "large", LARGE, chance)
    make_durable()
    before = disk.bytes_written()
    written = CASES[name](directory, chance)
    durable = disk.bytes_written() - before
    make_durable()
    return durable / written, (disk.bytes_written() - before) / written


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default=",".join(CASES), help="of " + ", ".join(CASES))
    options = parser.parse_args()
    reason = loop_devices_work()
    if reason is not None:
        raise Failed(f"it needs a filesystem of its own: {reason}")
    with Cleanup() as cleanup:
        disk = LoopImage(cleanup, scratch_dir(cleanup, "write-once"), "ext4", IMAGE_MEBIBYTES)
        bare = disk.mountpoint / "bare"
        bare.mkdir()
        mount = MobiMount(cleanup, disk.mountpoint / "store", disk.mountpoint / "mount", DURABLE)
        mount.mount()
        say(machine.one_line(machine.describe(disk.mountpoint)))
        rows = []
        for name in options.only.split(","):
            ext4 = measure(disk, bare, None, name)
            durable = measure(disk, mount.mountpoint, mount, name)
            rows.append([name, *(f"{times:.2f}" for times in (*ext4, *durable)), ratio(durable[1], ext4[1])])
    header = ["bytes for each written", "ext4, durable", "in place", "mount, durable", "in place", "mount/ext4"]
    say("\n" + table(header, rows))


if __name__ == "__main__":
    main_guard(main)
