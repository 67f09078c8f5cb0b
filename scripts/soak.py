#!/usr/bin/env python3
"""Long load on a mount by programs that check themselves, and what the mount keeps afterwards.

After each part everything is deleted, and the daemon must have given back all memory, objects,
descriptors, threads and reserved room; its log must have no complaint.

  soak.py [--seconds N] [--files N] [--only WORD]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from lib.disk import LoopImage, loop_devices_work, scratch_dir
from lib.mount import MobiMount
from lib.process import ROOT, Cleanup, Failed, find_tool, main_guard, run, say
from lib.soak_farm import digests
from lib.soak_health import check_log, check_rest, held

IMAGE_MEBIBYTES = 8192
APPS = 16
FARM_PROCESSES = 64
CHURN_DIRECTORY_FILES = 1000
CHURN_PROGRESS_FILES = 1_000_000
# Everything of stress-ng's class "filesystem" that works on files of its own, and what works on
# mappings and pipes of files. Not: what needs a block device or looks at the kernel's own.
STRESSORS = (
    "access chdir chmod chown copy-file dentry dir dirdeep dirmany dnotify dup fallocate fanotify "
    "fcntl file-ioctl filename flock fpunch fsize fstat getdent handle hdd inode-flags inotify io "
    "iomix lease link locka lockf lockofd mknod open rename symlink sync-file touch utime xattr "
    "mmap mmapfork mmapmany msync seek sendfile splice revio readahead aio aiol"
).split()

FIO = """
[global]
directory={directory}
verify=crc32c
verify_fatal=1
do_verify=1
verify_state_save=0
size=48m
[mixed]
rw=randrw
bs=512-64k
ioengine=psync
numjobs=4
fsync=16
[mapped]
rw=randwrite
bs=4k
ioengine=mmap
[direct]
rw=randwrite
bs=4k
ioengine=libaio
iodepth=16
direct=1
[appended]
rw=write
bs=700-9000
bs_unaligned=1
ioengine=psync
fdatasync=7
"""


def tool(name: str) -> Path:
    found = find_tool(name)
    if found is None:
        raise Failed(f"{name} is not installed; run `scripts/setup.sh --soak`")
    return found


def checked(what: str, command: list[str | Path], seconds_max: float) -> str:
    """Runs a program that checks itself; what it said if it found something."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=seconds_max,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired as expired:
        raise Failed(f"{what} did not end in {seconds_max:.0f} s") from expired
    if done.returncode != 0:
        raise Failed(f"{what} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def stressors(app: Path, seconds: float, _files: int) -> str:
    program = tool("stress-ng")
    for name in STRESSORS:
        command = [program, f"--{name}", "2", "--verify", "--timeout", f"{seconds:.0f}s",
                   "--temp-path", app]  # fmt: skip
        # The slowest of them, `dirdeep`, removes what it made only when its time is up.
        checked(f"stress-ng --{name}", command, seconds * 10 + 120)
    return f"{len(STRESSORS)} stressors with verification, {seconds:.0f} s each"


def dbench(app: Path, seconds: float, _files: int) -> str:
    said = checked("dbench", [tool("dbench"), "-D", app, "-t", f"{seconds * 4:.0f}", "16"],
                   seconds * 10 + 120)  # fmt: skip
    return said.strip().splitlines()[-1]


def fio(app: Path, _seconds: float, _files: int) -> str:
    job = app / "job.fio"
    job.write_text(FIO.format(directory=app))
    checked("fio", [tool("fio"), "--minimal", job], 600)
    return "random, mapped, direct and appended writes, every block verified"


def farm(root: Path, seconds: float, _files: int) -> str:
    """Many processes over several apps; none may starve, all must find what they wrote."""
    program = ROOT / "scripts" / "lib" / "soak_farm.py"
    records = root / "expected"
    records.mkdir()
    workers = []
    for number in range(FARM_PROCESSES):
        directory = root / f"app{number % APPS}" / f"worker{number}"
        record = records / str(number)
        command = [sys.executable, program, directory, str(number), str(seconds * 4), record]
        workers.append((directory, record, subprocess.Popen(command, stdin=subprocess.DEVNULL)))
    failed = [directory for directory, _, worker in workers if worker.wait() != 0]
    if failed:
        raise Failed(f"{len(failed)} processes found what they had not written, see above")
    done = []
    for directory, record, _ in workers:
        expected = json.loads(record.read_text())
        done.append(expected["operations"])
        if digests(directory) != expected["files"]:
            raise Failed(f"{directory} has not what its process left there")
    return (
        f"{FARM_PROCESSES} processes over {APPS} apps, {sum(done):,} operations, "
        f"{min(done):,} to {max(done):,} by process"
    )


def churn(app: Path, _seconds: float, files: int) -> str:
    """Small files made and deleted again: nothing of them may stay anywhere."""
    made = 0
    began = time.monotonic()
    while made < files:
        if made and made % CHURN_PROGRESS_FILES == 0:
            say(f"churn: {made:,} of {files:,} ({time.monotonic() - began:.0f} s)")
        directory = app / f"d{made}"
        directory.mkdir()
        names = [directory / str(number) for number in range(CHURN_DIRECTORY_FILES)]
        for name in names:
            with open(name, "wb", buffering=0) as file:
                file.write(b"small")
        for name in names:
            name.unlink()
        directory.rmdir()
        made += len(names)
    return f"{made:,} files made and deleted"


PARTS: dict[str, Callable[[Path, float, int], str]] = {
    "stressors": stressors,
    "dbench": dbench,
    "fio": fio,
    "farm": farm,
    "churn": churn,
}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5, help="for each short part")
    parser.add_argument("--files", type=int, default=200_000, help="to make and delete")
    parser.add_argument("--only", choices=PARTS, help="one part")
    return parser.parse_args()


