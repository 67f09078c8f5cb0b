"""Processes that work on files of their own and know what must be in them.

Run as a program it is one such process: it works until its time is up, then checks everything
that it knows, and writes down the contents that must be there, for a later check.

  soak_farm.py DIRECTORY SEED SECONDS EXPECTED
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import sys
import time
from pathlib import Path

FILES_MAX = 40
BYTES_MAX = 48 << 10


class Worker:
    """One directory, and what its files contain."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.directory = directory
        self.random = random.Random(seed)
        self.content: dict[str, bytes] = {}
        self.next_name = 0
        self.operations = 0

    def path(self, name: str) -> Path:
        return self.directory / name

    def new_name(self) -> str:
        self.next_name += 1
        return f"f{self.next_name}"

    def some(self) -> str:
        return self.random.choice(list(self.content))

    def create(self) -> None:
        name, data = self.new_name(), self.random.randbytes(self.random.randrange(BYTES_MAX))
        self.path(name).write_bytes(data)
        self.content[name] = data

    def overwrite(self) -> None:
        name = self.some()
        old = self.content[name]
        offset = self.random.randrange(len(old) + 1000)
        data = self.random.randbytes(self.random.randrange(1, 9000))
        with open(self.path(name), "r+b") as file:
            file.seek(offset)
            file.write(data)
            if self.random.random() < 0.2:
                file.flush()
                os.fsync(file.fileno())
        whole = bytearray(max(len(old), offset + len(data)))
        whole[: len(old)] = old
        whole[offset : offset + len(data)] = data
        self.content[name] = bytes(whole)

    def truncate(self) -> None:
        name = self.some()
        size = self.random.randrange(BYTES_MAX)
        os.truncate(self.path(name), size)
        self.content[name] = self.content[name][:size].ljust(size, b"\0")

    def save(self) -> None:
        """As editors do: a new file, synced, renamed over the old one."""
        name, temporary = self.some(), self.new_name()
        data = self.random.randbytes(self.random.randrange(BYTES_MAX))
        with open(self.path(temporary), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.rename(self.path(temporary), self.path(name))
        self.content[name] = data

    def move(self) -> None:
        name, new = self.some(), self.new_name()
        os.rename(self.path(name), self.path(new))
        self.content[new] = self.content.pop(name)

    def remove(self) -> None:
        name = self.some()
        os.unlink(self.path(name))
        del self.content[name]

    def check(self, name: str) -> None:
        found = self.path(name).read_bytes()
        if found != self.content[name]:
            raise SystemExit(f"{self.path(name)} has not what was written to it")

    def step(self) -> None:
        self.operations += 1
        if not self.content or (len(self.content) < FILES_MAX and self.random.random() < 0.2):
            return self.create()
        action = self.random.choices(
            [self.overwrite, self.truncate, self.save, self.move, self.remove],
            weights=[6, 1, 2, 1, 1],
        )[0]
        action()
        if self.content and self.random.random() < 0.3:
            self.check(self.some())

    def check_all(self) -> None:
        names = sorted(os.listdir(self.directory))
        if names != sorted(self.content):
            raise SystemExit(f"{self.directory} has other files than it should")
        for name in names:
            self.check(name)


def digests(directory: Path) -> dict[str, str]:
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.iterdir())
    }


def main() -> None:
    directory, seed, seconds, expected = sys.argv[1:]
    worker = Worker(Path(directory), int(seed))
    worker.directory.mkdir(parents=True)
    end = time.monotonic() + float(seconds)
    # What is in the way of the others must not keep one from doing anything at all.
    while time.monotonic() < end or worker.operations == 0:
        worker.step()
    worker.check_all()
    files = {name: hashlib.sha256(data).hexdigest() for name, data in worker.content.items()}
    Path(expected).write_text(json.dumps({"operations": worker.operations, "files": files}))


if __name__ == "__main__":
    main()
