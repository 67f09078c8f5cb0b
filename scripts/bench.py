#!/usr/bin/env python3
"""Side-by-side benches, interleaved, median of several rounds.

The same binary does the same work in a directory of: the bare filesystem, tmpfs, the bare
filesystem with fsync taken away (libeatmydata), MobiFS with relaxed apps, MobiFS with durable
apps. The store of MobiFS is on the bare filesystem too. That is a new ext4 with all defaults in
an image on the disk (through a loop device with direct I/O), so that the comparison does not
depend on how this machine's own filesystem happens to be set up; with --directory, or where there
are no loop devices, it is the filesystem of a directory.

With --flash that ext4 is on a modelled flash device that takes the time of a real one, and what
reached the cells is counted too.

  bench.py [--quick] [--only WORD] [--rounds N] [--directory DIR | --flash PRESET]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
from pathlib import Path
from typing import Any

from lib import bench_cases, machine
from lib.bench_cases import Case, Scale
from lib.bench_tree import large_tree
from lib.disk import LoopImage, loop_devices_work, scratch_dir
from lib.bench_rounds import SPENT_HEADER, Place, run_case, spent_rows, summary
from lib.flash_device import FlashDevice
from lib.mount import MobiMount
from lib.process import ROOT, Cleanup, Failed, built_binary, main_guard, run, say
from lib.report import human_count, ratio, table

EATMYDATA = ("libeatmydata.so", "/usr/lib/*/libeatmydata.so", "/usr/lib/libeatmydata.so")
IMAGE_MEBIBYTES = 6144
FLASH_MEBIBYTES = 2048
DURABLE = '[[app]]\nmatch = "*"\nclass = "durable"\n'
BARE = "bare disk"


def eatmydata_library() -> str | None:
    for pattern in EATMYDATA[1:]:
        found = sorted(Path("/").glob(pattern.lstrip("/")))
        if found:
            return str(found[0])
    return None


def measured_disk(cleanup: Cleanup, scratch: Path, chosen: Path | None) -> Path:
    """A directory on the filesystem that all columns but tmpfs are measured on."""
    reason = loop_devices_work()
    if chosen is None and reason is None:
        say(f"making an ext4 image of {IMAGE_MEBIBYTES} MiB")
        return LoopImage(cleanup, scratch, "ext4", IMAGE_MEBIBYTES, allocated=True).mountpoint
    if chosen is None:
        say(f"{reason}: measuring on the filesystem of {scratch}")
    return scratch


def modelled_device(
    cleanup: Cleanup, scratch: Path, preset: str, scale: float
) -> FlashDevice:
    reason = loop_devices_work()
    if reason is not None:
        raise Failed(f"a modelled device needs a loop device: {reason}")
    say(f"making an ext4 on a modelled device {preset}, {scale:g} of its time")
    return FlashDevice(cleanup, scratch, preset, FLASH_MEBIBYTES, scale)


def sync_disk(directory: Path) -> None:
    run("sync", "--file-system", directory)


def references(cleanup: Cleanup, scratch: Path) -> list[Place]:
    """A lower bound for the time of every other place."""
    shm = Path("/dev/shm") / f"mobifs-bench-{os.getpid()}"
    shm.mkdir()
    cleanup.callback(shutil.rmtree, shm, ignore_errors=True)
    found = [Place("tmpfs", shm)]
    library = eatmydata_library()
    if library:
        skipping = scratch / "no-fsync"
        skipping.mkdir()
        found.append(Place("disk, fsync skipped", skipping, {"LD_PRELOAD": library}))
    else:
        say("libeatmydata is not installed: that column is left out")
    return found


def places(cleanup: Cleanup, scratch: Path, flash: FlashDevice | None) -> list[Place]:
    bare = scratch / "bare"
    bare.mkdir()
    found = [Place(BARE, bare, sync=lambda: sync_disk(scratch), flash=flash)]
    if flash is None:
        found += references(cleanup, scratch)
    for name, config in (("relaxed", None), ("durable", DURABLE)):
        mount = MobiMount(cleanup, scratch / f"store-{name}", scratch / name, config)
        mount.mount()

        def sync(mount: MobiMount = mount) -> None:
            mount.sync()
            sync_disk(scratch)

        found.append(Place(f"MobiFS {name}", mount.mountpoint, sync=sync, flash=flash))
    return found


def engine_write(rounds: int) -> dict[str, Any] | None:
    """Cost of one engine write without FUSE, if this build has that bench."""
    command = [built_binary("mobifs-lab"), "engine-write"]
    runs = []
    for _ in range(rounds):
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode != 0:
            if "unrecognized subcommand" in done.stderr:
                return None
            raise Failed(f"engine-write: {done.stderr.strip()}")
        runs.append(json.loads(done.stdout))
    numbers = [key for key, value in runs[0].items() if isinstance(value, (int, float))]
    return {key: statistics.median(run[key] for run in runs) for key in numbers}


def show(results: list[dict[str, Any]], names: list[str]) -> str:
    header = ["median", *names, "relaxed/bare", "durable/bare"]
    rows = []
    for result in results:
        medians = result["median"]
        cells = [human_count(medians[name]) if name in medians else "–" for name in names]
        ratios = [
            ratio(medians[name], medians[BARE]) if name in medians else "–"
            for name in ("MobiFS relaxed", "MobiFS durable")
        ]
        rows.append([f"{result['case']} ({result['unit']})", *cells, *ratios])
    return table(header, rows)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="see that it runs; numbers are rough")
    parser.add_argument("--only", metavar="WORD", help="cases whose name contains WORD")
    parser.add_argument("--rounds", type=int, help="instead of the usual number")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--directory", type=Path, help="on the filesystem to measure")
    where.add_argument("--flash", metavar="PRESET", help="on a modelled device: emmc51, …")
    parser.add_argument("--scale", type=float, default=1, help="of the modelled device's time")
    return parser.parse_args()


def chosen(scale: Scale, word: str | None) -> list[Case]:
    found = bench_cases.cases(scale)
    if word is None:
        return found
    return [case for case in found if word.lower() in case.name.lower()]


def main() -> int:
    options = parse()
    full = bench_cases.FLASH if options.flash else bench_cases.FULL
    scale = bench_cases.QUICK if options.quick else full
    rounds = options.rounds or scale.rounds
    if options.directory:
        os.environ["MOBIFS_SCRATCH"] = str(options.directory)
    report = ROOT / "target" / ("bench-flash.json" if options.flash else "bench.json")
    report.parent.mkdir(exist_ok=True)
    with Cleanup() as cleanup:
        scratch = scratch_dir(cleanup, "bench")
        flash = None
        if options.flash:
            flash = modelled_device(cleanup, scratch, options.flash, options.scale)
        disk = flash.mountpoint if flash else measured_disk(cleanup, scratch, options.directory)
        about = machine.describe(disk)
        where = places(cleanup, disk, flash)
        say(machine.one_line(about))
        results = []
        for case in chosen(scale, options.only):
            say(f"  {case.name}")
            results.append(summary(case, run_case(case, where, rounds), BARE))
        document: dict[str, Any] = {"machine": about, "rounds": rounds, "results": results}
        wants = (lambda name: options.only == name or (options.only is None and flash is None))
        if wants("engine"):
            document["engine_write"] = engine_write(rounds)
        if wants("tree"):
            document["tree"] = large_tree(cleanup, scratch, scale.tree_files)
        report.write_text(json.dumps(document, indent=2) + "\n")
    say("\n" + machine.one_line(about) + f", median of {rounds}")
    if results:
        say("\n" + show(results, [place.name for place in where]))
        rows = spent_rows(results, [place.name for place in where])
        if rows:
            say("\nwhat the device did, by operation:\n\n" + table(SPENT_HEADER, rows))
    if document.get("engine_write"):
        say(f"\none engine write without FUSE: {json.dumps(document['engine_write'])}")
    if document.get("tree"):
        tree = document["tree"]
        say(
            f"\ntree of {tree['files']:,} files: mounted in {tree['mount_seconds']:.3f} s, "
            f"daemon {tree['rss_after_mount_mib']:.1f} MiB resident after the mount, "
            f"{tree['rss_after_use_mib']:.1f} MiB after using one directory"
        )
    say(f"\nall samples: {report}")
    return 0


if __name__ == "__main__":
    main_guard(main)
