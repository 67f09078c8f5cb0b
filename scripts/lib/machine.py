"""What a measurement was made on."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from lib.process import ROOT


def filesystem_of(path: Path) -> dict[str, str]:
    """Device, type and options of the filesystem that holds `path`."""
    best: dict[str, str] = {}
    wanted = str(path.resolve()) + "/"
    for line in Path("/proc/self/mounts").read_text(errors="replace").splitlines():
        device, mountpoint, kind, options, *_ = line.split(" ")
        prefix = mountpoint.rstrip("/") + "/"
        if wanted.startswith(prefix) and len(prefix) >= len(best.get("prefix", "")):
            best = {"device": device, "type": kind, "options": options, "prefix": prefix}
    best.pop("prefix", None)
    return best


def cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def revision() -> str:
    done = subprocess.run(
        ["git", "-C", ROOT, "describe", "--always", "--dirty"], capture_output=True, text=True
    )
    return done.stdout.strip() or "unknown"


def describe(path: Path) -> dict[str, Any]:
    return {
        "kernel": platform.release(),
        "cpu": cpu_model(),
        "cpus": os.cpu_count(),
        "load_before": os.getloadavg()[0],
        "filesystem": filesystem_of(path),
        "revision": revision(),
    }


def one_line(machine: dict[str, Any]) -> str:
    disk = machine["filesystem"]
    return (
        f"Linux {machine['kernel']}, {machine['cpus']} × {machine['cpu']}, "
        f"{disk['type']} on {disk['device']} ({disk['options']}), "
        f"revision {machine['revision']}, load before {machine['load_before']:.2f}"
    )
