#!/usr/bin/env python3
"""What a program in the foreground feels of commits in the background, on a modelled device.

A user works with a program: operations of half a second (reads of 4 KiB that are in no cache, and
two small writes with fsync each), pauses of 0.8 to 8 s between them. Meanwhile a program in the
background overwrites pages of a file at a steady rate. Measured is how long each read and each
write with its fsync takes, on

  ext4                on the device itself;
  MobiFS, naive       whatever a policy has closed is committed at once;
  MobiFS, scheduled   each operation is announced by `mobifs touch`, and commits wait for pauses.

Each run has an ext4 of its own on a new device, and the same operations at the same times. The
program in the background is under a policy that commits so often that the slowest of a hundred
reads says something of commits. Quantiles are of each run; shown are their medians over the rounds.

  bench_responsiveness.py [--preset PRESET] [--seconds N] [--rounds N] [--rate MIB]
                          [--interval-ms N] [--seed N] [--only NAME[,NAME...]]
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
NAMES = {"ext4": EXT4, "naive": NAIVE, "scheduled": SCHEDULED}


@dataclass
class Felt:
    """How long what a user waits for took, in seconds."""

    # What the device had done when the session began.
    before: Spent
    reads: list[float] = field(default_factory=list)
    saves: list[float] = field(default_factory=list)
    # When each read began, in seconds since the session did.
    read_at: list[float] = field(default_factory=list)
    commits: int = 0
    # The bytes that were written to the device meanwhile.
    written_mebibytes: float = 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", default="emmc51")
    parser.add_argument("--seconds", type=float, default=150, help="of each run")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rate", type=float, default=2, help="MiB/s that are overwritten")
    parser.add_argument("--interval-ms", type=int, default=5000, help="between commits")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default=",".join(NAMES), help="of " + ", ".join(NAMES))
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


def operation(
    large: int, save: Path, dice: random.Random, felt: Felt, begun: float
) -> None:
    """What a user waits for: the program reads what it has not read before, and saves."""
    saves = set(dice.sample(range(READS), SAVES))
    for number in range(READS):
        offset = dice.randrange(READ_MEBIBYTES * 256) * PAGE
        started = time.perf_counter()
        os.pread(large, PAGE, offset)
        felt.reads.append(time.perf_counter() - started)
        felt.read_at.append(started - begun)
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
    # Where the same files lie in the lower filesystem; the same path for a bare filesystem.
    below: Path
    # Brings everything there.
    sync: Callable[[], object]
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
    place.sync()
    dice, felt = random.Random(options.seed), Felt(before=place.device.spent())
    begun, ends = time.perf_counter(), time.monotonic() + options.seconds
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
            operation(large, front / "saved", dice, felt, begun)
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
    config = f"""
user_events = "none"
[[app]]
match = "back"
policy = "interval"
interval_ms = {options.interval_ms}
"""
    mount = MobiMount(cleanup, device.mountpoint / "store", mountpoint, config)
    mount.mount()
    place = Place(mountpoint, mount.store, mount.sync, device)
    if name == SCHEDULED:
        place.touch = lambda: run(mount.binary, "touch", mountpoint)
    felt = work(place, options)
    status = mount.status()
    felt.commits = status["store"]["commits"]
    if (status["user"]["operations"] > 0) != (name == SCHEDULED):
        raise Failed("the mount has not heard of its user, or of another one")
    mount.umount()
    return felt


def one_run(name: str, options: argparse.Namespace) -> Felt:
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
        felt.written_mebibytes = (device.spent() - felt.before).host_bytes / (1 << 20)
        return felt


def quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def milliseconds(values: list[float]) -> str:
    return f"{statistics.median(values) * 1000:.2f}"


def show(felt: dict[str, list[Felt]]) -> None:
    rows = []
    for name, runs in felt.items():
        row = [name]
        for times in ([run.reads for run in runs], [run.saves for run in runs]):
            for share in (0.5, 0.99, 0.999):
                row.append(milliseconds([quantile(values, share) for values in times]))
        commits = sum(run.commits for run in runs)
        written = statistics.median(run.written_mebibytes for run in runs)
        rows.append([*row, str(commits), f"{written:.0f} MiB"])
    quantiles = ["p50", "p99", "p99.9"]
    head = ["ms", *(f"read {q}" for q in quantiles), *(f"write+fsync {q}" for q in quantiles)]
    print(table([*head, "commits", "to the device"], rows))
    if NAIVE in felt and SCHEDULED in felt:
        pairs = zip(felt[NAIVE], felt[SCHEDULED], strict=True)
        ratios = [quantile(s.reads, 0.99) / quantile(n.reads, 0.99) for n, s in pairs]
        each = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        print(f"read p99, scheduled / naive: median {statistics.median(ratios):.2f} ({each})")


def main() -> None:
    options = arguments()
    reason = loop_devices_work()
    if reason is not None:
        raise Failed(f"a modelled device needs a loop device: {reason}")
    names = [NAMES[name] for name in options.only.split(",")]
    felt: dict[str, list[Felt]] = {name: [] for name in names}
    for number in range(options.rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            say(f"round {number + 1} of {options.rounds}: {name}")
            felt[name].append(one_run(name, options))
    print(machine.one_line(machine.describe(ROOT)))
    show(felt)
    out = ROOT / "target" / "bench-responsiveness.json"
    out.parent.mkdir(exist_ok=True)
    runs = {name: [vars(run) | {"before": None} for run in runs] for name, runs in felt.items()}
    out.write_text(json.dumps(runs))
    say(f"every single time: {out}")


if __name__ == "__main__":
    main_guard(main)
