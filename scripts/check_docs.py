#!/usr/bin/env python3
"""Checks what the documents refer to: relative links, anchors, source files, headings quoted by
source code; and that the index has every decision, STATUS.md every field of the status, and
UNSAFE.md every file with unsafe code. Fails with the file and line of each fault.

    scripts/check_docs.py

Checked are all Markdown files under version control. Each run first checks a document made of one
good and one bad reference of each kind, and fails if it does not find exactly the bad ones.
"""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parent.parent
INDEX, DESIGN = "docs/README.md", "docs/DESIGN.md"
UNSAFE = "docs/UNSAFE.md"
UNSAFE_CODE = re.compile(r"\bunsafe (?:\{|impl|fn|extern)")
STATUS, STATUS_SOURCE = "docs/STATUS.md", "crates/volume/src/status.rs"

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"`[^`]*`")
SOURCE = re.compile(r"[\w.{},/-]+/[\w.{},-]+\.(?:rs|py|sh|toml|h|csv)\b")
HEADING = re.compile(r"#{1,6} +(.*)")
# `docs/NAME.md#anchor` in source code; the anchor may be missing.
QUOTED = re.compile(r"\bdocs/([A-Z-]+\.md)(#[\w-]+)?")


def slug(heading: str) -> str:
    """The anchor that hosting services give a heading."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading.strip().lower())
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def prose(text: str):
    """Numbered lines outside fenced blocks."""
    fence = None
    for number, line in enumerate(text.splitlines(), start=1):
        mark = re.match(r"\s*(```+|~~~+)", line)
        if mark and fence in (None, mark[1]):
            fence = None if fence else mark[1]
        elif fence is None:
            yield number, line


def paragraphs(lines: dict[int, str]) -> list[list[int]]:
    """Numbers of lines that follow on each other without an empty one."""
    found: list[list[int]] = [[]]
    for number, line in lines.items():
        if not line.strip():
            found.append([])
        else:
            found[-1].append(number)
    return [paragraph for paragraph in found if paragraph]


def anchors(text: str) -> set[str]:
    seen: dict[str, int] = {}
    found = set()
    for _, line in prose(text):
        if heading := HEADING.match(line):
            name = slug(heading[1])
            count = seen.get(name, 0)
            seen[name] = count + 1
            found.add(f"{name}-{count}" if count else name)
    return found


def expanded(path: str) -> list[str]:
    """`a/{b,c}.rs` is two files."""
    parts = re.split(r"\{([^{}]*)\}", path)
    choices = [part.split(",") if i % 2 else [part] for i, part in enumerate(parts)]
    return ["".join(choice) for choice in itertools.product(*choices)]


class Documents:
    """The repository as a set of paths, and the text of its documents."""

    def __init__(self, files: set[str], texts: dict[str, str]) -> None:
        self.files = files
        parents = (parent for file in files for parent in PurePosixPath(file).parents)
        self.folders = {str(parent) for parent in parents}
        self.texts = texts
        self.anchors = {name: anchors(text) for name, text in texts.items()}

    def has_source(self, path: str) -> bool:
        """Whether there is a file that ends like what a document names in code."""
        return any(file == path or file.endswith("/" + path) for file in self.files)

    def bad_link(self, document: str, target: str) -> str | None:
        if re.match(r"[a-z][a-z0-9+.-]*:", target):
            return None
        path, _, anchor = target.partition("#")
        if not path:
            name = document
        else:
            joined = PurePosixPath(document).parent / path
            parts: list[str] = []
            for part in joined.parts:
                if part == "..":
                    if not parts:
                        return f"the link {target} leaves the repository"
                    parts.pop()
                elif part != ".":
                    parts.append(part)
            name = "/".join(parts) or "."
        if name not in self.files and name not in self.folders:
            return f"the link {target} leads to no file"
        if anchor and anchor not in self.anchors.get(name, set()):
            return f"the link {target} leads to no heading"
        return None

    def faults(self) -> list[str]:
        return [
            fault
            for document, text in sorted(self.texts.items())
            for fault in self.bad_links(document, text) + self.bad_sources(document, text)
        ]

    def bad_links(self, document: str, text: str) -> list[str]:
        """A link's words may go over the end of a line, so lines are looked at together."""
        lines = {number: CODE.sub("", line) for number, line in prose(text)}
        found = []
        for paragraph in paragraphs(lines):
            joined = "\n".join(lines[number] for number in paragraph)
            for link in LINK.finditer(joined):
                number = paragraph[joined.count("\n", 0, link.end())]
                if fault := self.bad_link(document, link[1]):
                    found.append(f"{document}:{number}: {fault}")
        return found

    def bad_sources(self, document: str, text: str) -> list[str]:
        if document == "CHANGELOG.md":
            return []  # It names files as they were.
        return [
            f"{document}:{number}: there is no source file {path}"
            for number, line in prose(text)
            for code in CODE.findall(line)
            for named in SOURCE.findall(code)
            for path in expanded(named)
            if not path.startswith(("/", "target/")) and not self.has_source(path)
        ]

    def unlisted_decisions(self) -> list[str]:
        """Decisions of the design that the index of the documents does not link."""
        linked = set(re.findall(r"\(DESIGN\.md#([^)]+)\)", self.texts[INDEX]))
        headings = (HEADING.match(line) for _, line in prose(self.texts[DESIGN]))
        decisions = {slug(h[1]) for h in headings if h and h[0].startswith("### ")}
        return [f"{INDEX}: no link to DESIGN.md#{name}" for name in sorted(decisions - linked)]

    def bad_quotes(self, file: str, text: str) -> list[str]:
        """References to headings of documents in source code."""
        found = []
        for number, line in enumerate(text.splitlines(), start=1):
            for name, anchor in QUOTED.findall(line):
                if fault := self.bad_link("README.md", f"docs/{name}{anchor}"):
                    found.append(f"{file}:{number}: {fault}")
        return found


