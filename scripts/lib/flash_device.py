"""A modelled flash device with an ext4 on it, and what reached its cells."""

from __future__ import annotations

import json
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lib.disk import LoopImage, is_mounted, unmount
from lib.process import Cleanup, Failed, built_binary, find_tool, run

# What one program of the flash writes at least; the model counts in these.
SLOT_BYTES = 4096
# A device that has programmed nothing for so long has nothing left to do.
IDLE_S = 1.0
# Energy of operations; idle power depends on how long we look.
ENERGY = ("program_mj", "read_mj", "erase_mj", "transfer_mj")


@dataclass(frozen=True)
class Spent:
    """What the device has done since some moment."""

    programmed_bytes: int
    host_bytes: int
    erases: int
    energy_mj: float

    def __sub__(self, earlier: Spent) -> Spent:
        return Spent(
            self.programmed_bytes - earlier.programmed_bytes,
            self.host_bytes - earlier.host_bytes,
            self.erases - earlier.erases,
            self.energy_mj - earlier.energy_mj,
        )


class FlashDevice:
    """`mobifs flash serve` behind a loop device, formatted and mounted (root only)."""

    def __init__(
        self,
        cleanup: Cleanup,
        directory: Path,
        preset: str,
        mebibytes: int,
        scale: float,
        *,
        options: str = "defaults",
    ) -> None:
        """`options`: how the ext4 is mounted."""
        self.binary = built_binary("mobifs")
        self.image = directory / "flash.img"
        self.mountpoint = directory / "flash"
        self.mountpoint.mkdir()
        # Formatting takes as long as on the device; it is not measured.
        arguments = ["--preset", preset, "--size", f"{mebibytes}MiB", "--scale", str(scale)]
        self.server = subprocess.Popen(
            [self.binary, "flash", "serve", *arguments, "--loop", "--json", self.image],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        cleanup.callback(self.stop)
        assert self.server.stdout is not None  # asked for above
        ready = self.server.stdout.readline()
        if not ready:
            raise Failed("the flash device could not be served; see the message above")
        self.device = Path(json.loads(ready)["loop_device"])
        make = find_tool("mkfs.ext4")
        if make is None:
            raise Failed("mkfs.ext4 is not installed; run `make setup`")
        # Nothing is left for the kernel to initialise while we measure.
        run(make, "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", self.device)
        run("mount", "-o", options, self.device, self.mountpoint)
        cleanup.callback(unmount, self.mountpoint)

    def cut(self, seed: int) -> None:
        """Cuts the power: of what was not durable a part chosen by `seed` survives."""
        run(self.binary, "flash", "cut", "--keep", f"random:{seed}", self.image)

    def power_on(self) -> None:
        """After a cut, and once no process uses the filesystem any more: the device recovers, the
        check of the filesystem finds nothing, and it is mounted again."""
        deadline = time.monotonic() + 60
        while is_mounted(self.mountpoint):
            done = subprocess.run(["umount", self.mountpoint], capture_output=True, text=True)
            if done.returncode != 0 and time.monotonic() > deadline:
                raise Failed(f"{self.mountpoint} is still in use: {done.stderr}")
            # A killed daemon's files are closed a little later.
            time.sleep(0.05)
        said = run(self.binary, "flash", "power-on", "--json", self.image)
        self.device = Path(json.loads(said)["loop_device"])
        run("mount", self.device, self.mountpoint)
        unmount(self.mountpoint)
        check = find_tool("e2fsck")
        if check is None:
            raise Failed("e2fsck is not installed; run `make setup`")
        run(check, "-f", "-n", self.device)
        run("mount", self.device, self.mountpoint)

    def stats(self) -> dict[str, Any]:
        return json.loads(run(self.binary, "flash", "stats", "--json", self.image))["device"]

    def spent(self) -> Spent:
        """Call it when everything that should count has been synced."""
        stats = self.stats()
        causes = [cause for cause in stats["flash"].values() if isinstance(cause, dict)]
        return Spent(
            programmed_bytes=sum(cause["slots_programmed"] for cause in causes) * SLOT_BYTES,
            host_bytes=stats["host_sectors_written"] * 512,
            erases=sum(cause["erases"] for cause in causes),
            energy_mj=sum(stats["energy"][kind] for kind in ENERGY),
        )

    def wait_until_idle(self) -> None:
        """Waits until everything is on the device and it does nothing in the background: it moves
        what small flushes put into its SLC blocks to others while it is idle, and whoever comes
        while they are full pays for the one before."""
        run("sync", "--file-system", self.mountpoint)
        done = self.spent()
        quiet_since = time.monotonic()
        while time.monotonic() - quiet_since < IDLE_S:
            time.sleep(0.2)
            now = self.spent()
            if (now.programmed_bytes, now.erases) != (done.programmed_bytes, done.erases):
                done, quiet_since = now, time.monotonic()

    def stop(self) -> None:
        self.server.terminate()
        try:
            self.server.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.server.kill()
            self.server.wait()


def ext4_disk(
    cleanup: Cleanup, scratch: Path, preset: str | None, mebibytes: int
) -> FlashDevice | LoopImage:
    """A new ext4, mounted: on a modelled device, or in an image whose room is allocated."""
    if preset:
        return FlashDevice(cleanup, scratch, preset, mebibytes, 1)
    return LoopImage(cleanup, scratch, "ext4", mebibytes, allocated=True)
