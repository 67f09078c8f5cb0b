"""What a file under fsx held after each operation, worked out from fsx's own log.

fsx is deterministic: byte `i` written by operation `n` is `n mod 256`, plus, at odd `i`, byte
`i` of a random buffer that depends on the seed alone. fsx itself tells that buffer: its first
operation, made to cover the whole file, writes it. Everything else is in the log.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from lib.process import Failed, run, suite_binary

PAGE_BYTES = 4096

_LINE = re.compile(r"^\[INFO\s+fsx\]\s+(\d+) (\w+)(.*)$")
_HEX = re.compile(r"0x[0-9a-f]+")
_READS = {
    "read", "mapread", "sendfile", "posix_fadvise", "fsync", "fdatasync", "close", "invalidate",
    "msync",
}  # fmt: skip


def random_buffer(directory: Path, seed: int, length: int) -> bytes:
    """The bytes that fsx adds at odd offsets."""
    config = directory / "buffer.toml"
    config.write_text(
        f"flen = {length}\n[opsize]\nmax = {length}\nmin = {length}\nalign = {length}\n"
        "[weights]\nwrite = 1\nread = 0\nmapread = 0\nmapwrite = 0\ntruncate = 0\n"
    )
    file = directory / "buffer"
    run(suite_binary("fsx"), "-f", config, "-S", str(seed), "-N", "1", file)
    written = file.read_bytes()
    if len(written) != length or set(written[::2]) != {1}:
        raise Failed("fsx does not write what this oracle expects; is it another version?")
    # Undo the operation's own number, 1; even offsets carry nothing random.
    return bytes((byte - 1) % 256 if index % 2 else 0 for index, byte in enumerate(written))


class History:
    """Replays the log; `states` yields the content after each operation."""

    def __init__(self, log: Path, buffer: bytes) -> None:
        self.buffer = buffer
        self.operations: list[tuple[int, str, list[int]]] = []
        for line in log.read_text(errors="replace").splitlines():
            match = _LINE.match(line)
            if match:
                number, name, rest = match.groups()
                words = [int(word, 16) for word in _HEX.findall(rest)]
                self.operations.append((int(number), name, words))

    def last_operation(self) -> int:
        return self.operations[-1][0] if self.operations else 0

    def states(self) -> Iterator[tuple[int, bytes]]:
        """(operation number, content) before the first operation and after each change."""
        content = bytearray()
        yield 0, b""
        for number, name, words in self.operations:
            if name in _READS:
                continue
            self._apply(content, number, name, words)
            yield number, bytes(content)

    def _apply(self, content: bytearray, number: int, name: str, words: list[int]) -> None:
        if name in ("write", "mapwrite"):
            start, end = words[0], words[1] + 1
            _extend(content, end)
            content[start:end] = self._data(number, start, end)
        elif name == "truncate":
            size = words[1]
            _extend(content, size)
            del content[size:]
        elif name == "posix_fallocate":
            _extend(content, words[1] + 1)
        elif name == "punch_hole":
            start, end = words[0], words[1] + 1
            content[start:end] = bytes(end - start)
        elif name == "copy_file_range":
            source = content[words[0] : words[1] + 1]
            start, end = words[2], words[3] + 1
            _extend(content, end)
            content[start:end] = source
        else:
            raise Failed(f"fsx operation {number} is `{name}`, which this oracle does not know")

    def _data(self, number: int, start: int, end: int) -> bytes:
        low = number % 256
        data = bytearray([low]) * (end - start)
        first_odd = start | 1
        odd = self.buffer[first_odd:end:2]
        data[first_odd - start :: 2] = odd.translate(_ADD[low])
        return bytes(data)


# For each operation number, the table that adds it to a byte.
_ADD = [bytes((byte + low) % 256 for byte in range(256)) for low in range(256)]


def _extend(content: bytearray, size: int) -> None:
    if size > len(content):
        content.extend(bytes(size - len(content)))


def between(found: bytes, before: bytes, after: bytes) -> bool:
    """True if `found` lies inside the one operation that leads from `before` to `after`.

    A single fsx operation may be several system calls or several pages of a mapping, each of
    which is an operation of its own to the filesystem: so each page is either old or new.
    """
    if len(found) not in (len(before), len(after)):
        # A write beyond the end grows the file as it goes.
        low, high = sorted((len(before), len(after)))
        if not low <= len(found) <= high:
            return False
    size = len(found)
    old = before[:size].ljust(size, b"\0")
    new = after[:size].ljust(size, b"\0")
    for start in range(0, size, PAGE_BYTES):
        page = found[start : start + PAGE_BYTES]
        if page not in (old[start : start + PAGE_BYTES], new[start : start + PAGE_BYTES]):
            return False
    return True


def locate(found: bytes, history: History, newest_sync: int) -> int:
    """The operation whose state `found` is; at or after `newest_sync`, else an error."""
    match = None
    previous: tuple[int, bytes] | None = None
    for number, content in history.states():
        exact = content == found
        inside = previous is not None and not exact and between(found, previous[1], content)
        if (exact or inside) and number >= newest_sync:
            return number
        if exact or inside:
            match = number
        # The state of operation n holds until the next change, so a sync in between keeps n.
        previous = (number, content)
    if match is None:
        raise Failed("the recovered file is no state that fsx ever made")
    last_before_sync = max(
        (number for number, _, _ in history.operations if number <= newest_sync), default=0
    )
    changed_since = [
        number
        for number, name, _ in history.operations
        if match < number <= last_before_sync and name not in _READS
    ]
    if changed_since:
        raise Failed(
            f"the recovered file is the state of operation {match}, older than the sync "
            f"after operation {newest_sync}"
        )
    return match


def run_plain(log: Path, file: Path, config: Path, seed: int, operations: int) -> None:
    """One uninterrupted fsx run with its log in `log`."""
    with open(log, "wb") as sink:
        done = subprocess.run(
            [suite_binary("fsx"), "-v", "-f", config, "-S", str(seed), "-N", str(operations)]
            + ["-P", log.parent, file],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
        )
    if done.returncode != 0:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-40:])
        raise Failed(f"fsx with seed {seed} failed:\n{tail}")
