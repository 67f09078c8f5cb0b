#!/usr/bin/env python3
"""Native mode as `mobifs sim` has it beside native mode on a real ext4: the same traces and policies.

Each trace is replayed at its own speed by `mobifs run` on a new ext4 with data=journal (a loop device,
64 MiB of journal) that `mobifs steer` commits. What was there before the trace began is made and
written to its place first; what its user does is reported to the daemon. Then the journal tells which
blocks each transaction had: those that are no metadata are the flushed content. `mobifs sim` says the
same of the contender `native-ext4`. A program elsewhere on the machine that calls sync(2) meanwhile
commits this filesystem as well: that shows in the commits that the daemon did not ask for.

  sim_native.py [--policy KEY=VALUE,...]... TRACE...
  sim_native.py --policy policy=interval,interval_ms=5000 --policy policy=quiet phone.parquet
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lib import machine
from lib.disk import LoopImage, loop_devices_work, scratch_dir
from lib.process import Cleanup, Failed, built_binary, find_tool, main_guard, run, say
from lib.report import ratio, table

# From this size on the default journal has the 64 MiB that the simulator assumes.
IMAGE_MEBIBYTES = 2048
BLOCK_BYTES = 4096
# Time for the daemon to see that another program has committed.
REST_SECONDS = 3


@dataclass
class Counts:
    """KiB of content in commits, and KiB sent to the device."""

    flushed: float
    device: float


@dataclass
class Transaction:
    """Blocks of content and of metadata in the journal."""

    content: int = 0
    metadata: int = 0


def is_tree_block(block: bytes) -> bool:
    """A block of a directory (by the end that its checksum has, or by its first entry) or of the
    extents of a file. A replay writes random bytes, which look like neither."""
    is_directory = block[-12:-4] == b"\0\0\0\0\x0c\0\0\xde" or block[4:9] == b"\x0c\0\x01\x02."
    return is_directory or block[:2] == b"\x0a\xf3"


def transactions(image: Path) -> list[Transaction]:
    """What is in the journal, the oldest first, if it has not begun again from its start."""
    tables = table_blocks(image)
    text = run("debugfs", "-R", "logdump -O -a", image)
    with tempfile.TemporaryDirectory(dir=image.parent) as directory:
        dumped = Path(directory) / "journal"
        run("debugfs", "-R", f"dump <8> {dumped}", image)
        journal = dumped.read_bytes()
    found: dict[int, Transaction] = {}
    sequence = 0
    for line in text.splitlines():
        if match := re.search(r"expected sequence (\d+), type \d", line):
            sequence = int(match[1])
            found.setdefault(sequence, Transaction())
        elif match := re.search(r"FS block (\d+) logged at journal block (\d+)", line):
            place = int(match[2]) * BLOCK_BYTES
            block = journal[place : place + BLOCK_BYTES]
            if int(match[1]) in tables or is_tree_block(block):
                found[sequence].metadata += 1
            else:
                found[sequence].content += 1
    return [found[number] for number in sorted(found)]


def table_blocks(image: Path) -> set[int]:
    """Where the superblock and its like, bitmaps and inodes are."""
    blocks: set[int] = set()
    layout = run("dumpe2fs", image)
    places = r"(?:superblock|descriptors|GDT blocks|bitmap|Inode table) at (\d+)(?:-(\d+))?"
    for match in re.finditer(places, layout, re.IGNORECASE):
        blocks.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return blocks


def commits_so_far(device: Path) -> int:
    (info,) = Path("/proc/fs/jbd2").glob(f"{device.name}-*/info")
    return int(info.read_text().split()[0])


def status(mountpoint: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(built_binary("mobifs"), "status", "--json", mountpoint))
    return found


def configuration(directory: Path, policy: str) -> Path:
    def value(text: str) -> str:
        return text if text.isdigit() else json.dumps(text)

    pairs = [pair.partition("=") for pair in policy.split(",") if pair]
    lines = [f"{key} = {value(text)}" for key, _, text in pairs]
    path = directory / "mobifs.toml"
    path.write_text("\n".join(["[defaults]", *lines, ""]))
    return path


def user_times(trace: Path) -> list[float]:
    """Seconds since the trace's start at which the user does something."""
    events = run(built_binary("mobifs-lab"), "trace", "cat", "--json", trace).splitlines()
    found = (json.loads(event) for event in events if '"operation":"user"' in event)
    return [event["time_ns"] / 1e9 for event in found]


def play_user(times: list[float], mountpoint: Path) -> None:
    """Tells the daemon what the user does, from now on."""
    started = time.monotonic()
    for moment in times:
        time.sleep(max(0.0, started + moment - time.monotonic()))
        run(built_binary("mobifs"), "touch", mountpoint)


