#!/usr/bin/env python3
"""Tests how tests are counted, and that all of them say in one wording what cannot run here.

Ends with one line: N passed, M failed, K skipped.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COUNT = ROOT / "scripts" / "count-tests.awk"

CARGO = """\
     Running unittests src/lib.rs (target/debug/deps/a-1)

successes:

---- tests::one stdout ----
SKIPPED tests::one: not root
SKIPPED tests::one: not root

---- tests::two stdout ----
SKIPPED IN PART tests::two: no rsvg-convert

---- tests::child stdout ----
NO TEST tests::child: a program for another test

successes:
    tests::child
    tests::one
    tests::three
    tests::two

test result: ok. 4 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s

     Running tests/b.rs (target/debug/deps/b-2)

successes:

---- tests::one stdout ----
SKIPPED tests::one: no /dev/fuse

failures:

---- tests::bad stdout ----
SKIPPED tests::bad: and then it failed

failures:
    tests::bad

test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
"""

SUITE = """\
SKIPPED pjdfstest on the user's own mount: /dev/fuse is not for everybody here
8,000 cases
8798 passed, 1 failed, 2 skipped
"""

# A test program that a signal ended: libtest prints no result of it.
KILLED = """\
running 37 tests
test tests::one ... ok
SKIPPED tests::two: not root
fatal runtime error: stack overflow, aborting
error: test failed, to rerun pass `-p mobifs-cli --lib`

Caused by:
  process didn't exit successfully: `/r/scripts/with-small-stacks.sh /r/target/debug/deps/a-1` (signal: 6, SIGABRT: process abort signal)
"""

ABSENT = """\
SKIPPED fsx: no /dev/fuse
0 passed, 0 failed, 1 skipped
"""

CASES = {
    "skipped tests of two programs, one in part, one that is none": (CARGO, (2, 1, 3)),
    "a suite that counts by itself": (SUITE, (8798, 1, 2)),
    "a suite that cannot run": (ABSENT, (0, 0, 1)),
    "a test program that a signal ended": (KILLED, (0, 1, 0)),
    "one that a signal ended, before others": (KILLED + CARGO, (2, 2, 3)),
    "all of them in one log": (CARGO + SUITE + ABSENT, (8800, 2, 6)),
    "nothing": ("", (0, 0, 0)),
}

# A test that leaves where a function returned nothing.
LEAVING_TEST = """
fn disk() -> Option<Disk> {
    let made = make();
    BODY
}

fn aged_disk() -> Option<Disk> {
    let disk = disk()?;
    Some(disk)
}

