#!/usr/bin/env python3
"""SQLite through the VFS beside SQLite without it, interleaved, median of several rounds.

All that is on a disk is on one new ext4 with all defaults, in an image on a loop device with
direct I/O; what reaches that device is counted until everything is at its place. Each run is a
process of its own, in a directory of its own. Python makes the transactions, which costs all
contenders the same and takes from the ratios of the fastest.

  bench_sqlite_vfs.py [--quick] [--only WORD] [--rounds N]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from bench_record import daemon_seconds
from lib import machine
from lib.disk import LoopImage, loop_devices_work, scratch_dir
from lib.extension import built_extension
from lib.mount import MobiMount
from lib.process import ROOT, Cleanup, Failed, main_guard, say
from lib.report import human_bytes, human_count, ratio, table

WORKLOADS = ROOT / "scripts" / "lib" / "sqlite_workloads.py"
JOURNALS = ("delete", "truncate", "persist", "wal")
IMAGE_MEBIBYTES = 1024
REFERENCE, MEMORY = "ext4 FULL", "tmpfs OFF"
RELAXED, DURABLE = "VFS relaxed", "VFS durable"


@dataclass(frozen=True)
class Case:
    """One line of the table."""

    workload: str
    journal: str
    threads: int = 1

    @property
    def name(self) -> str:
        threads = f", {self.threads} threads" if self.threads > 1 else ""
        return f"{self.workload}, {self.journal.upper()}{threads}"


@dataclass(frozen=True)
class Contender:
    """One column."""

    name: str
    directory: Path | None
    synchronous: str
    parameters: str = ""
    sync: Callable[[], None] = lambda: None
    # Processor time that others spend for it.
    others_seconds: Callable[[], float] = lambda: 0.0


def cases() -> list[Case]:
    singles = ("insert", "update", "delete")
    found = [Case(workload, journal) for journal in JOURNALS for workload in singles]
    for journal in ("delete", "wal"):
        found += [Case(workload, journal) for workload in ("read-mostly", "blobs", "rl")]
        found += [Case(workload, journal, threads=4) for workload in ("insert", "read-mostly")]
    return found


def contenders(cleanup: Cleanup, scratch: Path, image: LoopImage) -> list[Contender]:
    shm = Path(mkdtemp(prefix="mobifs-bench-", dir="/dev/shm"))
    cleanup.callback(shutil.rmtree, shm, ignore_errors=True)
    disk = image.mountpoint / "bare"
    disk.mkdir()
    mount = MobiMount(cleanup, image.mountpoint / "store", scratch / "mount")
    mount.mount()
    daemon = mount.status()["daemon_pid"]
    vfs = "?vfs=mobifs"
    return [
        Contender(REFERENCE, disk, "full"),
        Contender("ext4 NORMAL", disk, "normal"),
        Contender("ext4 OFF", disk, "off"),
        Contender(MEMORY, shm, "off"),
        Contender(":memory:", None, "off"),
        Contender("mount relaxed", mount.mountpoint, "full", sync=mount.sync,
                  others_seconds=lambda: daemon_seconds(daemon)),
        Contender(RELAXED, disk, "full", vfs),
        Contender("VFS, no arena", disk, "full", f"{vfs}&arena=/nonexistent"),
        Contender(DURABLE, disk, "full", f"{vfs}&class=durable"),
    ]  # fmt: skip


def run_once(
    case: Case, contender: Contender, image: LoopImage, extension: Path, options: argparse.Namespace
) -> dict[str, Any]:
    uri, directory = "file::memory:?cache=shared", None
    if contender.directory is not None:
        directory = Path(mkdtemp(dir=contender.directory))
        uri = f"file:{directory}/bench.db{contender.parameters}"
    job = {
        "uri": uri,
        "workload": case.workload,
        "journal": case.journal,
        "synchronous": contender.synchronous,
        "seconds": 0.25 if options.quick else 1.0,
        "threads": case.threads,
        "rows": 20_000,
    }
    environment = {**os.environ, "MOBIFS_SQLITE_EXTENSION": str(extension)}
    with subprocess.Popen(
        [sys.executable, WORKLOADS, json.dumps(job)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
    ) as child:  # fmt: skip
        if child.stdout.readline() != "ready\n":
            raise Failed(f"{case.name} on {contender.name} did not get ready")
        contender.sync()
        image.sync()
        bytes_before, others = image.bytes_written(), contender.others_seconds()
        output, _ = child.communicate("\n")
    if child.returncode != 0:
        raise Failed(f"{case.name} on {contender.name} ended with {child.returncode}")
    result = json.loads(output)
    result["processor_seconds"] += contender.others_seconds() - others
    contender.sync()
    image.sync()
    result["device_bytes"] = image.bytes_written() - bytes_before
    if directory is not None:
        shutil.rmtree(directory)
        contender.sync()
        image.sync()
    return result


def value(case: Case, result: dict[str, Any]) -> float:
    """Operations a second; of `rl` runs a second."""
    seconds = sum(result["parts"].values()) if case.workload == "rl" else result["seconds"]
    return result["operations"] / seconds


def figures(case: Case, results: list[dict[str, Any]]) -> dict[str, float]:
    middle = statistics.median
    return {
        "per_second": middle(value(case, one) for one in results),
        "p99_ms": middle(one["p99_seconds"] * 1e3 for one in results),
        "processor_us": middle(one["processor_seconds"] * 1e6 / one["operations"] for one in results),
        "device_bytes": middle(one["device_bytes"] / one["operations"] for one in results),
    }


def run_case(
    case: Case,
    candidates: list[Contender],
    image: LoopImage,
    extension: Path,
    options: argparse.Namespace,
) -> dict[str, Any]:
    results: dict[str, list[dict[str, Any]]] = {one.name: [] for one in candidates}
    for _ in range(options.rounds):
        for contender in candidates:
            if contender.directory is None and case.threads > 1:
                continue
            results[contender.name].append(run_once(case, contender, image, extension, options))
    found = {name: figures(case, of_one) for name, of_one in results.items() if of_one}
    say(f"  {case.name}: " + ", ".join(
        f"{name} {human_count(of_one['per_second'])}" for name, of_one in found.items()))  # fmt: skip
    return {"case": case.name, "figures": found, "results": results}


def show(done: list[dict[str, Any]], names: list[str]) -> str:
    speed = [["a second", *names, "relaxed/tmpfs", "relaxed/FULL", "durable/FULL"]]
    costs = {"p99_ms": [["p99, ms", *names]], "processor_us": [["CPU, µs", *names]],
             "device_bytes": [["to the device", *names]]}  # fmt: skip
    for one in done:
        found = one["figures"]
        rate = {name: of_one["per_second"] for name, of_one in found.items()}
        cells = [human_count(rate[name]) if name in rate else "–" for name in names]
        speed.append([one["case"], *cells, ratio(rate[RELAXED], rate[MEMORY]),
                      ratio(rate[RELAXED], rate[REFERENCE]), ratio(rate[DURABLE], rate[REFERENCE])])
        for key, rows in costs.items():
            form = human_bytes if key == "device_bytes" else human_count
            rows.append([one["case"], *(form(found[n][key]) if n in found else "–" for n in names)])
    return "\n\n".join(table(rows[0], rows[1:]) for rows in (speed, *costs.values()))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="short runs")
    parser.add_argument("--only", metavar="WORD", help="cases whose name contains WORD")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    reason = loop_devices_work()
    if reason is not None:
        raise Failed(f"the disk to measure is an image: {reason}")
    extension = built_extension("--release")
    report = ROOT / "target" / "bench-sqlite-vfs.json"
    report.parent.mkdir(exist_ok=True)
    done: list[dict[str, Any]] = []
    with Cleanup() as cleanup:
        scratch = scratch_dir(cleanup, "bench")
        image = LoopImage(cleanup, scratch, "ext4", IMAGE_MEBIBYTES, allocated=True)
        about = machine.describe(image.mountpoint)
        say(machine.one_line(about))
        candidates = contenders(cleanup, scratch, image)
        for case in cases():
            if options.only is None or options.only.lower() in case.name.lower():
                done.append(run_case(case, candidates, image, extension, options))
                document = {"machine": about, "rounds": options.rounds, "cases": done}
                report.write_text(json.dumps(document, indent=2) + "\n")
    say("\n" + machine.one_line(about) + f", median of {options.rounds}\n")
    say(show(done, [contender.name for contender in candidates]))
    say(f"\nall samples: {report}")
    return 0


if __name__ == "__main__":
    main_guard(main)
