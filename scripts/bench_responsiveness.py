#!/usr/bin/env python3
"""What a program in the foreground feels of commits in the background, on a modelled device.

A user works with a program: operations of half a second (reads of 4 KiB that are in no cache, and
two small writes with fsync each), pauses of 0.8 to 8 s between them. Meanwhile a program in the
background overwrites pages of a file at a steady rate. Measured is how long each read and each
write with its fsync takes, on

  ext4                on the device itself;
  MobiFS, naive       whatever a policy has closed is committed at once;
  MobiFS, scheduled   each operation is told by `mobifs touch`, and commits wait for pauses.

Each run has an ext4 of its own on a new device, and the same operations at the same times.

  bench_responsiveness.py [--preset PRESET] [--seconds N] [--rounds N] [--rate MIB] [--seed N]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from lib import machine
from lib.disk import loop_devices_work, scratch_dir
from lib.flash_device import FlashDevice, Spent
from lib.mount import MobiMount
from lib.process import ROOT, Cleanup, Failed, main_guard, run, say
from lib.report import table

PAGE = 4096
DEVICE_MEBIBYTES = 2048
READ_MEBIBYTES = 256
OVERWRITTEN_MEBIBYTES = 64
READS, SAVES = 24, 2
THINK_SECONDS = 0.02
PAUSE_SECONDS = (0.8, 8.0)
TICK_SECONDS = 0.05
EXT4, NAIVE, SCHEDULED = "ext4", "MobiFS, naive", "MobiFS, scheduled"
NOBODY = 'user_events = "none"\n'


@dataclass
class Felt:
    """How long what a user waits for took, in seconds."""

    # What the device had done when the session began.
    before: Spent
    reads: list[float] = field(default_factory=list)
    saves: list[float] = field(default_factory=list)

    def extend(self, other: Felt) -> None:
        self.reads += other.reads
        self.saves += other.saves


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", default="emmc51")
    parser.add_argument("--seconds", type=float, default=150, help="of each run")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--rate", type=float, default=2, help="MiB/s that are overwritten")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def fill(path: Path, mebibytes: int) -> None:
    with open(path, "wb") as file:
        for _ in range(mebibytes):
            file.write(os.urandom(1 << 20))
        os.fsync(file.fileno())


def overwrite(path: Path, rate: float, seed: int, ends: float) -> None:
    """The program in the background."""
    dice, page = random.Random(seed), os.urandom(PAGE)
    pages, owed = OVERWRITTEN_MEBIBYTES * 256, 0.0
    file = os.open(path, os.O_WRONLY)
    while time.monotonic() < ends:
        owed += rate * 256 * TICK_SECONDS
        while owed >= 1:
            os.pwrite(file, page, dice.randrange(pages) * PAGE)
            owed -= 1
        time.sleep(TICK_SECONDS)
    os.close(file)


def forget(path: Path) -> None:
    """Takes a file out of the page cache: a phone has long forgotten what an app last read."""
    file = os.open(path, os.O_RDONLY)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(file)


def operation(large: int, save: Path, dice: random.Random, felt: Felt) -> None:
    """What a user waits for: the program reads what it has not read before, and saves."""
    saves = set(dice.sample(range(READS), SAVES))
    for number in range(READS):
        offset = dice.randrange(READ_MEBIBYTES * 256) * PAGE
        started = time.perf_counter()
        os.pread(large, PAGE, offset)
        felt.reads.append(time.perf_counter() - started)
        if number in saves:
            started = time.perf_counter()
            with open(save, "wb") as file:
                file.write(bytes(16384))
                file.flush()
                os.fsync(file.fileno())
            felt.saves.append(time.perf_counter() - started)
        time.sleep(THINK_SECONDS)


@dataclass
class Place:
    """Where the user works."""

    directory: Path
    # Where the same files lie below; the same for a bare filesystem.
    below: Path
    # Brings everything there.
    settle: Callable[[], object]
    device: FlashDevice
    # Tells that the user does something.
    touch: Callable[[], object] = lambda: None


def work(place: Place, options: argparse.Namespace) -> Felt:
    """The user's session."""
    directory = place.directory
    front, back = directory / "front", directory / "back"
    front.mkdir()
    back.mkdir()
    fill(front / "large", READ_MEBIBYTES)
    fill(back / "pages", OVERWRITTEN_MEBIBYTES)
    place.settle()
    dice, felt = random.Random(options.seed), Felt(before=place.device.spent())
    ends = time.monotonic() + options.seconds
    writer = multiprocessing.Process(
        target=overwrite, args=(back / "pages", options.rate, options.seed, ends)
    )
    large = os.open(front / "large", os.O_RDONLY)
    os.posix_fadvise(large, 0, 0, os.POSIX_FADV_RANDOM)
    writer.start()
    try:
        while time.monotonic() < ends:
            for side in {directory, place.below}:
                forget(side / "front" / "large")
            place.touch()
            operation(large, front / "saved", dice, felt)
            low, high = PAUSE_SECONDS
            time.sleep(low * (high / low) ** dice.random())
    finally:
        writer.join()
        os.close(large)
    return felt


