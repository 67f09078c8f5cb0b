"""The resources that a mount must have released once no process uses it any more."""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from lib.mount import MobiMount
from lib.process import Failed

# What may stay: pieces of the heap that something small keeps from being given back, ...
RESIDENT_KIB_GROWTH_MAX = 96 << 10
# ... and what the kernel still refers to: the directories above our own.
OBJECTS_MAX = 64
# The daemon gives back in quiet times, some seconds after the last change.
PATIENCE_SECONDS = 30


@dataclass(frozen=True)
class Held:
    """What a daemon holds at a moment."""

    descriptors: int
    threads: int
    resident_kib: int
    memory_bytes: int
    objects: int
    # Room in the lower filesystem that is reserved for changes that are not applied yet, ...
    reserved_bytes: int
    # ... and inodes, with the few that a mount always keeps for itself.
    reserved_inodes: int


def held(mount: MobiMount) -> Held:
    status = mount.status()
    process = Path("/proc") / str(status["daemon_pid"])
    resident = next(
        line for line in (process / "status").read_text().splitlines() if line.startswith("VmRSS:")
    )
    above, below = os.statvfs(mount.mountpoint), os.statvfs(mount.store)
    memory = status["memory"]
    return Held(
        descriptors=len(list((process / "fd").iterdir())),
        threads=len(list((process / "task").iterdir())),
        resident_kib=int(resident.split()[1]),
        memory_bytes=memory["used_bytes"] + memory["committed_held_bytes"],
        objects=memory["objects"],
        reserved_bytes=(below.f_bavail - above.f_bavail) * above.f_frsize,
        reserved_inodes=below.f_ffree - above.f_ffree,
    )


def excess(now: Held, rest: Held) -> list[str]:
    """What is more than it may be; `rest` is from before any work."""
    found = []
    if now.memory_bytes > 0:
        found.append(f"{now.memory_bytes} bytes of changes")
    if now.reserved_bytes > 0:
        found.append(f"{now.reserved_bytes} bytes reserved")
    if now.reserved_inodes > rest.reserved_inodes:
        found.append(f"{now.reserved_inodes} inodes reserved, {rest.reserved_inodes} at the start")
    if now.objects > OBJECTS_MAX:
        found.append(f"{now.objects} objects")
    if now.descriptors > rest.descriptors + 2:
        found.append(f"{now.descriptors} descriptors, {rest.descriptors} at the start")
    if now.threads > rest.threads:
        found.append(f"{now.threads} threads, {rest.threads} at the start")
    if now.resident_kib > rest.resident_kib + RESIDENT_KIB_GROWTH_MAX:
        found.append(f"{now.resident_kib} KiB resident, {rest.resident_kib} at the start")
    return found


def left_in_store(mount: MobiMount) -> list[str]:
    """What was deleted and is in the store's own directories. It may be for some seconds: what the
    kernel knew until now goes with the checkpointer's next round."""
    found = []
    for place in ("stage", "limbo", "lost"):
        left = sorted(path.name for path in (mount.store / ".mobifs" / place).iterdir())
        if left:
            found.append(f".mobifs/{place} has {len(left)} objects, such as {left[0]}")
    return found


def check_rest(mount: MobiMount, rest: Held) -> Held:
    """Waits until the mount has given everything back; fails if it does not."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        mount.sync()
        # The kernel forgets what it has looked up.
        subprocess.run(["sync"], check=True)
        Path("/proc/sys/vm/drop_caches").write_text("3")
        now = held(mount)
        found = excess(now, rest) + left_in_store(mount)
        if not found:
            break
        if time.monotonic() > deadline:
            raise Failed("still held with nothing to hold: " + "; ".join(found))
        time.sleep(1)
    return now


def check_log(log: Path) -> None:
    """A daemon at rest has had nothing to complain of."""
    text = log.read_text(errors="replace") if log.exists() else ""
    bad = [line for line in text.splitlines() if " ERROR " in line or " WARN " in line]
    if bad:
        raise Failed(f"the daemon complained {len(bad)} times, first: {bad[0]}")
