#!/usr/bin/env python3
"""Checks comments of Rust sources; prints each fault with its file and line, and fails if there is one.

* Rustdoc names its subject. `/// Of the last transaction.` on a field tells what it is of, and not what it
  is; a reader of the generated documentation, or of a tooltip, has no neighbouring line that says it.
* A comment line has at most 120 columns, so that two files fit side by side. rustfmt wraps code at 100
  and leaves comments alone.
"""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
COLUMNS_MAX = 120
COMMENT = re.compile(r"^\s*//")
RUSTDOC = re.compile(r"^\s*//[/!]")
FRAGMENT = re.compile(r"^\s*//[/!] (Of|So many|So much|So long|That of)\b")


def faults(text: str) -> list[tuple[int, str]]:
    """Line numbers and what is wrong there."""
    found = []
    is_rustdoc = False
    for number, line in enumerate(text.splitlines(), start=1):
        if COMMENT.match(line) and len(line) > COLUMNS_MAX:
            found.append((number, f"the comment has {len(line)} columns, and {COLUMNS_MAX} are the most"))
        # Only the first line of a doc comment: later ones continue a sentence.
        if not is_rustdoc and (fragment := FRAGMENT.match(line)):
            found.append((number, f"the rustdoc begins with \"{fragment[1]}\" and does not name its subject"))
        is_rustdoc = RUSTDOC.match(line) is not None
    return found


def check_itself() -> None:
    bad = "/// Of the file.\nsize: u64,\n" + "// " + "x" * COLUMNS_MAX + "\n"
    good = "/// The size\n/// Of the file, `Office`.\nsize: u64,\n/// Often.\n" + "x" * (COLUMNS_MAX + 1) + "\n"
    if [number for number, _ in faults(bad)] != [1, 3] or faults(good):
        sys.exit("check_comments.py does not find what it looks for")


def main() -> int:
    check_itself()
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", "*.rs"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout
    found = False
    for name in sorted(filter(None, listed.split("\0"))):
        path = ROOT / name
        # One that was removed is still listed until it is committed.
        if not path.is_file():
            continue
        for number, fault in faults(path.read_text()):
            print(f"{name}:{number}: {fault}", file=sys.stderr)
            found = True
    return int(found)


if __name__ == "__main__":
    sys.exit(main())
