"""Running commands, finding tools, cleaning up on the way out."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parent.parent.parent


class Failed(Exception):
    """Something a person should read; shown without a traceback."""


def say(text: str) -> None:
    """Progress, at once also into a pipe."""
    print(text, flush=True)


def run(*command: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    """Runs a command and returns what it printed; a failure carries everything it said."""
    words = [str(word) for word in command]
    done = subprocess.run(
        words,
        cwd=cwd,
        env=None if env is None else {**os.environ, **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    if done.returncode != 0:
        raise Failed(f"`{' '.join(words)}` ended with {done.returncode}:\n{done.stdout.strip()}")
    return done.stdout


def is_root() -> bool:
    return os.geteuid() == 0


def find_tool(name: str) -> Path | None:
    """A command on the path, or where only root usually looks."""
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    found = shutil.which(name, path=path)
    return Path(found) if found else None


def target_dir() -> Path:
    return Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))


def built_binary(name: str) -> Path:
    """A release binary of this workspace. `MOBIFS_BIN` names another `mobifs`."""
    chosen = os.environ.get("MOBIFS_BIN") if name == "mobifs" else None
    binary = Path(chosen) if chosen else target_dir() / "release" / name
    if not binary.exists():
        raise Failed(f"{binary} is not built; run `make build` first")
    return binary


def suite_binary(name: str) -> Path:
    """A test suite that `make setup` installed."""
    binary = Path(os.environ.get("MOBIFS_TOOLS", ROOT / ".cache" / "tools")) / "bin" / name
    if not binary.exists():
        raise Failed(f"{binary} is not there; run `make setup` first")
    return binary


class Cleanup(ExitStack):
    """An exit stack that also unwinds on SIGTERM and SIGINT."""

    def __enter__(self) -> "Cleanup":
        def stop(number: int, _frame: FrameType | None) -> None:
            raise SystemExit(128 + number)

        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, stop)
        super().__enter__()
        return self


def main_guard(main) -> None:  # noqa: ANN001 (a plain callable returning the exit status)
    """Runs `main`, shows a `Failed` as one message, exits with its status."""
    try:
        status = main()
    except Failed as failure:
        print(f"error: {failure}", file=sys.stderr)
        status = 1
    sys.exit(status)
