#!/usr/bin/env python3
"""The SQLite extension as apps have it: from the wheel, linked with C, in the shell, in Node.

What is not installed here is skipped, with the reason. Ends with one line: N passed, M failed,
K skipped.

  test_bindings.py [--release] [--only WORD]
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lib.disk import scratch_dir
from lib.extension import BINDINGS, HEADERS, built_extension, sqlite_source, wheel
from lib.process import ROOT, Cleanup, Failed, main_guard, run, say

LINKED_WITH = ("-lpthread", "-ldl", "-lm")
WARNINGS = ("-Wall", "-Wextra", "-Werror", "-std=c11")


class Skipped(Exception):
    """What is missing here."""


@dataclass
class Counts:
    """Outcomes so far."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0


@dataclass
class Site:
    """What the checks work with."""

    extension: Path
    scratch: Path

    def database(self, name: str) -> Path:
        return self.scratch / f"{name}.db"


def check_python(site: Site) -> int:
    """The package's tests, in a venv with the wheel."""
    for module in ("venv", "ensurepip"):
        if importlib.util.find_spec(module) is None:
            raise Skipped(f"this Python has no {module} (Debian: python3-venv)")
    packed = wheel(site.extension, site.scratch / "wheels")
    venv = site.scratch / "venv"
    run(sys.executable, "-m", "venv", venv)
    run(venv / "bin" / "pip", "install", "--quiet", "--no-index", packed)
    tests = BINDINGS / "python" / "tests"
    output = run(venv / "bin" / "python", "-m", "unittest", "discover", "--start-directory", tests)
    found = re.search(r"^Ran (\d+) tests?", output, re.MULTILINE)
    if not found:
        raise Failed(f"the tests of the package did not run:\n{output}")
    return int(found[1])


def check_pip(site: Site) -> int:
    """`pip wheel` builds by the package's own backend, without a network."""
    if importlib.util.find_spec("pip") is None:
        raise Skipped("this Python has no pip")
    source = BINDINGS / "python"
    out = site.scratch / "pip-wheels"
    settings = ["--config-settings", f"library={site.extension}"]
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-index", "--no-deps", *settings,
        "--wheel-dir", out, source)  # fmt: skip
    if len(list(out.glob("mobifs_sqlite-*-py3-none-manylinux_*.whl"))) != 1:
        raise Failed(f"pip has made {[one.name for one in out.iterdir()]}")
    return 1


def sqlite_for_c(site: Site) -> list[str | Path]:
    """What compiles and links SQLite into a C program: the system's, or the workspace's."""
    if Path("/usr/include/sqlite3.h").exists():
        return ["-lsqlite3"]
    source = sqlite_source()
    compiled = site.scratch / "sqlite3.o"
    if not compiled.exists():
        run("cc", "-c", "-O1", "-w", source / "sqlite3.c", "-o", compiled)
    return [compiled, f"-I{source}"]


def compiled_example(site: Site, name: str, library: Path) -> Path:
    if shutil.which("cc") is None:
        raise Skipped("no C compiler")
    program = site.scratch / name
    run("cc", *WARNINGS, BINDINGS / "c" / "example.c", f"-I{HEADERS}", library,
        *sqlite_for_c(site), *LINKED_WITH, "-o", program)  # fmt: skip
    return program


def check_c_static(site: Site) -> int:
    """A C program with the library in it."""
    program = compiled_example(site, "static", site.extension.with_suffix(".a"))
    run(program, site.database("static"))
    return 1


def check_c_shared(site: Site) -> int:
    """A C program that loads it when it starts."""
    program = compiled_example(site, "shared", site.extension)
    directory = str(site.extension.parent)
    run(program, site.database("shared"), env={"LD_LIBRARY_PATH": directory})
    return 1


def check_shell(site: Site) -> int:
    """`.load` in SQLite's shell, by both names; then the database is an ordinary one."""
    if shutil.which("sqlite3") is None:
        raise Skipped("no sqlite3 shell")
    for name in ("libmobifs.so", "mobifs.so"):
        copy = site.scratch / name
        shutil.copyfile(site.extension, copy)
        path = site.database(name)
        script = (
            f".load {copy.with_suffix('')}\n"
            "SELECT 'reason ' || mobifs_last_error();\n"
            f".open file:{path}?vfs=mobifs&class=durable\n"
            "CREATE TABLE t(a); INSERT INTO t VALUES (1); PRAGMA mobifs_class;\n"
        )
        done = subprocess.run(
            ["sqlite3", "-bail", ":memory:"], input=script, capture_output=True, text=True
        )
        if (done.returncode, done.stdout) != (0, "reason \ndurable\n"):
            raise Failed(f"{name}: {done.returncode}, {done.stdout!r}, {done.stderr!r}")
        if run("sqlite3", path, "SELECT count(*) FROM t; PRAGMA integrity_check") != "1\nok\n":
            raise Failed(f"{name}: the shell does not see what it wrote")
    return 2


def check_node(site: Site) -> int:
    """Node's own SQLite."""
    node = os.environ.get("MOBIFS_NODE") or shutil.which("node")
    if node is None:
        raise Skipped("no Node")
    probe = subprocess.run([node, "--eval", "require('node:sqlite')"], capture_output=True)
    if probe.returncode != 0:
        raise Skipped(f"{run(node, '--version').strip()} has no node:sqlite (22.13 or newer has)")
    run(node, BINDINGS / "node" / "node-sqlite.mjs", site.extension, site.database("nö de?"))
    return 1


def check_better_sqlite3(site: Site) -> int:
    """The package better-sqlite3, where `NODE_PATH` has it."""
    node = shutil.which("node")
    if node is None:
        raise Skipped("no Node")
    probe = subprocess.run([node, "--eval", "require('better-sqlite3')"], capture_output=True)
    if probe.returncode != 0:
        raise Skipped("no better-sqlite3 (NODE_PATH says where it is installed)")
    example = BINDINGS / "node" / "better-sqlite3.cjs"
    run(node, example, site.extension, site.database("better"))
    return 1


CHECKS: dict[str, Callable[[Site], int]] = {
    "Python": check_python,
    "pip": check_pip,
    "C, static": check_c_static,
    "C, shared": check_c_shared,
    "shell": check_shell,
    "Node": check_node,
    "better-sqlite3": check_better_sqlite3,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--release", action="store_true", help="check the release build")
    parser.add_argument("--only", metavar="WORD", help="checks whose name contains WORD")
    options = parser.parse_args()
    counts = Counts()
    extension = built_extension(*(["--release"] if options.release else []))
    say(f"{extension.relative_to(ROOT) if extension.is_relative_to(ROOT) else extension}")
    with Cleanup() as cleanup:
        site = Site(extension, scratch_dir(cleanup, "bindings"))
        for name, check in CHECKS.items():
            if options.only and options.only.lower() not in name.lower():
                continue
            try:
                passed = check(site)
                counts.passed += passed
                say(f"  {name}: {passed} passed")
            except Skipped as reason:
                counts.skipped += 1
                say(f"  {name}: skipped, {reason}")
            except Failed as failure:
                counts.failed += 1
                say(f"  {name}: FAILED\n{failure}")
    say(f"{counts.passed} passed, {counts.failed} failed, {counts.skipped} skipped")
    return 1 if counts.failed or not counts.passed + counts.skipped else 0


if __name__ == "__main__":
    main_guard(main)
