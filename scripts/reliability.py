#!/usr/bin/env python3
"""Makes the table of docs/RELIABILITY.md from docs/reliability/: tests.csv says what each test is,
runs.csv what each run of one came to.

    scripts/reliability.py           writes it into the page
    scripts/reliability.py --check   fails if the page has another one
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "RELIABILITY.md"
DATA = ROOT / "docs" / "reliability"
BEGIN = "<!-- table: scripts/reliability.py -->"
END = "<!-- end of table -->"


def marked(command: str) -> str:
    """Commands as Markdown shows them: `a; b (c)` is three pieces of code."""
    pieces = []
    for piece in command.split("; "):
        code, _, rest = piece.partition(" (")
        is_code = code.startswith(("make ", "cargo ", "scripts/"))
        shown = f"`{code}`" if is_code else code
        pieces.append(f"{shown} (`{rest.rstrip(')')}`)" if rest else shown)
    return ", ".join(pieces)


def rows(name: str) -> list[dict[str, str]]:
    with (DATA / name).open(newline="") as file:
        return list(csv.DictReader(file))


def table() -> str:
    tests = rows("tests.csv")
    totals = {test["name"]: [0, 0, 0] for test in tests}
    for number, run in enumerate(rows("runs.csv"), start=2):
        if run["test"] not in totals:
            raise SystemExit(f"runs.csv, line {number}: no test is called '{run['test']}'")
        counts = [int(run[column]) for column in ("points", "found", "fixed")]
        totals[run["test"]] = [a + b for a, b in zip(totals[run["test"]], counts)]
    lines: list[str] = []
    group = None
    for test in tests:
        if test["group"] != group:
            group = test["group"]
            lines += ["", f"**{group}**", ""]
            lines += ["| what it attacks | points in total | found | open | command |"]
            lines += ["| --- | --- | --- | --- | --- |"]
        points, found, fixed = totals[test["name"]]
        lines.append(
            f"| {test['attacks']} | {points:,} {test['unit']} | {found} | {found - fixed} "
            f"| {marked(test['command'])} |"
        )
    return "\n".join(lines).strip() + "\n"


def main() -> int:
    page = PAGE.read_text()
    before, rest = page.split(BEGIN, 1)
    _, after = rest.split(END, 1)
    made = f"{before}{BEGIN}\n\n{table()}\n{END}{after}"
    if made == page:
        return 0
    if "--check" in sys.argv[1:]:
        print("docs/RELIABILITY.md is not what scripts/reliability.py makes", file=sys.stderr)
        return 1
    PAGE.write_text(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
