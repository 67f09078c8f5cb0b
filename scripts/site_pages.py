#!/usr/bin/env python3
"""Copies the documents for the site: links to documents stay, links to code lead to the repository.

    site_pages.py DIRECTORY
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REPOSITORY = "https://github.com/mobifs/mobifs/blob/main"
FIRST_PAGE = ROOT / "dist" / "site"
# Besides docs/: pages that documents link to.
PAGES = ["CHANGELOG.md", "CONTRIBUTING.md", "bindings/README.md", "bindings/python/README.md",
         "bindings/node/README.md", "examples/notes/README.md", "traces/README.md"]
LINK = re.compile(r"(\]\()([^)\s]+)(\))")
FENCE = re.compile(r"^(```.*?^```)", re.MULTILINE | re.DOTALL)


def pages() -> list[Path]:
    return [*sorted((ROOT / "docs").rglob("*.md")), *(ROOT / page for page in PAGES)]


def rewritten(page: Path, known: set[Path], place: Path | None = None) -> str:
    """The page, with links that lead out of the site made absolute; `place`: where it will be."""
    place = place or page

    def link(match: re.Match[str]) -> str:
        target = match[2]
        if re.match(r"^([a-z]+:|#|assets/)", target):
            return match[0]
        path, hash_sign, anchor = target.partition("#")
        wanted = Path(os.path.normpath(page.parent / path))
        if wanted == ROOT / "README.md":
            wanted = ROOT / "index.md"
        if wanted in known:
            # The first page has other headings than the README that it stands for.
            anchor = "" if wanted.name == "index.md" else hash_sign + anchor
            relative = os.path.relpath(wanted, place.parent)
            return f"{match[1]}{relative}{anchor}{match[3]}"
        if not wanted.exists():
            raise SystemExit(f"{page.relative_to(ROOT)}: nothing is at {target}")
        return f"{match[1]}{REPOSITORY}/{wanted.relative_to(ROOT)}{hash_sign}{anchor}{match[3]}"

    # What is in a block of code is no link.
    parts = FENCE.split(page.read_text())
    return "".join(part if part.startswith("```") else LINK.sub(link, part) for part in parts)


def main() -> int:
    if len(sys.argv) != 2:
        raise SystemExit("site_pages.py DIRECTORY")
    out = Path(sys.argv[1])
    pictures = [path for path in (ROOT / "docs").rglob("*.svg")]
    known = {*pages(), *pictures, ROOT / "index.md"}
    for page in pages():
        copy = out / page.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(rewritten(page, known))
    for picture in pictures:
        copy = out / picture.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(picture, copy)
    (out / "index.md").write_text(rewritten(FIRST_PAGE / "index.md", known, ROOT / "index.md"))
    shutil.copytree(FIRST_PAGE / "assets", out / "assets")
    return 0


if __name__ == "__main__":
    sys.exit(main())
