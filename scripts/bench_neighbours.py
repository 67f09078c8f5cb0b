#!/usr/bin/env python3
"""How long small operations of one app take while another one writes as fast as it can.

The small app works without a pause: it appends 4 KiB and calls fsync, replaces a file (create,
write, rename), and inserts a row into a SQLite database, in turns. The large one

  nothing     does not run: what the small one takes by itself;
  append      writes new data to files of 64 MiB, one after the other;
  overwrite   overwrites pages of a file of 64 MiB at random;
  create      creates files of 4 KiB and unlinks them, a thousand at a time.

Side by side on ext4 (an image of its own on a loop device) and on mounts over other such images,
with the default memory budget and with one of 64 MiB; in turns, so that what else the machine does
hits all. Quantiles are of each run; shown are their medians over the rounds.

`durable` has the small app durable, as on ext4: there its fsync waits for the device.
`bindfs` is a FUSE filesystem that only hands each call on to the same ext4: what a request to any
server in user space costs where the CPUs are busy. It is left out where bindfs is not installed.

  bench_neighbours.py [--seconds N] [--rounds N] [--only LOAD[,LOAD...]] [--places PLACE[,PLACE...]]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import sqlite3
import statistics
import time
from collections.abc import Callable
from multiprocessing.synchronize import Event
from pathlib import Path

from lib import machine
from lib.disk import LoopImage, loop_devices_work, scratch_dir
from lib.mount import MobiMount
from lib.process import ROOT, Cleanup, Failed, find_tool, main_guard, run, say
from lib.report import human_count, table

PAGE = 4096
FILE_BYTES = 64 << 20
FILES = 4
CREATED = 1000
# More than what waits in memory at most: no writer is to wait for room on the disk.
IMAGE_MEBIBYTES = 3072
WARM_UP_SECONDS = 1.0
EXT4 = "ext4"
BINDFS = "bindfs"
# The daemon's configuration, where there is a mount.
PLACES = {
    EXT4: "",
    BINDFS: "",
    "default": "",
    "small": 'memory_budget_bytes = "64MiB"\n',
    "durable": '[[app]]\nmatch = "small"\nclass = "durable"\n',
}
OPERATIONS = ("append + fsync", "replace", "SQLite insert")
QUANTILES = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999, "max": 1.0}
# Seconds of every single operation, by its name.
Times = dict[str, list[float]]


def append(directory: Path, over: Event) -> int:
    chunk, written, number = os.urandom(1 << 20), 0, 0
    while not over.is_set():
        # One of the files that were there before: the disk must not fill.
        with open(directory / f"new-{number % FILES}", "wb", buffering=0) as file:
            for _ in range(FILE_BYTES // len(chunk)):
                if over.is_set():
                    break
                written += file.write(chunk)
        number += 1
    return written


def overwrite(directory: Path, over: Event) -> int:
    # Other content each time: what has not changed is not committed.
    pages, written = [os.urandom(PAGE) for _ in range(61)], 0
    seed = 1
    with open(directory / "pages", "wb", buffering=0) as file:
        file.truncate(FILE_BYTES)
        while not over.is_set():
            seed = seed * 6364136223846793005 + 1442695040888963407 & (1 << 64) - 1
            page = pages[written // PAGE % len(pages)]
            written += os.pwrite(file.fileno(), page, (seed >> 33) * PAGE % FILE_BYTES)
    return written


def create(directory: Path, over: Event) -> int:
    page, written = os.urandom(PAGE), 0
    while not over.is_set():
        for number in range(CREATED):
            with open(directory / f"file-{number}", "wb", buffering=0) as file:
                written += file.write(page)
        for number in range(CREATED):
            os.unlink(directory / f"file-{number}")
    return written


LOADS: dict[str, Callable[[Path, Event], int] | None] = {
    "nothing": None,
    "append": append,
    "overwrite": overwrite,
    "create": create,
}


def run_load(name: str, directory: Path, over: Event, written: multiprocessing.Queue) -> None:
    """The large app."""
    written.put(LOADS[name](directory, over))


def small_operations(directory: Path, ends: float) -> Times:
    """The small app, until that moment."""
    times: Times = {name: [] for name in OPERATIONS}
    page = os.urandom(PAGE)
    log = os.open(directory / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    database = sqlite3.connect(directory / "rows.db", isolation_level=None, timeout=60)
    database.execute("CREATE TABLE rows (content BLOB)")

    def append_and_sync() -> None:
        os.write(log, page)
        os.fsync(log)

    def replace() -> None:
        with open(directory / "settings.new", "wb", buffering=0) as file:
            file.write(page)
        os.rename(directory / "settings.new", directory / "settings")

    def insert() -> None:
        database.execute("INSERT INTO rows VALUES (?)", (page[:100],))

    warm = time.monotonic() + WARM_UP_SECONDS
    while (now := time.monotonic()) < ends:
        for name, operation in zip(OPERATIONS, (append_and_sync, replace, insert), strict=True):
            started = time.perf_counter()
            operation()
            if now >= warm:
                times[name].append(time.perf_counter() - started)
    database.close()
    os.close(log)
    return times


def work(directory: Path, load: str, seconds: float) -> tuple[Times, float]:
    """What each small operation took, and the large app's MiB/s."""
    small, large = directory / "small", directory / "large"
    small.mkdir()
    large.mkdir()
    over, written = multiprocessing.Event(), multiprocessing.Queue()
    writer = None
    started = time.monotonic()
    if load != "nothing":
        writer = multiprocessing.Process(target=run_load, args=(load, large, over, written))
        writer.start()
    try:
        times = small_operations(small, started + seconds)
    finally:
        over.set()
    if writer is None:
        return times, 0.0
    mebibytes = written.get() / (1 << 20)
    writer.join()
    return times, mebibytes / (time.monotonic() - started)


