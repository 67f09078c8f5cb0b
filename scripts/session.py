#!/usr/bin/env python3
"""A recorded terminal session: plays it, or records it again with a real mount.

    session.py play [FILE]             at its own speed (--speed 2: twice as fast)
    session.py record [FILE]           as root: with the release build, on this machine's disk

The format is asciicast v2: one line of JSON about the session, then one for each piece of output, with its time in
seconds. Any player of that format plays it; FILE is dist/site/assets/session.cast.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "dist" / "site" / "assets" / "session.cast"
PROMPT = "$ "
# What is shown: commands, each with what it is there to show, as a comment of the shell.
COMMANDS = [
    "mkdir store data && mobifs mount store data      # two directories",
    "mkdir data/app && mobifs sync data",
    "dd if=/dev/zero of=data/app/file bs=4k count=1000 oflag=dsync   # 1,000 synchronous writes",
    "mobifs status data                               # what a power cut would take right now",
    "mobifs drill power-cut --yes data                # as if the power went this moment",
    "mobifs mount store data && ls -A data/app        # empty, as at the sync: a whole state",
    "echo kept > data/app/note && mobifs umount data",
    "cat store/app/note                               # the store has plain files",
]
SECONDS_PER_KEY = 0.025
SECONDS_BEFORE = 0.6
SECONDS_AFTER = 1.2


class Recorder:
    """Events with times, as they are shown."""

    def __init__(self) -> None:
        self.seconds = 0.5
        self.events: list[str] = []

    def show(self, text: str) -> None:
        event = [round(self.seconds, 3), "o", text.replace("\n", "\r\n")]
        self.events.append(json.dumps(event, ensure_ascii=False))

    def type(self, command: str) -> None:
        self.show(PROMPT)
        self.seconds += SECONDS_BEFORE
        for key in command:
            # The blanks before a comment come at once.
            self.seconds += 0 if key == " " else SECONDS_PER_KEY
            self.show(key)
        self.show("\n")

    def run(self, command: str, home: Path) -> None:
        self.type(command)
        began = time.monotonic()
        done = subprocess.run(["bash", "-c", command], cwd=home, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)  # fmt: skip
        self.seconds += time.monotonic() - began
        if done.stdout:
            self.show(done.stdout)
        if done.returncode != 0:
            raise SystemExit(f"`{command}` ended with {done.returncode}:\n{done.stdout}")
        self.seconds += SECONDS_AFTER


def record(file: Path) -> None:
    """In a mount namespace of its own, with a home directory on this machine's disk."""
    if os.geteuid() != 0:
        raise SystemExit("session.py record needs root, for a home directory of its own")
    scratch = os.environ.get("MOBIFS_SCRATCH", "/var/tmp")
    with tempfile.TemporaryDirectory(dir=scratch, prefix="mobifs-session.") as directory:
        (Path(directory) / "me").mkdir()
        again = [sys.executable, __file__, "inside", str(file)]
        inside = 'mount --make-rprivate / && mount --bind "$1" /home && shift && exec "$@"'
        command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        subprocess.run([*command, "sh", "-c", inside, "-", directory, *again], check=True)


def inside(file: Path) -> None:
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    directory = os.environ.get("MOBIFS_BIN_DIRECTORY", str(target / "release"))
    os.environ["PATH"] = f"{directory}:{os.environ['PATH']}"
    os.environ["HOME"] = "/home/me"
    recorder = Recorder()
    for command in COMMANDS:
        recorder.run(command, Path("/home/me"))
    recorder.show(PROMPT)
    about = {"version": 2, "width": 100, "height": 40, "title": "What an fsync does on MobiFS"}
    file.write_text("\n".join([json.dumps(about), *recorder.events]) + "\n")


def play(file: Path, speed: float) -> None:
    lines = file.read_text().splitlines()
    if json.loads(lines[0]).get("version") != 2:
        raise SystemExit(f"{file} is no asciicast v2")
    began = time.monotonic()
    for line in lines[1:]:
        seconds, kind, text = json.loads(line)
        time.sleep(max(0.0, began + seconds / speed - time.monotonic()))
        if kind == "o":
            sys.stdout.write(text)
            sys.stdout.flush()
    print()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=["play", "record", "inside"])
    parser.add_argument("file", type=Path, nargs="?", default=FILE)
    parser.add_argument("--speed", type=float, default=1.0)
    options = parser.parse_args()
    if options.what == "play":
        play(options.file, options.speed)
    elif options.what == "record":
        record(options.file.absolute())
    else:
        inside(options.file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
