"""Disk images on loop devices, and how many bytes reached a device."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from lib.process import Cleanup, Failed, find_tool, is_root, run


def scratch_dir(cleanup: Cleanup, purpose: str) -> Path:
    """A directory on a real disk (not tmpfs) that goes away at the end.

    `MOBIFS_SCRATCH` chooses the disk.
    """
    parent = Path(os.environ.get("MOBIFS_SCRATCH", "/var/tmp"))
    path = Path(tempfile.mkdtemp(prefix=f"mobifs-{purpose}-", dir=parent))
    path.chmod(0o755)
    cleanup.callback(shutil.rmtree, path, ignore_errors=True)
    return path


def is_mounted(mountpoint: Path) -> bool:
    wanted = str(mountpoint.resolve())
    with open("/proc/self/mounts", encoding="utf-8", errors="replace") as mounts:
        return any(line.split(" ")[1] == wanted for line in mounts)


def unmount(mountpoint: Path) -> None:
    """Takes away whatever is mounted there; lazily if it is busy, so that nothing stays."""
    while is_mounted(mountpoint):
        if subprocess.run(["umount", mountpoint], capture_output=True).returncode != 0:
            run("umount", "--lazy", mountpoint)


class LoopImage:
    """A file formatted as a filesystem and mounted through a loop device (root only).

    Direct I/O on the loop device: what the filesystem flushed is in the image file, and the
    device's own counter says what was written.
    """

    def __init__(
        self,
        cleanup: Cleanup,
        directory: Path,
        filesystem: str,
        mebibytes: int,
        *,
        allocated: bool = False,
        options: str = "defaults",
    ) -> None:
        """`options`: how it is mounted. With `allocated`, the image file has all its blocks: a bench then measures the
        filesystem in the image and not how the one below allocates."""
        self.image = directory / f"{filesystem}-{len(list(directory.glob('*.img')))}.img"
        self.mountpoint = self.image.with_suffix("")
        self.mountpoint.mkdir()
        with open(self.image, "wb") as image:
            image.truncate(mebibytes << 20)
            if allocated:
                zeros = bytes(1 << 20)
                for _ in range(mebibytes):
                    image.write(zeros)
                os.fsync(image.fileno())
        make = find_tool(f"mkfs.{filesystem}")
        if make is None:
            raise Failed(f"mkfs.{filesystem} is not installed; run `make setup`")
        quiet = ["-q", "-F"] if filesystem == "ext4" else ["-q", "-f"]
        run(make, *quiet, self.image)
        self.device = Path(run("losetup", "--find", "--show", "--direct-io=on", self.image).strip())
        cleanup.callback(run, "losetup", "--detach", self.device)
        run("mount", "-o", options, self.device, self.mountpoint)
        cleanup.callback(unmount, self.mountpoint)

    def bytes_written(self) -> int:
        """Bytes that the filesystem has sent to its device so far."""
        return device_bytes_written(self.device)

    def sync(self) -> None:
        run("sync", "--file-system", self.mountpoint)

    def wait_until_idle(self) -> None:
        """As of a modelled device: a disk of this machine shows no work in the background."""
        self.sync()


def device_bytes_written(device: Path) -> int:
    fields = Path(f"/sys/class/block/{device.name}/stat").read_text().split()
    return int(fields[6]) * 512


def process_bytes_written(pid: int | str) -> int:
    """Bytes a process caused to be sent to storage, as the kernel accounts them."""
    for line in Path(f"/proc/{pid}/io").read_text().splitlines():
        if line.startswith("write_bytes:"):
            return int(line.split()[1])
    raise Failed(f"/proc/{pid}/io has no write_bytes")


def loop_devices_work() -> str | None:
    """None if loop images can be used here, else the reason."""
    if not is_root():
        return "not root, so no loop device"
    if find_tool("losetup") is None or not Path("/dev/loop-control").exists():
        return "no loop devices on this system"
    return None
