"""A MobiFS mount for scripts: the real binary, always unmounted in the end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from lib.disk import is_mounted
from lib.process import Cleanup, Failed, built_binary, is_root, run


class MobiMount:
    """One store and its mount point; mounted, cut and mounted again as a test needs."""

    def __init__(
        self, cleanup: Cleanup, store: Path, mountpoint: Path, config: str | None = None
    ) -> None:
        self.binary = built_binary("mobifs")
        self.store = store
        self.mountpoint = mountpoint
        store.mkdir(exist_ok=True)
        mountpoint.mkdir(exist_ok=True)
        self.options: list[str] = []
        if config is not None:
            path = mountpoint.with_name(mountpoint.name + ".toml")
            path.write_text(config)
            self.options = ["--config", str(path)]
        cleanup.callback(self.end)

    def mount(self) -> None:
        run(self.binary, "mount", *self.options, self.store, self.mountpoint)

    def umount(self) -> None:
        run(self.binary, "umount", self.mountpoint)

    def sync(self, *options: str) -> None:
        run(self.binary, "sync", *options, self.mountpoint)

    def cut_power(self) -> None:
        """Ends the mount as a power cut would; returns when the daemon is gone.

        The daemon's address is asked for before the cut: afterwards the daemon does not answer.
        """
        pid = self.status()["daemon_pid"]
        run(self.binary, "drill", "power-cut", "--yes", self.mountpoint)
        deadline = time.monotonic() + 60
        while Path(f"/proc/{pid}").exists() and not is_zombie(pid):
            if time.monotonic() > deadline:
                raise Failed(f"daemon {pid} still runs 60 s after the power cut")
            time.sleep(0.02)
        self.detach()

    def processes(self) -> list[int]:
        """The supervisor and the daemon."""
        pid = self.status()["daemon_pid"]
        supervisor = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
        return [int(supervisor), pid]

    def kill(self, processes: list[int]) -> None:
        """Ends them, whatever they are doing, and takes the mount away."""
        for process in processes:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.detach()

    def status(self) -> dict[str, Any]:
        return json.loads(run(self.binary, "status", "--json", self.mountpoint))

    def detach(self) -> None:
        """Takes a dead mount out of the tree, if it is still there."""
        for _ in range(10):
            if not is_mounted(self.mountpoint):
                return
            tool = ["umount", "-l"] if is_root() else ["fusermount3", "-u", "-z"]
            subprocess.run([*tool, str(self.mountpoint)], capture_output=True)
        raise Failed(f"cannot unmount {self.mountpoint}")

    def end(self) -> None:
        """For cleanup: a clean unmount if possible, any unmount otherwise."""
        if is_mounted(self.mountpoint):
            subprocess.run([self.binary, "umount", self.mountpoint], capture_output=True)
            self.detach()


def is_zombie(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] == "Z"