def measured(trace: Path, policy: str) -> tuple[Counts, str]:
    """What came of it on a real filesystem, and what the daemon says of it."""
    mobifs, lab = built_binary("mobifs"), built_binary("mobifs-lab")
    touches = user_times(trace)
    with Cleanup() as cleanup:
        scratch = scratch_dir(cleanup, "sim-native")
        disk = LoopImage(cleanup, scratch, "ext4", IMAGE_MEBIBYTES, options="data=journal")
        place = disk.mountpoint / "replay"
        place.mkdir()
        run(mobifs, "steer", "--config", configuration(scratch, policy), disk.mountpoint)
        stop = cleanup.enter_context(Cleanup())
        stop.callback(run, mobifs, "steer", "--stop", disk.mountpoint)
        command = [mobifs, "run", "--", lab, "trace", "replay", "--wait", "--json", trace, place]
        replay = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        cleanup.callback(replay.kill)
        assert replay.stderr is not None
        said = ""
        while "the trace begins with a line" not in said:
            said = replay.stderr.readline()
            if not said:
                raise Failed(f"the replay of {trace} has ended: {replay.communicate()[1]}")
        for _ in range(2):
            disk.sync()
            time.sleep(REST_SECONDS)
        before, sent_before = status(disk.mountpoint), disk.bytes_written()
        first = commits_so_far(disk.device)
        user = threading.Thread(target=play_user, args=(touches, disk.mountpoint), daemon=True)
        user.start()
        printed, errors = replay.communicate("\n")
        user.join()
        if replay.returncode != 0:
            raise Failed(f"the replay of {trace} failed: {errors}")
        run(mobifs, "sync", "--commit-only", disk.mountpoint)
        last = commits_so_far(disk.device)
        after = status(disk.mountpoint)
        stop.close()
        disk.sync()
        sent = disk.bytes_written() - sent_before
        run("umount", disk.mountpoint)
        own = transactions(disk.image)
        if len(own) < last:
            raise Failed(f"{trace} writes more than the journal holds, so what it flushed is not seen")
        own = own[first:last]
    content = sum(each.content for each in own)
    metadata = sum(each.metadata for each in own)
    counted = [all_["apps"][0]["bytes_sent_to_store"] >> 10 for all_ in (before, after)]
    others = [each["native"]["other_commits"] for each in (before, after)]
    late_ms = json.loads(printed)["late_max_ns"] / 1e6
    note = (
        f"{trace.name}, {policy or 'default'}: {len(own)} transactions with {metadata} blocks of "
        f"metadata, {others[1] - others[0]} not asked for by the daemon, which has counted "
        f"{counted[1] - counted[0]} KiB; events at most {late_ms:.0f} ms late"
    )
    return Counts(content * BLOCK_BYTES / 1024, sent / 1024), note


def simulated(trace: Path, policy: str) -> Counts:
    name = f"native-ext4:{policy}" if policy else "native-ext4"
    lab = built_binary("mobifs-lab")
    done = subprocess.run(
        [lab, "sim", "--policy", name, "--against", "ext4", "--json", trace],
        capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode != 0:
        raise Failed(f"mobifs-lab sim: {done.stderr}")
    found = json.loads(done.stdout)["traces"][0]["contenders"][0]
    return Counts(found["flushed_bytes"] / 1024, found["device"]["written_bytes"] / 1024)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--policy", action="append", metavar="KEY=VALUE,...", default=[])
    parser.add_argument("traces", nargs="+", type=Path, metavar="TRACE")
    arguments = parser.parse_args()
    if (reason := loop_devices_work()) is not None:
        raise Failed(f"this needs a filesystem of its own: {reason}")
    for tool in ("debugfs", "dumpe2fs"):
        if find_tool(tool) is None:
            raise Failed(f"{tool} (e2fsprogs) is not installed")
    rows = []
    for trace in arguments.traces:
        for policy in arguments.policy or [""]:
            model = simulated(trace, policy)
            real, note = measured(trace, policy)
            say(note)
            name = f"{trace.name} {policy or 'default'}"
            cells = [model.flushed, real.flushed, model.device, real.device]
            shown = [f"{cell:,.0f}" for cell in cells]
            shown.insert(2, ratio(real.flushed, model.flushed))
            rows.append([name, *shown, ratio(real.device, model.device)])
    header = ["KiB", "flushed: sim", "real", "", "device: sim", "real", ""]
    say("\n" + machine.one_line(machine.describe(Path("/"))))
    say(table(header, rows))
    return 0


if __name__ == "__main__":
    main_guard(main)
