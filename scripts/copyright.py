#!/usr/bin/env python3
"""Writes the copyright file of packages: who holds the rights to what is linked, and under which licence.

    copyright.py --target TARGET PACKAGE... > FILE

The format is Debian's (DEP 5). Notices are read from the licence files of the crates that `cargo tree` names, texts
from those files too, but for licences that Debian has in /usr/share/common-licenses. A crate without either fails.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Texts of these are in /usr/share/common-licenses.
COMMON = {"Apache-2.0": "Apache-2.0", "MPL-2.0": "MPL-2.0", "GPL-2.0": "GPL-2", "LGPL-2.1": "LGPL-2.1"}
# Of alternatives the first of these is taken.
PREFERRED = ["MIT", "MIT-0", "BSD-3-Clause", "BSD-2-Clause", "ISC", "Zlib", "Unlicense", "0BSD", "CC0-1.0",
             "Unicode-3.0", "BSL-1.0", "Apache-2.0", "MPL-2.0"]
# A file with the text of a licence has one of these sentences.
MARKS = {
    "MIT": "permission is hereby granted, free of charge",
    "BSD-3-Clause": "neither the name",
    "BSD-2-Clause": "redistributions in binary form must reproduce",
    "ISC": "permission to use, copy, modify, and/or distribute",
    "Zlib": "altered source versions must be plainly marked",
    "Unicode-3.0": "unicode license v3",
    "BSL-1.0": "boost software license",
    "CC0-1.0": "cc0 1.0 universal",
    "0BSD": "permission to use, copy, modify, and/or distribute",
    "Unlicense": "this is free and unencumbered software",
}
NOTICE = re.compile(r"^[\s/*#>-]*((?:Copyright|\(c\)|©).*\d{4}.*|Copyright \(c\) .+)$", re.IGNORECASE)


def linked(target: str, packages: list[str]) -> list[tuple[str, str]]:
    """Names and versions of what is in the programs."""
    command = ["cargo", "tree", "--locked", "--edges", "normal,no-proc-macro", "--prefix", "none", "--target", target]
    for package in packages:
        command += ["--package", package]
    output = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    return sorted(set(re.findall(r"^(\S+) v(\S+)", output, re.MULTILINE)))


def described() -> dict[tuple[str, str], dict]:
    command = ["cargo", "metadata", "--format-version", "1", "--locked"]
    output = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    return {(package["name"], package["version"]): package for package in json.loads(output)["packages"]}


def chosen(expression: str) -> list[str]:
    """The licences of which the texts have to be given: of each alternative the preferred one."""
    result = []
    for part in re.split(r"\s+AND\s+", expression.replace("/", " OR ")):
        names = re.findall(r"[A-Za-z0-9.+-]+(?:\s+WITH\s+[A-Za-z0-9.-]+)?", part.replace("(", " ").replace(")", " "))
        options = [name for name in names if name != "OR"]
        known = [name for name in PREFERRED if name in options]
        if not known:
            raise SystemExit(f"copyright: no text is known for the licence {expression}")
        result.append(known[0])
    return result


def licence_files(directory: Path) -> list[Path]:
    pattern = re.compile(r"^(licen[sc]e|copying|copyright|unlicense)", re.IGNORECASE)
    found = [path for path in directory.iterdir() if path.is_file() and pattern.match(path.name)]
    for name in ("LICENSES", "LICENSE"):
        if (directory / name).is_dir():
            found += [path for path in (directory / name).iterdir() if path.is_file()]
    return sorted(found)


def text_of(name: str, files: list[Path]) -> str | None:
    for path in files:
        text = path.read_text(errors="replace")
        if MARKS[name] in " ".join(text.lower().split()) and len(text) < 20_000:
            lines = text.strip().splitlines()
            # The notice stands with its crate; the same text then serves for all crates.
            return "\n".join(line.strip() for line in lines if not NOTICE.match(line)).strip()
    return None


def notices(package: dict, files: list[Path]) -> list[str]:
    found = []
    for path in files:
        for line in path.read_text(errors="replace").splitlines():
            match = NOTICE.match(line)
            # The Apache licence explains with a template how to write one.
            if match and "[yyyy]" not in line and "{yyyy}" not in line:
                found.append(match.group(1).strip())
    return list(dict.fromkeys(found)) or package["authors"] or [f"The developers of {package['name']}"]


def indented(text: str) -> str:
    return "\n".join(f" {line}" if line.strip() else " ." for line in text.splitlines())


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", required=True)
    parser.add_argument("packages", nargs="+")
    options = parser.parse_args()
    about = described()
    texts: dict[str, str] = {"MIT": (ROOT / "LICENSE-MIT").read_text().split("\n\n", 2)[2].strip()}
    stanzas = []
    for key in linked(options.target, options.packages):
        package = about[key]
        if package["source"] is None:
            continue
        directory = Path(package["manifest_path"]).parent
        files = licence_files(directory)
        names = chosen(package["license"])
        for name in names:
            if name not in COMMON and name not in texts:
                text = text_of(name, files)
                if text:
                    texts[name] = text
        holders = "\n".join(notices(package, files))
        stanzas.append((f"{key[0]}-{key[1]}", holders, names))
    missing = {name for _, _, names in stanzas for name in names} - set(texts) - set(COMMON)
    if missing:
        raise SystemExit(f"copyright: no crate has the text of {', '.join(sorted(missing))}")
    write(stanzas, texts)
    return 0


def write(stanzas: list[tuple[str, str, list[str]]], texts: dict[str, str]) -> None:
    used = {name for _, _, names in stanzas for name in names} | {"MIT", "Apache-2.0"}
    print("Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/")
    print("Upstream-Name: MobiFS")
    print("Source: https://github.com/mobifs/mobifs")
    print("Comment: The programs are linked statically with the libraries that are named here, and with the")
    print(" standard library of Rust (MIT or Apache-2.0, by the Rust project contributors). mobifs-lab has SQLite")
    print(" in it, which is in the public domain, and Zstandard (BSD-3-Clause, by Meta Platforms).")
    print("\nFiles: *\nCopyright: The MobiFS developers\nLicense: MIT or Apache-2.0")
    for name, holders, names in stanzas:
        print(f"\nFiles: {name}/*\nCopyright: {holders.splitlines()[0]}")
        for line in holders.splitlines()[1:]:
            print(f"           {line}")
        print(f"License: {' and '.join(names)}")
    for name in sorted(used):
        print(f"\nLicense: {name}")
        if name in COMMON:
            print(f" On Debian systems the text is in /usr/share/common-licenses/{COMMON[name]}.")
        else:
            print(indented(texts[name]))


if __name__ == "__main__":
    sys.exit(main())