def on_mount(
    cleanup: Cleanup,
    device: FlashDevice,
    mountpoint: Path,
    name: str,
    options: argparse.Namespace,
) -> Felt:
    mount = MobiMount(cleanup, device.mountpoint / "store", mountpoint, NOBODY)
    mount.mount()
    place = Place(mountpoint, mount.store, mount.sync, device)
    if name == SCHEDULED:
        place.touch = lambda: run(mount.binary, "touch", mountpoint)
    felt = work(place, options)
    if (mount.status()["user"]["operations"] > 0) != (name == SCHEDULED):
        raise Failed("the mount has not heard of its user, or of another one")
    mount.umount()
    return felt


def one_run(name: str, options: argparse.Namespace) -> tuple[Felt, float]:
    """What was felt, and the MiB that the device was told to write."""
    with Cleanup() as cleanup:
        scratch = scratch_dir(cleanup, "responsiveness")
        device = FlashDevice(cleanup, scratch, options.preset, DEVICE_MEBIBYTES, 1.0)
        if name == EXT4:
            bare = device.mountpoint
            place = Place(bare, bare, lambda: run("sync", "--file-system", bare), device)
            felt = work(place, options)
        else:
            felt = on_mount(cleanup, device, scratch / "mount", name, options)
        run("sync", "--file-system", device.mountpoint)
        return felt, (device.spent() - felt.before).host_bytes / (1 << 20)


def quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.2f}"


def show(felt: dict[str, Felt], written: dict[str, list[float]]) -> None:
    rows = [
        [
            name,
            *(
                milliseconds(value)
                for values in (all_of.reads, all_of.saves)
                for value in (quantile(values, 0.5), quantile(values, 0.99), max(values))
            ),
            f"{statistics.median(written[name]):.0f} MiB",
        ]
        for name, all_of in ((name, felt[name]) for name in written)
    ]
    head = ["ms", "read p50", "p99", "max", "write+fsync p50", "p99", "max", "to the device"]
    print(table(head, rows))


def main() -> None:
    options = arguments()
    reason = loop_devices_work()
    if reason is not None:
        raise Failed(f"a modelled device needs a loop device: {reason}")
    names = [EXT4, NAIVE, SCHEDULED]
    felt: dict[str, Felt] = {}
    written: dict[str, list[float]] = {name: [] for name in names}
    for number in range(options.rounds):
        for name in names[number % 3 :] + names[: number % 3]:
            say(f"round {number + 1} of {options.rounds}: {name}")
            result, mebibytes = one_run(name, options)
            felt.setdefault(name, Felt(result.before)).extend(result)
            written[name].append(mebibytes)
    print(machine.one_line(machine.describe(ROOT)))
    show(felt, written)
    out = ROOT / "target" / "bench-responsiveness.json"
    out.write_text(
        json.dumps({name: {"reads": f.reads, "saves": f.saves} for name, f in felt.items()})
    )
    say(f"every single time: {out}")


if __name__ == "__main__":
    main_guard(main)