#[test]
fn files_stay() {
    let Some(disk) = aged_disk() else { return };
    disk.check();
}
"""
LEFT = {
    "a function that says why it returns nothing": (
        LEAVING_TEST.replace("BODY", 'made.ok_or_else(|| mobifs_skip::skip("no disk")).ok()'),
        [],
    ),
    "a function that forgets to": (LEAVING_TEST.replace("BODY", "made"), ["tests/a.rs: files_stay"]),
}

# Other ways of saying it, which are not counted.
OTHER_WORDING = re.compile(r'print(ln)?!\(\s*"(not run|skipped|SKIPPED|(the rest is )?skipped)')
# A test that returns at once, without a word, where this process is not root or a thing is absent.
SILENT = re.compile(
    r"if [^{};]*(is_root\(\)|\.exists\(\)|sync_reaches|is_installed|obstacle)[^{};]*\{\s*"
    r"(//[^\n]*\s*)?return(;| None;| false;)"
)
# A test that leaves because something else returned nothing.
LEAVES = re.compile(
    r"(?:let [^;{}]*? = (?P<found>[^;{}]*?)\belse|if (?P<absent>(?:![^;{}]*|[^;{}]*\.is_(?:none|err)\(\))\s*)) "
    r"\{\s*(?://[^\n]*\s*)*return\s*[;}]"
)
FUNCTION = re.compile(r'^( *)(?:pub(?:\([^)]*\))? )?(?:const |async |unsafe |extern "C" )*fn (\w+)', re.MULTILINE)
CLOSURE = re.compile(r"^( *)let (?:mut )?(\w+) = (?:move )?\|[^|]*\|(.*?);\n\1(?=\S)", re.MULTILINE | re.DOTALL)
CALL = re.compile(r"(?<!\.)\b(\w+)(?:::<[^>]*>)?\(")
METHOD = re.compile(r"\.(\w+)(?:::<[^>]*>)?\(")
SAYS = re.compile(r"mobifs_skip::|(?<!\.)\bskip(?:_part)?\(|\bno_test\(")
# Functions of `test/skip` that say it themselves.
SAYING = {"is_root", "can_mount", "can"}
# Tests that leave a closure, or a program that another test runs, when it has done its part.
LEAVING = {
    ("lab/device-server/tests/mounted/sqlite_vfs.rs", "inserts_rows_until_the_power_goes"),
    ("test/testkit/tests/it/lookups_during_apply.rs", "lookups_do_not_wait_for_the_syncs_of_an_apply"),
}
# Where crates are.
SOURCES = ("crates", "lab", "test")
# Where the mark is made or only spoken of.
EXEMPT = {"test/skip/src/lib.rs"}


def counts(log: str) -> tuple[int, ...]:
    words = ["awk", "-f", COUNT]
    done = subprocess.run(words, input=log, text=True, capture_output=True, check=True)
    return tuple(int(word) for word in done.stdout.split())


def is_test_code(path: Path, text: str) -> bool:
    return "/tests" in str(path) or "#[cfg(test)]" in text


def unheard() -> list[str]:
    """Places in tests that leave without the words that are counted."""
    found = []
    for path in sorted(path for root in SOURCES for path in (ROOT / root).glob("**/*.rs")):
        text = path.read_text()
        name = str(path.relative_to(ROOT))
        if name in EXEMPT or not is_test_code(path, text):
            continue
        start = 0 if "/tests" in name else text.index("#[cfg(test)]")
        for pattern in (OTHER_WORDING, SILENT):
            for match in pattern.finditer(text, start):
                if "skip" not in match.group() or pattern is OTHER_WORDING:
                    found.append(f"{name}:{text.count(chr(10), 0, match.start()) + 1}")
    return found


def functions(text: str) -> list[tuple[str, str, bool]]:
    """Name and text of each function, and whether it is a test."""
    found = []
    for match in FUNCTION.finditer(text):
        end = re.compile(rf"^{match.group(1)}\}}", re.MULTILINE).search(text, match.end())
        before = text[: match.start()].rsplit("\n\n", 1)[-1].rsplit("}", 1)[-1]
        body = text[match.start() : end.end() if end else len(text)]
        found.append((match.group(2), body, "#[test]" in before))
    return found


def saying(known: list[tuple[str, str, bool]]) -> set[str]:
    """Functions of a crate that say it, or return nothing where one that says it does."""
    says = SAYING | {name for name, body, _ in known if SAYS.search(body)}
    while True:
        more = {
            name
            for name, body, _ in known
            if re.search(r"-> (Option|bool)", body.split("{")[0]) and name not in says and calls(body) & (says - {name})
        }
        if not more:
            return says
        says |= more


def calls(text: str) -> set[str]:
    return set(CALL.findall(text)) | set(METHOD.findall(text))


def unsaid(crate: dict[str, str]) -> list[str]:
    """Tests of a crate, given as the text of each file, that leave because of a function that says nothing of it."""
    found = []
    known = {file: functions(text) for file, text in crate.items()}
    says = saying([function for functions_of in known.values() for function in functions_of])
    for file, functions_of in known.items():
        for name, body, is_test in functions_of:
            if not is_test or (file, name) in LEAVING:
                continue
            # Closures of the test itself.
            closures = CLOSURE.findall(body)
            here = says | {closure for _, closure, text in closures if calls(text) & says or SAYS.search(text)}
            for match in LEAVES.finditer(body):
                condition = match.group("found") or match.group("absent")
                if not (calls(condition) & here or SAYS.search(match.group())):
                    found.append(f"{file}: {name}")
    return found


def all_unsaid() -> list[str]:
    found = []
    crates = sorted(path.parent for root in SOURCES for path in (ROOT / root).glob("**/Cargo.toml"))
    for crate in crates:
        files = sorted(path for path in crate.glob("**/*.rs") if "target" not in path.parts)
        found += unsaid({str(path.relative_to(ROOT)): path.read_text() for path in files})
    return found


def main() -> int:
    passed = failed = 0
    for name, (log, expected) in CASES.items():
        found = counts(log)
        if found == expected:
            passed += 1
        else:
            failed += 1
            print(f"  {name}: FAILED, counted {found} instead of {expected}")
    for name, (crate, expected) in LEFT.items():
        found = unsaid({"tests/a.rs": crate})
        if found == expected:
            passed += 1
        else:
            failed += 1
            print(f"  {name}: FAILED, found {found} instead of {expected}")
    places = unheard() + all_unsaid()
    if places:
        failed += 1
        print(f"  tests that leave without test/skip: FAILED, {', '.join(places)}")
    else:
        passed += 1
    print(f"{passed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
