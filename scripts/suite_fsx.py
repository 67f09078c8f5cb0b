#!/usr/bin/env python3
"""fsx on a MobiFS mount, then rounds cut by a power failure.

  suite_fsx.py [--bare] [--operations N] [--rounds N] [--seed N]

Operations, mmap among them, run on a mount that has no reason to commit, half as many on one that
commits and applies all the time, and half of these on such a one whose daemon is killed again and
again: what is in memory, in the journal and below lies on top of each other in every way then.

In a cut round fsx runs, the mount is synced at one moment and cut at a later one; after
recovery the file must be a state that fsx really made, at or after the sync. Every other round
is on a mount that commits all the time.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lib.disk import LoopImage, loop_devices_work, scratch_dir
from lib.fsx_history import History, locate, random_buffer, run_plain
from lib.mount import MobiMount
from lib.process import ROOT, Cleanup, Failed, main_guard, say, suite_binary

CONFIG = ROOT / "scripts" / "suites" / "fsx.toml"
FILE_BYTES = 262144
# Commits every 20 ms, a journal that is soon full, and applies in each pause.
BUSY = '''
journal_bytes = "4MiB"
apply_idle_ms = 50
[defaults]
age_max_ms = 20
'''


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bare", action="store_true", help="no MobiFS: the disk itself, no cut")
    parser.add_argument("--operations", type=int, default=40_000)
    parser.add_argument("--rounds", type=int, default=20, help="rounds with a power cut")
    parser.add_argument("--seed", type=int, default=20150708)
    return parser.parse_args()


def check_oracle(scratch: Path, log: Path, file: Path, seed: int) -> None:
    """The replayed log must end in the very file: else the cut rounds would prove nothing."""
    history = History(log, random_buffer(scratch, seed, FILE_BYTES))
    last = b""
    for _, last in history.states():
        pass
    if last != file.read_bytes():
        raise Failed("the replay of fsx's log differs from the file that fsx left")


def operations_done(log: Path) -> int:
    """The number of the newest operation in a log that is being written."""
    tail = log.read_bytes()[-4096:].decode(errors="replace").splitlines()
    for line in reversed(tail[:-1]):
        words = line.replace("]", " ").split()
        if len(words) > 2 and words[0].startswith("[INFO") and words[2].isdigit():
            return int(words[2])
    return 0


def wait_for(log: Path, process: subprocess.Popen[bytes], operation: int) -> None:
    deadline = time.monotonic() + 300
    while operations_done(log) < operation:
        if process.poll() is not None:
            raise Failed(f"fsx ended by itself:\n{log.read_text(errors='replace')[-3000:]}")
        if time.monotonic() > deadline:
            raise Failed(f"fsx did not reach operation {operation} in 300 s")
        time.sleep(0.002)


def cut_round(mount: MobiMount, scratch: Path, seed: int, per_round: int) -> str:
    chance = random.Random(seed)
    sync_at = chance.randrange(1, per_round // 2)
    cut_at = chance.randrange(sync_at, per_round)
    file = mount.mountpoint / "fsx" / f"file-{seed}"
    file.parent.mkdir(exist_ok=True)
    log = scratch / f"cut-{seed}.log"
    command = [suite_binary("fsx"), "-v", "-f", CONFIG, "-S", str(seed), "-P", scratch, file]
    with open(log, "wb") as sink:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink
        )
    try:
        wait_for(log, process, sync_at)
        synced = operations_done(log)
        mount.sync()
        wait_for(log, process, cut_at)
        mount.cut_power()
    finally:
        # The dead mount fails its next operation; the kill only bounds the wait.
        process.kill()
        process.wait()
    mount.mount()
    history = History(log, random_buffer(scratch, seed, FILE_BYTES))
    # The operation logged last before the sync may itself have been under way.
    kept = locate(file.read_bytes(), history, max(synced - 1, 0))
    file.unlink()
    log.unlink()
    return f"synced after {synced}, cut after {history.last_operation()}, recovered {kept}"


def plain_run(directory: Path, scratch: Path, seed: int, operations: int) -> None:
    file = directory / "fsx" / "file"
    file.parent.mkdir(exist_ok=True)
    log = scratch / "plain.log"
    run_plain(log, file, CONFIG, seed, operations)
    check_oracle(scratch, log, file, seed)
    file.unlink()


@contextmanager
def killing(mount: MobiMount) -> Iterator[list[int]]:
    """Meanwhile the daemon is killed four times a second; yields those that were."""
    supervisor, _ = mount.processes()
    children = Path(f"/proc/{supervisor}/task/{supervisor}/children")
    killed: list[int] = []
    ended = threading.Event()

    def kill_daemons() -> None:
        while not ended.wait(0.25):
            # None between two of them.
            for pid in map(int, children.read_text().split()):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)

    killer = threading.Thread(target=kill_daemons)
    killer.start()
    try:
        yield killed
    finally:
        ended.set()
        killer.join()


def plain_runs(
    quiet: MobiMount, busy: MobiMount, scratch: Path, options: argparse.Namespace
) -> Iterator[str]:
    """Runs without a cut; yields what each was."""
    seed, operations = options.seed, options.operations
    plain_run(quiet.mountpoint, scratch, seed, operations)
    yield f"{operations} operations, seed {seed}, no commit"
    seed, operations = seed + 1, max(operations // 2, 1)
    plain_run(busy.mountpoint, scratch, seed, operations)
    commits = busy.status()["store"]["commits"]
    if not commits:
        raise Failed("fsx was done before anything was committed; give it more --operations")
    yield f"{operations} operations, seed {seed}, {commits} commits"
    seed, operations = seed + 1, max(operations // 2, 1)
    with killing(busy) as killed:
        plain_run(busy.mountpoint, scratch, seed, operations)
    if not killed:
        raise Failed("fsx was done before a daemon was killed; give it more --operations")
    yield f"{operations} operations, seed {seed}, {len(killed)} daemons killed"


def mounts(cleanup: Cleanup, lower: Path, scratch: Path) -> list[MobiMount]:
    """One with the default configuration and a busy one."""
    made = []
    for name, config in (("quiet", None), ("busy", BUSY)):
        mount = MobiMount(cleanup, lower / name, scratch / name, config)
        mount.mount()
        made.append(mount)
    return made


def main() -> int:
    options = arguments()
    reason = loop_devices_work()
    if reason or not Path("/dev/fuse").exists():
        say(f"SKIPPED fsx: {reason or 'no /dev/fuse'}")
        say("0 passed, 0 failed, 1 skipped")
        return 0
    passed = failed = 0
    with Cleanup() as cleanup:
        scratch = scratch_dir(cleanup, "fsx")
        lower = LoopImage(cleanup, scratch, "ext4", 1024)
        if options.bare:
            plain_run(lower.mountpoint, scratch, options.seed, options.operations)
            say(f"fsx on ext4: {options.operations} operations\n1 passed, 0 failed, 0 skipped")
            return 0
        quiet, busy = mounts(cleanup, lower.mountpoint, scratch)
        for words in plain_runs(quiet, busy, scratch, options):
            passed += 1
            say(f"fsx: {words}: ok")
        per_round = max(options.operations // max(options.rounds, 1), 10)
        for number in range(options.rounds):
            seed = options.seed + 1 + number
            mount = busy if number % 2 else quiet
            try:
                words = cut_round(mount, scratch, seed, per_round)
            except Failed as failure:
                failed += 1
                say(f"fsx round {number}, seed {seed}: FAILED: {failure}")
                mount.end()
                mount.mount()
                continue
            passed += 1
            say(f"fsx round {number}, seed {seed}: {words}")
    say(f"{passed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    main_guard(main)
