"""Mount time and memory with a large tree: MobiFS reads what is used, not what is there."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

from lib.bench_cases import workload
from lib.mount import MobiMount
from lib.process import Cleanup, Failed, say

MOUNTS = 5


def resident_mebibytes(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise Failed(f"no VmRSS for process {pid}")


def large_tree(cleanup: Cleanup, scratch: Path, files: int) -> dict[str, Any]:
    """Makes the tree in the store directly, then mounts it several times."""
    say(f"  tree of {files:,} files: making it")
    store = scratch / "store-tree"
    workload(("make-tree", "--files", str(files)), store / "app", {})
    mount = MobiMount(cleanup, store, scratch / "tree")
    seconds, after_mount, after_use = [], [], []
    for _ in range(MOUNTS):
        start = time.monotonic()
        mount.mount()
        seconds.append(time.monotonic() - start)
        pid = mount.status()["daemon_pid"]
        after_mount.append(resident_mebibytes(pid))
        directory = mount.mountpoint / "app" / "directory-0"
        (directory / "new").write_text("x")
        if sum(1 for _ in directory.iterdir()) != min(files, 1000) + 1:
            raise Failed(f"{directory} does not list what is in it")
        after_use.append(resident_mebibytes(pid))
        (directory / "new").unlink()
        mount.umount()
    return {
        "files": files,
        "mount_seconds": statistics.median(seconds),
        "rss_after_mount_mib": statistics.median(after_mount),
        "rss_after_use_mib": statistics.median(after_use),
    }
