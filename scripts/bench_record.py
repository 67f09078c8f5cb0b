#!/usr/bin/env python3
"""What recording costs: the same work on two mounts, one of them with --record.

Both have their stores in one directory and take short turns, first one and then the other first,
so that what else the machine does hits both. For each case: the medians, the median of the ratios
of all pairs (recorded to plain, so 0.97 means 3 % less) with the middle half of them, and the same
for processor time by operation, of the program and the daemon together.

  bench_record.py [--quick] [--only WORD] [--rounds N] [--directory DIR]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
from pathlib import Path
from typing import Any

from lib import bench_cases, machine
from lib.bench_cases import Case
from lib.disk import scratch_dir
from lib.mount import MobiMount
from lib.process import ROOT, Cleanup, main_guard, say
from lib.report import human_count, table

# What makes the most requests for its work, and SQLite as programs use it.
CASES = (
    "SQLite DELETE insert",
    "SQLite WAL insert",
    "4 KiB random write",
    "create + unlink, 4 KiB files",
)


def mounts(cleanup: Cleanup, scratch: Path) -> tuple[MobiMount, MobiMount, Path]:
    """A plain mount, a recorded one, and the trace of that."""
    trace = scratch / "trace.parquet"
    plain = MobiMount(cleanup, scratch / "store-plain", scratch / "plain")
    recorded = MobiMount(cleanup, scratch / "store-recorded", scratch / "recorded")
    recorded.options += ["--record", str(trace)]
    plain.mount()
    recorded.mount()
    return plain, recorded, trace


def daemon_seconds(process: int) -> float:
    """Processor time of all threads of a daemon that live."""
    total_ns = 0
    for thread in Path(f"/proc/{process}/task").iterdir():
        try:
            total_ns += int((thread / "schedstat").read_text().split()[0])
        except FileNotFoundError:
            continue
    return total_ns / 1e9


def children_seconds() -> float:
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def measure(case: Case, mount: MobiMount, number: int) -> tuple[float, float]:
    """Operations by second, and processor time by operation."""
    directory = mount.mountpoint / f"run-{number}"
    daemon = mount.status()["daemon_pid"]
    try:
        bench_cases.prepare(case, directory, {})
        before = daemon_seconds(daemon) + children_seconds()
        value, operations = bench_cases.measure(case, directory, {})
        spent = daemon_seconds(daemon) + children_seconds() - before
        return value, spent / operations
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        mount.sync()


def spread(pairs: list[tuple[float, float]]) -> dict[str, float]:
    """The ratios of pairs: median and quartiles."""
    low, middle, high = statistics.quantiles([after / before for before, after in pairs], n=4)
    return {"ratio": middle, "ratio_low": low, "ratio_high": high}


def compare(case: Case, plain: MobiMount, recorded: MobiMount, rounds: int) -> dict[str, Any]:
    # One that does not count: everything is loaded then.
    for mount in (plain, recorded):
        measure(case, mount, rounds)
    pairs = []
    for number in range(rounds):
        order = [plain, recorded] if number % 2 == 0 else [recorded, plain]
        values = {mount.mountpoint: measure(case, mount, number) for mount in order}
        pairs.append((values[plain.mountpoint], values[recorded.mountpoint]))
    speed = [(before[0], after[0]) for before, after in pairs]
    processor = [(before[1], after[1]) for before, after in pairs]
    return {
        "case": case.name,
        "unit": case.unit,
        "plain": statistics.median(before for before, _ in speed),
        "recorded": statistics.median(after for _, after in speed),
        "speed": spread(speed),
        "processor": spread(processor),
        "pairs": pairs,
    }


def show(results: list[dict[str, Any]]) -> str:
    def cells(ratios: dict[str, float]) -> list[str]:
        middle_half = f"{ratios['ratio_low']:.3f} – {ratios['ratio_high']:.3f}"
        return [f"{ratios['ratio']:.3f}", middle_half]

    rows = [
        [
            f"{result['case']} ({result['unit']})",
            human_count(result["plain"]),
            human_count(result["recorded"]),
            *cells(result["speed"]),
            *cells(result["processor"]),
        ]
        for result in results
    ]
    header = ["median", "plain", "recorded", "ratio", "middle half", "CPU ratio", "middle half"]
    return table(header, rows)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="see that it runs; numbers are noise")
    parser.add_argument("--only", metavar="WORD", help="cases whose name contains WORD")
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--directory", type=Path, help="where the stores and the trace lie")
    return parser.parse_args()


def main() -> int:
    options = parse()
    if options.directory:
        os.environ["MOBIFS_SCRATCH"] = str(options.directory)
    scale = bench_cases.QUICK
    rounds = 3 if options.quick else options.rounds
    word = (options.only or "").lower()
    wanted = [case for case in bench_cases.cases(scale) if case.name in CASES]
    report = ROOT / "target" / "bench-record.json"
    report.parent.mkdir(exist_ok=True)
    results = []
    with Cleanup() as cleanup:
        scratch = scratch_dir(cleanup, "bench-record")
        about = machine.describe(scratch)
        plain, recorded, trace = mounts(cleanup, scratch)
        for case in wanted:
            if word in case.name.lower():
                say(f"  {case.name}")
                results.append(compare(case, plain, recorded, rounds))
        recording = recorded.status()["recording"]
        recorded.umount()
        recording["trace_bytes"] = trace.stat().st_size
    document = {"machine": about, "rounds": rounds, "results": results, "recording": recording}
    report.write_text(json.dumps(document, indent=2) + "\n")
    say(f"\n{machine.one_line(about)}, {rounds} rounds\n\n{show(results)}")
    say(f"\n{recording['events']} events recorded, {recording['lost']} lost, "
        f"{recording['trace_bytes']} bytes of trace; all samples: {report}")  # fmt: skip
    return 0


if __name__ == "__main__":
    main_guard(main)