def one_run(place: str, image: LoopImage, load: str, seconds: float) -> tuple[Times, float]:
    """In a new tree on this place's image."""
    tree = image.mountpoint / "tree"
    tree.mkdir()
    try:
        if place == EXT4:
            return work(tree, load, seconds)
        with Cleanup() as cleanup:
            mountpoint = image.mountpoint.with_suffix(".mount")
            if place == BINDFS:
                mountpoint.mkdir(exist_ok=True)
                run(BINDFS, "--multithreaded", tree, mountpoint)
                cleanup.callback(run, "umount", mountpoint)
                return work(mountpoint, load, seconds)
            mount = MobiMount(cleanup, tree, mountpoint, PLACES[place])
            mount.mount()
            result = work(mount.mountpoint, load, seconds)
            mount.umount()
            return result
    finally:
        shutil.rmtree(tree)
        image.sync()


def quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def show(load: str, runs: dict[str, list[tuple[Times, float]]]) -> str:
    rows = []
    for operation in OPERATIONS:
        for place, of_place in runs.items():
            row = [operation, place]
            for share in QUANTILES.values():
                values = [quantile(times[operation], share) for times, _ in of_place]
                row.append(f"{statistics.median(values) * 1000:.2f}")
            count = statistics.median(len(times[operation]) for times, _ in of_place)
            speed = statistics.median(speed for _, speed in of_place)
            rows.append([*row, human_count(count), f"{speed:.0f}"])
    return table([f"ms beside: {load}", "on", *QUANTILES, "operations", "load MiB/s"], rows)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=15, help="of each run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default=",".join(LOADS), help="of " + ", ".join(LOADS))
    parser.add_argument("--places", default=",".join(PLACES), help="of " + ", ".join(PLACES))
    return parser.parse_args()


def measure(loads: list[str], places: list[str], options: argparse.Namespace) -> dict:
    """All runs of each load at each place."""
    every = {}
    with Cleanup() as cleanup:
        scratch = scratch_dir(cleanup, "neighbours")
        images = {
            place: LoopImage(cleanup, scratch, "ext4", IMAGE_MEBIBYTES, allocated=True)
            for place in places
        }
        for load in loads:
            runs: dict[str, list[tuple[Times, float]]] = {place: [] for place in places}
            for number in range(options.rounds):
                turn = number % len(places)
                for place in places[turn:] + places[:turn]:
                    runs[place].append(one_run(place, images[place], load, options.seconds))
            say(show(load, runs))
            every[load] = runs
    return every


def main() -> None:
    options = arguments()
    reason = loop_devices_work()
    if reason is not None:
        raise Failed(f"each run has a filesystem of its own: {reason}")
    loads, places = options.only.split(","), options.places.split(",")
    if not set(loads) <= set(LOADS) or not set(places) <= set(PLACES):
        raise Failed("there is no such load or place; see --help")
    if BINDFS in places and find_tool(BINDFS) is None:
        say("bindfs is not installed, and left out")
        places.remove(BINDFS)
    print(machine.one_line(machine.describe(ROOT)))
    every = measure(loads, places, options)
    out = ROOT / "target" / "bench-neighbours.json"
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps(every))
    say(f"every single time: {out}")


if __name__ == "__main__":
    main_guard(main)
