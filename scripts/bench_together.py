#!/usr/bin/env python3
"""Durable SQLite transactions of several programs at once: what all of them do in a second together.

The programs begin together and insert rows, a transaction each, `synchronous=FULL`:

  one          one program, for comparison;
  apps         four, each with a database in an app of its own;
  databases    four, each with a database of its own in one app.

On ext4 (an image of its own on a loop device, or on a modelled device with --flash) and on durable
mounts over the same ext4, one for each --binary (an older `mobifs`, beside the one that is built);
in turns, so that what else the machine does hits all, each when everything is on the disk and a
modelled device has done its work in the background. Shown are medians of the rounds, and what a
mount's commits were.

  bench_together.py [--seconds N] [--rounds N] [--journals delete,wal,…] [--binary NAME=PATH]…
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from lib import machine
from lib.disk import LoopImage, loop_devices_work, scratch_dir
from lib.flash_device import FlashDevice, ext4_disk
from lib.mount import MobiMount
from lib.process import ROOT, Cleanup, Failed, built_binary, main_guard, say
from lib.report import human_count, ratio, table

DURABLE = '[[app]]\nmatch = "*"\nclass = "durable"\n'
IMAGE_MEBIBYTES = 1024
EXT4 = "ext4"
# How many programs there are, and in how many apps.
LOADS = {"one": (1, 1), "apps": (4, 4), "databases": (4, 1)}


@dataclass
class Runs:
    """The rounds of one load in one place."""

    rates: list[float] = field(default_factory=list)
    # A mount's counters: how much they grew, in all rounds.
    commits: int = 0
    joined: int = 0
    operations: float = 0


def programs(apps: list[Path], count: int, journal: str, seconds: float) -> list[dict[str, float]]:
    """Runs them; how many operations each did, and their rates."""
    started = []
    for number in range(count):
        place = apps[number % len(apps)] / f"of-{number}"
        command = [built_binary("mobifs-lab"), "workload", "--dir", place, "sqlite"]
        options = ["--journal", journal, "--statement", "insert", "--seconds", str(seconds)]
        started.append(subprocess.Popen(
            [*map(str, command), *options], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL,
        ))  # fmt: skip
    outputs = [program.communicate()[0] for program in started]
    if any(program.returncode != 0 for program in started):
        raise Failed("a program failed; see above")
    return [json.loads(output) for output in outputs]


def run_once(runs: Runs, directory: Path, mount: MobiMount | None, load: str, journal: str,
             seconds: float) -> None:  # fmt: skip
    count, app_count = LOADS[load]
    # What lies directly in a mount is an app.
    apps = [directory / f"app-{number}" for number in range(app_count)]
    for app in apps:
        app.mkdir()
    before = mount.status()["store"] if mount else {}
    results = programs(apps, count, journal, seconds)
    after = mount.status()["store"] if mount else {}
    runs.rates.append(sum(result["per_second"] for result in results))
    runs.operations += sum(result["operations"] for result in results)
    for name, key in (("commits", "commits"), ("joined", "joined_transactions")):
        grown = after.get(key, 0) - before.get(key, 0)
        setattr(runs, name, getattr(runs, name) + grown)
    for app in apps:
        shutil.rmtree(app)


def mounts(cleanup: Cleanup, disk: Path, binaries: dict[str, str]) -> dict[str, MobiMount]:
    found = {}
    for name, path in binaries.items():
        mount = MobiMount(cleanup, disk / f"store-{name}", disk / f"mount-{name}", DURABLE)
        mount.binary = Path(path)
        mount.mount()
        found[name] = mount
    return found


def measure(disk: FlashDevice | LoopImage, options: argparse.Namespace,
            cleanup: Cleanup) -> dict[str, dict[str, Runs]]:  # fmt: skip
    """By load and journal, by place."""
    binaries = {"durable": str(built_binary("mobifs"))}
    binaries |= dict(one.split("=", 1) for one in options.binary)
    served = mounts(cleanup, disk.mountpoint, binaries)
    bare = disk.mountpoint / "bare"
    bare.mkdir()
    places: dict[str, tuple[Path, MobiMount | None]] = {EXT4: (bare, None)}
    places |= {name: (mount.mountpoint, mount) for name, mount in served.items()}
    every = {}
    for load in options.only.split(","):
        for journal in options.journals.split(","):
            of_load: dict[str, Runs] = {name: Runs() for name in places}
            for _ in range(options.rounds):
                for name, (directory, mount) in places.items():
                    for one in served.values():
                        one.sync()
                    disk.wait_until_idle()
                    run_once(of_load[name], directory, mount, load, journal, options.seconds)
            every[f"{load}, {journal.upper()}"] = of_load
            say(f"  {load}, {journal.upper()}: " + ", ".join(
                f"{name} {human_count(statistics.median(runs.rates))}"
                for name, runs in of_load.items()))  # fmt: skip
    return every


def show(every: dict[str, dict[str, Runs]]) -> str:
    names = list(next(iter(every.values())))
    others = [name for name in names if name != EXT4]
    header = ["inserts/s, all together", *names, *(f"{name}/{EXT4}" for name in others)]
    header += [f"transactions a commit, {name}" for name in others]
    rows = []
    for load, runs in every.items():
        medians = {name: statistics.median(of.rates) for name, of in runs.items()}
        row = [load, *(human_count(medians[name]) for name in names)]
        row += [ratio(medians[name], medians[EXT4]) for name in others]
        row += [f"{runs[name].operations / max(runs[name].commits, 1):.2f}" for name in others]
        rows.append(row)
    return table(header, rows)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3, help="of each run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default=",".join(LOADS), help="of " + ", ".join(LOADS))
    parser.add_argument("--journals", default="delete,wal")
    parser.add_argument("--binary", action="append", default=[], metavar="NAME=PATH",
                        help="another mobifs to compare with")  # fmt: skip
    parser.add_argument("--flash", metavar="PRESET", help="on a modelled device: emmc51, …")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    reason = loop_devices_work()
    if reason is not None:
        raise Failed(f"the places are on an ext4 of their own: {reason}")
    if not set(options.only.split(",")) <= set(LOADS):
        raise Failed("there is no such load; see --help")
    with Cleanup() as cleanup:
        scratch = scratch_dir(cleanup, "together")
        disk = ext4_disk(cleanup, scratch, options.flash, IMAGE_MEBIBYTES)
        about = machine.one_line(machine.describe(disk.mountpoint))
        every = measure(disk, options, cleanup)
    out = ROOT / "target" / "bench-together.json"
    document = {key: {name: vars(runs) for name, runs in of.items()} for key, of in every.items()}
    out.write_text(json.dumps(document, indent=2) + os.linesep)
    say(f"\n{about}, median of {options.rounds}\n\n{show(every)}")


if __name__ == "__main__":
    main_guard(main)
