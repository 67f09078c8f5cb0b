#!/usr/bin/env python3
"""Whether this kernel's ext4 keeps files that are shortened and allocated again at one point in time.

With data=journal a crash should take a filesystem back to one moment. A program writes within pages,
shortens and allocates one file, and nothing of MobiFS takes part; then the filesystem is shut down as by
a power cut (EXT4_IOC_SHUTDOWN, its log not flushed), and the file compared with each state that it had.
docs/NATIVE.md#faults-of-the-kernel says what was seen. Takes root, loop devices, and mkfs.ext4.

  data_journal_fault.py [--rounds N] [--block-bytes 1024|2048|4096] [--seed N] [--control]
                        [--zeroing KIB] [--whole-pages]

With --control the program only writes. --zeroing sets extent_max_zeroout_kb, which steering sets to 0; with
--whole-pages the file is shortened to multiples of 4096 bytes only. Ends with 1 if a state was found that
never existed.
"""

from __future__ import annotations

import argparse
import fcntl
import mmap
import os
import random
import signal
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from lib.disk import loop_devices_work, scratch_dir
from lib.process import Cleanup, Failed, main_guard, run, say

IMAGE_MEBIBYTES = 128
PAGE_BYTES = 4096
FILE_BYTES = 15 * PAGE_BYTES
SECONDS_MIN = 2.5
KINDS = ["write"] * 7 + ["shorten"] + ["allocate"] * 2
SHUTDOWN = 0x8004587D
NO_LOG_FLUSH = 2


def operations(seed: int, options: argparse.Namespace) -> Iterator[tuple[str, int, int, int]]:
    """Endlessly: what is done, where, with how many bytes, of which value."""
    dice = random.Random(seed)
    kinds = ["write"] if options.control else KINDS
    number = 0
    while True:
        number += 1
        at, length = dice.randrange(FILE_BYTES), dice.randrange(1, PAGE_BYTES)
        kind = dice.choice(kinds)
        if kind == "write":
            length = min(length, PAGE_BYTES - at % PAGE_BYTES)
        elif kind == "shorten" and options.whole_pages:
            at -= at % PAGE_BYTES
        yield kind, at, length, 1 + number % 255


def work(path: Path, done: mmap.mmap, steps: Iterator[tuple[str, int, int, int]]) -> None:
    """The program; the number of its operations is in `done`, which is not on the filesystem."""
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    for number, (kind, at, length, value) in enumerate(steps, start=1):
        if kind == "write":
            os.pwrite(file, bytes([value]) * length, at)
        elif kind == "shorten":
            os.ftruncate(file, at)
        else:
            os.posix_fallocate(file, at, length)
        done[:8] = struct.pack("=Q", number)


def existed(found: bytes, count: int, steps: Iterator[tuple[str, int, int, int]]) -> bool:
    """Whether the file had this content after one of so many operations, or the one under way."""
    content = bytearray()
    if not found:
        return True
    for _, (kind, at, length, value) in zip(range(count + 1), steps):
        if kind == "shorten":
            content = content[:at].ljust(at, b"\0")
        else:
            content = content.ljust(max(len(content), at + length), b"\0")
            if kind == "write":
                content[at : at + length] = bytes([value]) * length
        if content == found:
            return True
    return False


def crash(mountpoint: Path) -> None:
    directory = os.open(mountpoint, os.O_RDONLY)
    fcntl.ioctl(directory, SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
    os.close(directory)


def mounts(image: Path, mountpoint: Path) -> bool:
    command = ["mount", "-o", "loop,data=journal,commit=1", image, mountpoint]
    return subprocess.run(command, capture_output=True).returncode == 0


def set_zeroing(mountpoint: Path, kib: int) -> None:
    device = run("findmnt", "-n", "-o", "SOURCE", mountpoint).strip()
    setting = Path("/sys/fs/ext4") / Path(device).name / "extent_max_zeroout_kb"
    setting.write_text(str(kib))


def one_round(directory: Path, options: argparse.Namespace, seed: int) -> str:
    """What was found: `right`, `wrong`, or `refused` by the mount."""
    image, mountpoint = directory / "image", directory / "mnt"
    mountpoint.mkdir(exist_ok=True)
    with open(image, "wb") as file:
        file.truncate(IMAGE_MEBIBYTES << 20)
    run("mkfs.ext4", "-q", "-b", str(options.block_bytes), "-J", "size=16", image)
    if not mounts(image, mountpoint):
        raise Failed("an ext4 with data=journal cannot be mounted through a loop device here")
    try:
        if options.zeroing is not None:
            set_zeroing(mountpoint, options.zeroing)
        done = mmap.mmap(-1, 8)
        writer = os.fork()
        if writer == 0:
            # It ends with an error when the filesystem is shut down.
            try:
                work(mountpoint / "file", done, operations(seed, options))
            finally:
                os._exit(0)
        time.sleep(SECONDS_MIN + seed % 16 / 8)
        crash(mountpoint)
        os.kill(writer, signal.SIGKILL)
        os.waitpid(writer, 0)
        run("umount", mountpoint)
        if not mounts(image, mountpoint):
            return "refused"
        (count,) = struct.unpack("=Q", done[:8])
        found = (mountpoint / "file").read_bytes()
        return "right" if existed(found, count, operations(seed, options)) else "wrong"
    finally:
        subprocess.run(["umount", mountpoint], capture_output=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--block-bytes", type=int, default=1024, choices=[1024, 2048, 4096])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--control", action="store_true")
    parser.add_argument("--zeroing", type=int)
    parser.add_argument("--whole-pages", action="store_true")
    options = parser.parse_args()
    reason = loop_devices_work()
    if reason is not None:
        raise Failed(f"this takes a disk of its own: {reason}")
    found = {"right": 0, "wrong": 0, "refused": 0}
    with Cleanup() as cleanup:
        directory = scratch_dir(cleanup, "data-journal")
        for number in range(options.rounds):
            result = one_round(directory, options, options.seed + number)
            found[result] += 1
            say(f"round {number + 1}: {result}")
    say(", ".join(f"{count} {name}" for name, count in found.items()))
    return 0 if found["wrong"] + found["refused"] == 0 else 1


if __name__ == "__main__":
    main_guard(main)
