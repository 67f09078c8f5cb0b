#!/usr/bin/env python3
"""Whether docs/TROUBLESHOOTING.md has every error message of the product, and no other.

A message is the text of an error type (`#[error("…")]`), what a command fails with (`Failure::new`,
`StoreError::Unsuitable`, the `detail` of a damage, and the shorthands for these; a text that is the whole error, as
those of the configuration are), an error in the log
(`tracing::error!`), or what the SQLite VFS says without failing (`remember`, for `last_error()`, and `warn` and
`log`, for SQLite's error log). It is written in the document with an ellipsis for what differs from case to case.
`--list` prints all of them.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "TROUBLESHOOTING.md"
# What opens an expression with messages in it, up to the closing parenthesis …
CALLS = re.compile(
    r"#\[error\(|\btracing::error!\(|\b(?:Failure::new|Self::new|Unsuitable|format_failure|failed|usage|Fault::new|refuse|refused|damaged"
    r"|impossible|unusable|remember)\((?!\w+: )|(?:self\.warn\)|sqlite\.warn|host\.log)\("
    r"|(?:\bErr|\b(?:map_err|ok_or_else)\(\|[^|]*\| ?\{?)\s*\(?format!\("
)
# … or to the end of the statement or field.
FIELDS = re.compile(r"\bdetail: |\blet message = |\blet detail = ")
# Shorter texts are parts of a message: names of files and calls.
WORDS_MIN = 3
# What only a developer sees: errors of the parsers of other programs' formats and of hand-over within one process.
INTERNAL = re.compile(r"crates/(?:base|engine|recording|store/src/(?:memory|fuzzing|placement))")


def without_tests(source: str) -> str:
    source = re.split(r"#\[cfg\(test\)\]\s*mod \w+ \{", source)[0]
    return re.sub(r"^[ \t]*//.*$", "", source, flags=re.MULTILINE)


def literal(source: str, at: int) -> tuple[str, int]:
    """The string that begins at the quotation mark at `at`, and where it ends."""
    out, at = [], at + 1
    while source[at] != '"':
        if source[at] == "\\":
            following = source[at + 1]
            if following == "\n":
                at += 2
                while source[at] in " \t\n":
                    at += 1
                continue
            out.append({"n": "\n", "t": "\t"}.get(following, following))
            at += 2
            continue
        out.append(source[at])
        at += 1
    return "".join(out), at


def literals(source: str, at: int, ends: str) -> list[str]:
    """The strings from `at` to the first of `ends` outside of brackets."""
    found, depth = [], 0
    while at < len(source):
        sign = source[at]
        if sign == '"':
            text, at = literal(source, at)
            found.append(text)
        elif sign == "'" and re.match(r"'(?:\\.|[^\\'])'", source[at:]):
            at += len(re.match(r"'(?:\\.|[^\\'])'", source[at:]).group()) - 1
        elif depth == 0 and sign in ends:
            break
        elif sign in "([{":
            depth += 1
        elif sign in ")]}":
            depth -= 1
            if depth < 0:
                break
        at += 1
    return found


def normal(text: str) -> str:
    text = text.replace("{{", "\0").replace("}}", "\1")
    text = re.sub(r"\{[^{}]*\}", "…", text)
    text = text.replace("\0", "{").replace("\1", "}")
    return " ".join(text.split())


def messages() -> dict[str, str]:
    """Each message, and the file that has it."""
    found: dict[str, str] = {}
    for path in sorted(ROOT.glob("crates/*/src/**/*.rs")):
        name = path.relative_to(ROOT).as_posix()
        if "tests" in path.stem or "/tests/" in name or INTERNAL.match(name):
            continue
        source = without_tests(path.read_text())
        texts = []
        for match in CALLS.finditer(source):
            inside = literals(source, match.end(), "")
            # Of an error type the first string is the text, of a line of the log the longest one; the
            # others are arguments.
            if match.group().startswith("#"):
                inside = inside[:1]
            elif match.group().startswith("tracing"):
                inside = [max(inside, key=len)]
            texts += inside
        for match in FIELDS.finditer(source):
            texts += literals(source, match.end(), ",;")
        for text in texts:
            text = normal(text)
            if len(text.replace("…", " ").split()) >= WORDS_MIN:
                found.setdefault(text, name)
    return found


def documented(document: str) -> list[str]:
    rows = []
    for line in document.splitlines():
        match = re.match(r"\| (`+) ?(.*?) ?\1 \| ", line)
        if match:
            rows.append(match.group(2).replace("\\|", "|"))
    return rows


def main() -> int:
    found = messages()
    if sys.argv[1:] == ["--list"]:
        for text, name in found.items():
            print(f"{name}\t{text}")
        return 0
    rows = documented(DOCUMENT.read_text())
    problems = [f"{name}: {text}" for text, name in found.items() if text not in set(rows)]
    stale = [row for row in rows if row not in found]
    twice = sorted({row for row in rows if rows.count(row) > 1})
    for what, lines in (
        ("messages without a row in docs/TROUBLESHOOTING.md", problems),
        ("rows of messages that no source has", stale),
        ("rows that are there twice", twice),
    ):
        if lines:
            print(f"{what}:")
            print("\n".join(f"  {line}" for line in lines))
    if len(found) < 200:
        print(f"only {len(found)} messages were found: the search is broken")
        return 1
    return 1 if problems or stale or twice else 0


if __name__ == "__main__":
    sys.exit(main())