def main() -> int:
    options = parse()
    reason = loop_devices_work()
    if reason is not None:
        raise Failed(f"the soak needs a disk of its own: {reason}")
    with Cleanup() as cleanup:
        scratch = scratch_dir(cleanup, "soak")
        disk = LoopImage(cleanup, scratch, "ext4", IMAGE_MEBIBYTES).mountpoint
        mount = MobiMount(cleanup, disk / "store", scratch / "mnt")
        log = scratch / "log"
        mount.options += ["--log", str(log)]
        mount.mount()
        run("ls", "-la", mount.mountpoint)
        rest = held(mount)
        for name in [options.only] if options.only else PARTS:
            began = time.monotonic()
            work = mount.mountpoint / name
            work.mkdir()
            said = PARTS[name](work, options.seconds, options.files)
            # Once more in the lower filesystem, where it must be the same.
            if name == "farm":
                mount.umount()
                check_below(disk / "store" / name)
                mount.mount()
                rest = held(mount)
            shutil.rmtree(work)
            now = check_rest(mount, rest)
            check_log(log)
            say(f"{name}: {said}; {now.resident_kib >> 10} MiB resident afterwards "
                f"({time.monotonic() - began:.0f} s)")  # fmt: skip
        mount.umount()
        check_log(log)
        left = sorted(os.listdir(disk / "store"))
        if left != [".mobifs"]:
            raise Failed(f"after the unmount the store has {left}")
        run("umount", disk)
        run("e2fsck", "-f", "-n", disk.with_suffix(".img"))
    say("nothing was lost, nothing stayed")
    return 0


def check_below(store: Path) -> None:
    """After an unmount the plain files are what the processes wrote."""
    for record in sorted((store / "expected").iterdir()):
        number = int(record.name)
        directory = store / f"app{number % APPS}" / f"worker{number}"
        if digests(directory) != json.loads(record.read_text())["files"]:
            raise Failed(f"below, {directory.name} has not what its process left there")


if __name__ == "__main__":
    main_guard(main)
