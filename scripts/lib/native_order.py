"""Steps in one order over several files, and what there is after so many of them.

As a program, in the guests of scripts/native-guest.sh and scripts/native-systemd.sh: makes a directory's first
state (`begin`), or does the steps in it (`write`), also without end (`go-on`).
"""
import ctypes
import os
import signal
import struct
import sys
import time
from pathlib import Path

SLOTS = 8
PAGE = 4096
RECORD = 128
# A claim says what is durable in the file of records outside, after so many steps.
CLAIM_EVERY = 60
OUTSIDE_PAGES = 64
SYS_FSYNC = 74


def page(number):
    return struct.pack("<Q", number) * (PAGE // 8)


def record(number):
    return b"%0*d\n" % (RECORD - 1, number)


def step(number):
    """What a step does: each is one call, and so whole or not at all."""
    kind, turn = number % 6, number // 6
    if number % CLAIM_EVERY == 0:
        return ("write", "claim", number)
    if kind == 0:
        return ("write", f"slot{turn % SLOTS}", number)
    if kind == 1:
        return ("append", "log", number)
    if kind == 2:
        old, new = ("left", "right")[:: 1 if turn % 2 == 0 else -1]
        return ("rename", f"{old}/x", f"{new}/x")
    if kind == 3:
        return ("create", f"made/{turn}", None)
    if kind == 4:
        return ("write", f"made/{turn}", number)
    return ("unlink", f"made/{turn - 20}", None)


def first_state():
    state = {f"slot{slot}": page(0) for slot in range(SLOTS)}
    state |= {"claim": page(0), "log": b"", "left/x": page(1)}
    return state


def apply(state, number):
    kind, name, value = step(number)
    if kind == "write":
        state[name] = page(value)
    elif kind == "append":
        state[name] += record(value)
    elif kind == "rename":
        state[value] = state.pop(name)
    elif kind == "create":
        state[name] = b""
    else:
        state.pop(name, None)


def read_state(directory):
    found = {}
    for path in sorted(Path(directory).rglob("*")):
        if path.is_file():
            found[str(path.relative_to(directory))] = path.read_bytes()
    return found


def differences(found):
    """How far the state is, and how it differs from the one that there was after so many steps; nothing if
    it is that one."""
    numbers = [0]
    for name, content in found.items():
        if name == "log":
            numbers += [int(line) for line in content.split() if line.isdigit()]
        elif not name.endswith("/x") and len(content) >= 8:
            numbers.append(struct.unpack("<Q", content[:8])[0])
    least = max(numbers)
    state = first_state()
    for number in range(1, least + 1):
        apply(state, number)
    best = None
    # The last steps may be ones that show no number.
    for number in range(least, least + 7):
        if number > least:
            apply(state, number)
        differing = [name for name in state.keys() | found.keys() if state.get(name) != found.get(name)]
        if best is None or len(differing) < len(best[1]):
            best = (number, sorted(differing))
    return best


def begin(directory):
    for name, content in first_state().items():
        path = Path(directory, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    for name in ("right", "made"):
        Path(directory, name).mkdir()
    os.sync()


class Syncer:
    """Calls fsync by the C library, and past it."""

    def __init__(self):
        self.libc = ctypes.CDLL(None, use_errno=True)

    def sync(self, descriptor, number):
        if number % 2 == 0:
            os.fsync(descriptor)
        elif self.libc.syscall(SYS_FSYNC, descriptor) != 0:
            raise OSError(ctypes.get_errno(), "fsync")


def do_step(directory, number, syncer):
    """One step, with an fsync."""
    kind, name, value = step(number)
    path = os.path.join(directory, name)
    if kind in ("write", "append", "create"):
        flags = os.O_WRONLY | {"append": os.O_APPEND, "create": os.O_CREAT | os.O_EXCL}.get(kind, 0)
        descriptor = os.open(path, flags, 0o644)
        if kind != "create":
            os.write(descriptor, page(value) if kind == "write" else record(value))
    else:
        if kind == "rename":
            os.rename(path, os.path.join(directory, value))
        elif os.path.exists(path):
            os.unlink(path)
        descriptor = os.open(directory, os.O_RDONLY)
    syncer.sync(descriptor, number)
    os.close(descriptor)


def write(directory, outside, steps):
    syncer = Syncer()
    records = os.open(outside, os.O_RDWR) if outside else None
    for number in range(1, steps + 1):
        if step(number)[1] == "claim" and records is not None:
            turn = number // CLAIM_EVERY
            os.pwrite(records, page(number), turn % OUTSIDE_PAGES * PAGE)
            syncer.sync(records, turn)
        do_step(directory, number, syncer)
    print(f"{steps} steps in {directory}, each with an fsync", flush=True)


# Of a step: its number, and when it had returned, in nanoseconds of CLOCK_MONOTONIC.
TIME = struct.Struct("<QQ")


def go_on(directory, times, pause_s):
    """Steps until SIGTERM comes, from where `times` ends, which does not lie on the same disk."""
    syncer, ended = Syncer(), []
    signal.signal(signal.SIGTERM, lambda *_: ended.append(True))
    number = os.path.getsize(times) // TIME.size if os.path.exists(times) else 0
    with open(times, "ab", buffering=0) as returned:
        while not ended:
            number += 1
            do_step(directory, number, syncer)
            returned.write(TIME.pack(number, time.monotonic_ns()))
            time.sleep(pause_s)


def returned_before(times, age_s):
    """The last step that had returned so long ago."""
    before = time.monotonic_ns() - int(age_s * 1e9)
    content = Path(times).read_bytes()
    last = 0
    for number, at in TIME.iter_unpack(content[: len(content) // TIME.size * TIME.size]):
        if at <= before:
            last = number
    return last


def lost_claims(found, outside):
    """Records outside that a claim says are durable and that are not there."""
    claimed = struct.unpack("<Q", found["claim"][:8])[0]
    content = Path(outside).read_bytes()
    lost = []
    oldest = max(1, claimed // CLAIM_EVERY - OUTSIDE_PAGES + 2)
    for turn in range(oldest, claimed // CLAIM_EVERY + 1):
        at = turn % OUTSIDE_PAGES * PAGE
        there = struct.unpack("<Q", content[at : at + 8])[0]
        if there < turn * CLAIM_EVERY:
            lost.append(turn)
    return lost


def sync_often(path, count):
    """For counting flushes: writes and calls fsync."""
    syncer = Syncer()
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    for turn in range(count):
        os.pwrite(descriptor, b"%08d" % turn, 0)
        syncer.sync(descriptor, turn)


if __name__ == "__main__":
    if sys.argv[1] == "begin":
        begin(sys.argv[2])
    elif sys.argv[1] == "sync":
        sync_often(sys.argv[2], int(sys.argv[3]))
    elif sys.argv[1] == "go-on":
        go_on(sys.argv[2], sys.argv[3], float(sys.argv[4]))
    elif sys.argv[1] == "returned-before":
        print(returned_before(sys.argv[2], float(sys.argv[3])))
    else:
        write(sys.argv[2], sys.argv[3] if sys.argv[3] != "-" else None, int(sys.argv[4]))
