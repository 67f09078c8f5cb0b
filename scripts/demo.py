#!/usr/bin/env python3
"""MobiFS and its bare lower disk, side by side on real programs; then a power cut.

As root the disk is an ext4 image on a loop device, whose own counter says what was written.
Without root it is a directory of your disk, and the kernel's accounting per process is used.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lib.demo_crash import power_cut
from lib.demo_jobs import Cost, Job, git_job, measure, package_job, sqlite_job
from lib.disk import LoopImage, loop_devices_work, process_bytes_written, scratch_dir
from lib.inputs import packages, source_repository
from lib.mount import MobiMount
from lib.process import Cleanup, Failed, find_tool, main_guard, run, say
from lib.report import human_bytes, ratio, table


@dataclass
class Side:
    """A filesystem to compare: where to work, how to make it durable, how to count."""

    name: str
    directory: Path
    sync: Callable[[], None]
    written: Callable[[], int]


def children_bytes_written() -> int:
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_oublock * 512


def sides(cleanup: Cleanup, scratch: Path) -> tuple[list[Side], MobiMount, str]:
    """The bare disk and the mount on it, and a line that says how bytes are counted."""
    reason = loop_devices_work()
    if reason is None:
        image = LoopImage(cleanup, scratch, "ext4", 2048)
        lower = image.mountpoint
        counted = f"all that ext4 sent to its device {image.device}, metadata and journal included"
    else:
        lower = scratch / "disk"
        lower.mkdir()
        counted = f"the kernel's accounting per process ({reason}); without ext4's own journal"
    bare = lower / "bare"
    bare.mkdir()
    mount = MobiMount(cleanup, lower / "store", scratch / "mnt")
    mount.mount()

    def sync_lower() -> None:
        run("sync", "--file-system", bare)

    def sync_mount() -> None:
        mount.sync()
        sync_lower()

    def daemon_bytes_written() -> int:
        return process_bytes_written(mount.status()["daemon_pid"])

    device = image.bytes_written if reason is None else None
    return (
        [
            Side("disk", bare, sync_lower, device or children_bytes_written),
            Side("MobiFS", mount.mountpoint, sync_mount, device or daemon_bytes_written),
        ],
        mount,
        counted,
    )


def compare(jobs: list[Job], both: list[Side]) -> list[tuple[Job, list[Cost]]]:
    results = []
    for number, job in enumerate(jobs):
        costs = []
        for side in both:
            say(f"  {job.name} on {side.name} ...")
            cost = measure(job, side.directory / f"job-{number}", side.written, side.sync)
            say(f"      {cost.seconds:.2f} s, {human_bytes(cost.bytes_written)} written")
            costs.append(cost)
        results.append((job, costs))
    return results


def show(results: list[tuple[Job, list[Cost]]], counted: str) -> None:
    header = ["", "disk s", "MobiFS s", "faster", "disk s+sync", "MobiFS s+sync",
              "disk wrote", "MobiFS wrote", "less"]  # fmt: skip
    rows = []
    for job, (bare, ours) in results:
        rows.append([
            job.name,
            f"{bare.seconds:.2f}", f"{ours.seconds:.2f}", ratio(bare.seconds, ours.seconds),
            f"{bare.seconds_with_sync:.2f}", f"{ours.seconds_with_sync:.2f}",
            human_bytes(bare.bytes_written), human_bytes(ours.bytes_written),
            ratio(bare.bytes_written, ours.bytes_written),
        ])  # fmt: skip
    say("\n" + table(header, rows))
    say(f"\n+sync: until everything is on the disk at its final place. Bytes: {counted}.")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--transactions", type=int, default=2000, help="of each SQLite job")
    parser.add_argument("--commits", type=int, default=20, help="of the git job")
    parser.add_argument("--cut-seconds", type=float, default=6, help="work before the power cut")
    return parser.parse_args()


def main() -> int:
    options = parse()
    if not os.access("/dev/fuse", os.R_OK | os.W_OK) and find_tool("fusermount3") is None:
        raise Failed("cannot mount here: /dev/fuse is not accessible and there is no fusermount3")
    with Cleanup() as cleanup:
        scratch = scratch_dir(cleanup, "demo")
        both, mount, counted = sides(cleanup, scratch)
        say(f"MobiFS demo: Linux {platform.release()}, {os.cpu_count()} CPUs, store on {scratch}")
        source = source_repository(scratch)
        jobs = [sqlite_job(mode, options.transactions) for mode in ("delete", "truncate", "wal")]
        jobs += [git_job(source, options.commits), package_job(packages(2))]
        say("\n1. The same work on both")
        results = compare(jobs, both)
        say("\n2. A power cut in the middle")
        verdicts = power_cut(mount, source, packages(2)[0], options.cut_seconds)
        show(results, counted)
        rows = [[v.app, v.check, v.found, "ok" if v.good else "FAILED"] for v in verdicts]
        say("\nAfter the power cut and recovery\n")
        say(table(["app", "check", "found", ""], rows))
        mount.umount()
        bad = [verdict for verdict in verdicts if not verdict.good]
        say(f"\n{len(verdicts) - len(bad)} of {len(verdicts)} apps are at a state that existed")
        return 1 if bad else 0


if __name__ == "__main__":
    if sys.version_info < (3, 10):
        sys.exit("Python 3.10 or newer is needed")
    main_guard(main)
