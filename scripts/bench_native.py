#!/usr/bin/env python3
"""Native mode beside a mount, the same filesystems without it, and tmpfs; median of several rounds.

All places take turns in one run. Each filesystem is a new ext4 of its own: in an image on the disk
(a loop device with direct I/O), or with --flash on a modelled device of its own, where what
reached the cells until everything is synced is counted too. `journal, fsync skipped` is the ext4
that native mode steers, without steering and with all durability calls taken away by libeatmydata:
what would be possible, and promises nothing. `native, static` is native mode as a static program
meets it, by the supervisor alone. The programs that never sync are git clone, tar and a compiler.

  bench_native.py [--quick] [--only WORD] [--rounds N] [--flash PRESET [--scale X]]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import BARE, eatmydata_library, sync_disk
from lib import machine
from lib.bench_cases import Case
from lib.bench_rounds import SPENT_HEADER, Place, run_case, spent_rows, summary
from lib.disk import LoopImage, loop_devices_work, scratch_dir
from lib.flash_device import FlashDevice
from lib.mount import MobiMount
from lib.process import ROOT, Cleanup, Failed, built_binary, find_tool, main_guard, run, say
from lib.report import human_count, ratio, table

IMAGE_MEBIBYTES = 1536
FLASH_MEBIBYTES = 2048
JOURNALS = ("delete", "truncate", "persist", "wal")
MOUNT, NATIVE, STATIC = "mount", "native", "native, static"
SKIPPED, JOURNAL = "fsync skipped", "journal, fsync skipped"
SOURCES, SOURCE_LINES = 40, 400


def new_filesystem(
    cleanup: Cleanup, scratch: Path, name: str, options: str, flash: tuple[str, float] | None
) -> tuple[Path, FlashDevice | None]:
    directory = scratch / name
    directory.mkdir()
    if flash is None:
        image = LoopImage(
            cleanup, directory, "ext4", IMAGE_MEBIBYTES, allocated=True, options=options
        )
        return image.mountpoint, None
    preset, scale = flash
    device = FlashDevice(cleanup, directory, preset, FLASH_MEBIBYTES, scale, options=options)
    return device.mountpoint, device


def place(
    name: str,
    disk: Path,
    flash: FlashDevice | None,
    env: dict[str, str] | None = None,
    prefix: tuple[str, ...] = (),
    sync: Callable[[], None] | None = None,
) -> Place:
    directory = disk / name.replace(", ", "-").replace(" ", "-")
    directory.mkdir(exist_ok=True)
    return Place(name, directory, env or {}, sync or (lambda: sync_disk(disk)), prefix, flash)


def steered(cleanup: Cleanup, disk: Path) -> None:
    binary = built_binary("mobifs")
    run(binary, "steer", disk)
    cleanup.callback(run, binary, "steer", "--stop", disk)


def places(cleanup: Cleanup, scratch: Path, flash: tuple[str, float] | None) -> list[Place]:
    def disk(name: str, options: str = "defaults") -> tuple[Path, FlashDevice | None]:
        return new_filesystem(cleanup, scratch, name, options, flash)

    binary = str(built_binary("mobifs"))
    bare, of_bare = disk("bare")
    found = [place(BARE, bare, of_bare)]
    skipper = eatmydata_library()
    if skipper is None:
        say("libeatmydata is not installed: its columns are left out")
    else:
        skipping = {"LD_PRELOAD": skipper}
        found.append(place(SKIPPED, bare, of_bare, skipping))
        journal, of_journal = disk("journal", "data=journal")
        found.append(place(JOURNAL, journal, of_journal, skipping))
    below, of_store = disk("below")
    mount = MobiMount(cleanup, below / "store", scratch / "mount")
    mount.mount()

    def sync_mount() -> None:
        mount.sync()
        sync_disk(below)

    found.append(Place(MOUNT, mount.mountpoint, sync=sync_mount, flash=of_store))
    native, of_native = disk("native", "data=journal")
    steered(cleanup, native)
    # As `make install` puts it beside the program.
    library = {"MOBIFS_RUN_PRELOAD": str(built_binary("libmobifs_run.so"))}
    found.append(place(NATIVE, native, of_native, library, prefix=(binary, "run", "--")))
    static = (binary, "run", "--mechanism", "seccomp", "--")
    found.append(place(STATIC, native, of_native, prefix=static))
    if flash is None:
        shm = Path("/dev/shm") / f"mobifs-bench-{os.getpid()}"
        shm.mkdir()
        cleanup.callback(shutil.rmtree, shm, ignore_errors=True)
        found.append(Place("tmpfs", shm))
    return found


def sources(directory: Path) -> None:
    """C files that a compiler works on, always the same."""
    directory.mkdir()
    chosen = random.Random(1)
    for number in range(SOURCES):
        lines = [
            f"int f{number}_{line}(int x) {{ return x * {chosen.randrange(1, 99)} + {line}; }}"
            for line in range(SOURCE_LINES)
        ]
        (directory / f"unit{number}.c").write_text("\n".join(lines) + "\n")


def unsynced_cases(scratch: Path) -> list[Case]:
    """Programs that never sync, in an empty directory each time."""
    inputs = scratch / "inputs"
    inputs.mkdir()
    sources(inputs / "sources")
    archive = inputs / "tree.tar"
    repository = inputs / "repository"
    # What is committed of this checkout, whatever lies beside it.
    run("git", "clone", "-q", "--no-hardlinks", ROOT, repository)
    with archive.open("wb") as file:
        subprocess.run(["git", "-C", repository, "archive", "HEAD"], stdout=file, check=True)
    found = [
        Case("git clone", (), unit="runs/s",
             command=("git", "clone", "-q", "--no-hardlinks", str(repository), "clone")),
        Case("unpack", (), unit="runs/s", command=("tar", "xf", str(archive))),
    ]  # fmt: skip
    if find_tool("cc") is None:
        say("no C compiler: that case is left out")
    else:
        script = f'for f in {inputs}/sources/*.c; do cc -c "$f" || exit 1; done'
        found.append(Case("compile", (), unit="runs/s", command=("sh", "-c", script)))
    return found


def cases(scratch: Path, seconds: float, word: str | None, with_programs: bool) -> list[Case]:
    until = ("--seconds", str(seconds))
    found = [
        Case(f"SQLite {journal.upper()} {statement}",
             ("sqlite", "--journal", journal, "--statement", statement, *until))
        for journal in JOURNALS
        for statement in ("insert", "update")
    ]  # fmt: skip
    if with_programs:
        found += unsynced_cases(scratch)
    return [case for case in found if word is None or word.lower() in case.name.lower()]


def show(results: list[dict[str, Any]], names: list[str]) -> str:
    """Medians, and the ratios that the targets of native mode are given as."""
    pairs = [(NATIVE, BARE), (NATIVE, JOURNAL), (STATIC, JOURNAL), (NATIVE, MOUNT)]
    pairs = [(over, under) for over, under in pairs if under in names]
    header = ["median", *names, *(f"{over} / {under}" for over, under in pairs)]
    rows = []
    for result in results:
        medians = result["median"]
        cells = [human_count(medians[name]) for name in names]
        ratios = [ratio(medians[over], medians[under]) for over, under in pairs]
        rows.append([f"{result['case']} ({result['unit']})", *cells, *ratios])
    return table(header, rows)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="see that it runs; numbers are rough")
    parser.add_argument("--only", metavar="WORD", help="cases whose name contains WORD")
    parser.add_argument("--rounds", type=int, help="instead of the usual number")
    parser.add_argument("--flash", metavar="PRESET", help="on modelled devices: emmc51, ufs31, …")
    parser.add_argument("--scale", type=float, default=1, help="of the modelled device's time")
    return parser.parse_args()


def main() -> int:
    options = parse()
    reason = loop_devices_work()
    if reason is not None:
        raise Failed(f"native mode is measured on filesystems of its own: {reason}")
    flash = (options.flash, options.scale) if options.flash else None
    rounds = options.rounds or (1 if options.quick else 3 if flash else 5)
    seconds = 0.4 if options.quick else 10 if flash else 3
    report = ROOT / "target" / ("bench-native-flash.json" if flash else "bench-native.json")
    report.parent.mkdir(exist_ok=True)
    with Cleanup() as cleanup:
        scratch = scratch_dir(cleanup, "bench-native")
        where = places(cleanup, scratch, flash)
        about = machine.describe(where[0].directory)
        say(machine.one_line(about))
        results = []
        for case in cases(scratch, seconds, options.only, flash is None):
            say(f"  {case.name}")
            results.append(summary(case, run_case(case, where, rounds), BARE))
        document = {"machine": about, "rounds": rounds, "results": results}
        report.write_text(json.dumps(document, indent=2) + "\n")
        names = [one.name for one in where]
    say("\n" + machine.one_line(about) + f", median of {rounds}")
    if results:
        say("\n" + show(results, names))
        rows = spent_rows(results, names)
        if rows:
            say("\nwhat the device did, by operation:\n\n" + table(SPENT_HEADER, rows))
    say(f"\nall samples: {report}")
    return 0


if __name__ == "__main__":
    main_guard(main)