def undocumented_fields() -> list[str]:
    """Fields of the status that its document does not have."""
    text = (ROOT / STATUS).read_text()
    # A field may have another name in the code than in the document.
    field = re.compile(r'^\s+(?:#\[serde\(rename = "(\w+)"\)\]\s+)?pub (\w+):', re.MULTILINE)
    found = field.findall((ROOT / STATUS_SOURCE).read_text())
    fields = [key or name for key, name in found]
    if not fields:
        return [f"{STATUS_SOURCE}: no fields of the status are here"]
    return [f"{STATUS}: there is no field `{name}`" for name in fields if f"`{name}`" not in text]


def unlisted_unsafe(files: set[str]) -> list[str]:
    """Files of the product with unsafe code that its document does not list."""
    listed = CODE.findall((ROOT / UNSAFE).read_text())
    patterns = [f"crates/{one}" for code in listed for one in expanded(code.strip("`"))]
    found = []
    for file in sorted(files):
        if not file.startswith("crates/") or not file.endswith(".rs") or "/tests" in file:
            continue
        is_listed = any(fnmatch(file, one) or file.startswith(f"{one}/") for one in patterns)
        if not is_listed and UNSAFE_CODE.search((ROOT / file).read_text()):
            found.append(f"{UNSAFE}: {file} has unsafe code and is not listed")
    return found


def check_the_check() -> None:
    text = """# One `code` heading
[good](#one-code-heading) [good](b/c.md#x) [good](b) [good](https://example.org/#y)
[bad](#nothing) [bad](b/c.md#y) [bad](b/d.md) [bad
over two lines](../up.md)
`src/{a,b}.rs` and `src/{a,c}.rs`
```
[not looked at](nowhere.md)
```
"""
    files = {"a.md", "b/c.md", "crates/src/a.rs", "crates/src/b.rs"}
    documents = Documents(files, {"a.md": text, "b/c.md": "## X\n"})
    found = documents.faults()
    bad = ("#nothing", "b/c.md#y", "b/d.md", "../up.md", "src/c.rs")
    if len(found) != len(bad) or any(name not in line for name, line in zip(bad, found)):
        raise SystemExit(f"the check itself is wrong: {found}")


def main() -> int:
    check_the_check()
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )
    files = {name for name in listed.stdout.split("\0") if name and (ROOT / name).exists()}
    texts = {name: (ROOT / name).read_text() for name in files if name.endswith(".md")}
    documents = Documents(files, texts)
    faults = documents.faults() + documents.unlisted_decisions()
    faults += undocumented_fields() + unlisted_unsafe(files)
    for file in sorted(files):
        if file.endswith((".rs", ".py", ".toml", ".sh")) and file != "scripts/check_docs.py":
            faults += documents.bad_quotes(file, (ROOT / file).read_text())
    print("\n".join(faults), file=sys.stderr, end="\n" if faults else "")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
