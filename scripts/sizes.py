#!/usr/bin/env python3
"""Prints the sizes of what was built for users, as a table in Markdown: packages, archives, wheels, and the stripped
programs in them.

    sizes.py [TARGET_DIRECTORY]
"""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

from lib.process import target_dir

# What is listed of an archive or a package: programs and libraries.
SHOWN = ("bin/mobifs", "bin/mobifs-top", "bin/mobifs-lab", "libmobifs.so", "libmobifs_run.so")


def mebibytes(count: int) -> str:
    return f"{count / (1 << 20):.2f}"


def in_tar(archive: tarfile.TarFile) -> list[tuple[str, int]]:
    return [(one.name, one.size) for one in archive if one.isfile() and one.name.endswith(SHOWN)]


def contents(path: Path) -> list[tuple[str, int]]:
    if path.suffix == ".deb":
        data = subprocess.run(["dpkg-deb", "--fsys-tarfile", path], check=True, capture_output=True).stdout
        return in_tar(tarfile.open(fileobj=io.BytesIO(data)))
    if path.suffix == ".whl":
        infos = zipfile.ZipFile(path).infolist()
        return [(one.filename, one.file_size) for one in infos if one.filename.endswith(SHOWN)]
    return in_tar(tarfile.open(path))


def main() -> int:
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else target_dir()
    files = [*target.glob("deb/*.deb"), *target.glob("tarball/*.tar.gz"), *target.glob("wheels/*.whl"),
             *target.glob("npm/*.tgz")]
    shown = [path for path in files if "dbgsym" not in path.name and "-debug" not in path.name]
    if not shown:
        raise SystemExit(f"nothing is built in {target}: make deb, make tarball, make wheel-portable")
    print("| file | MiB | program in it, stripped | MiB |")
    print("| --- | --- | --- | --- |")
    for path in sorted(shown):
        found = contents(path) or [("–", 0)]
        for index, (name, size) in enumerate(sorted(found)):
            first = (f"`{path.name}`", mebibytes(path.stat().st_size)) if index == 0 else ("", "")
            inner = (f"`{Path(name).name}`", mebibytes(size)) if size else ("–", "–")
            print("| " + " | ".join((*first, *inner)) + " |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
