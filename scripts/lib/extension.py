"""The SQLite extension for scripts: built, and packed."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from lib.process import ROOT, Failed, run

PACKAGE = "mobifs-sqlite-extension"
BINDINGS = ROOT / "bindings"
HEADERS = ROOT / "crates" / "sqlite-extension" / "include"


def built_extension(*profile: str) -> Path:
    """`libmobifs.so`, after cargo has built it; `libmobifs.a` lies beside it.

    `MOBIFS_SQLITE_EXTENSION` names another one, which is taken as it is.
    """
    chosen = os.environ.get("MOBIFS_SQLITE_EXTENSION")
    if chosen:
        return Path(chosen)
    run("cargo", "build", "--locked", "--package", PACKAGE, *profile, cwd=ROOT)
    output = run("cargo", "metadata", "--locked", "--no-deps", "--format-version", "1", cwd=ROOT)
    target = json.loads(output[output.index("{") :])["target_directory"]
    name = "release" if "--release" in profile else "debug"
    return Path(target) / name / "libmobifs.so"


def sqlite_source() -> Path:
    """The directory with the `sqlite3.c` that the tests in Rust are linked with."""
    output = run("cargo", "metadata", "--locked", "--format-version", "1", cwd=ROOT)
    for package in json.loads(output[output.index("{") :])["packages"]:
        if package["name"] == "libsqlite3-sys":
            return Path(package["manifest_path"]).parent / "sqlite3"
    raise Failed("the workspace has no libsqlite3-sys")


def wheel(extension: Path, directory: Path) -> Path:
    """The wheel of the Python package with this extension."""
    backend = BINDINGS / "python" / "backend" / "wheel_backend.py"
    run(sys.executable, backend, directory, "--library", extension)
    (found,) = directory.glob("*.whl")
    return found
