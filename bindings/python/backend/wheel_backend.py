"""Builds the wheel: a PEP 517 backend that needs no package, and a program.

    python3 wheel_backend.py DIRECTORY [--library FILE] [--glibc-max VERSION]

The wheel carries the extension, stripped, built by cargo in the repository that this lies in
(`--library`, or the config setting `library`: one that is built already, for any machine). Its tag
says which machine and C library it needs, as the extension's own header and symbols say.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import tempfile
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
REPOSITORY = HERE.parent.parent
PACKAGE = "mobifs_sqlite"
LIBRARY = "libmobifs.so"
# What a library of such a wheel may be linked with, besides itself (PEP 600).
ALLOWED = {"libc.so.6", "libm.so.6", "libgcc_s.so.1", "libpthread.so.0", "libdl.so.2"}
# A wheel's times; the same files make the same wheel.
TIME = (1980, 1, 1, 0, 0, 0)


def build_wheel(
    wheel_directory: str,
    config_settings: dict[str, str] | None = None,
    metadata_directory: str | None = None,
) -> str:
    """PEP 517: makes the wheel and returns its name."""
    chosen = (config_settings or {}).get("library")
    library = Path(chosen) if chosen else built_library()
    with tempfile.TemporaryDirectory() as scratch:
        stripped = Path(scratch) / LIBRARY
        shutil.copyfile(library, stripped)
        run(strip_program(stripped), "--strip-unneeded", str(stripped))
        tag = platform_tag(stripped, (config_settings or {}).get("glibc-max"))
        return write_wheel(Path(wheel_directory), stripped.read_bytes(), tag)


def build_sdist(sdist_directory: str, config_settings: dict[str, str] | None = None) -> str:
    """PEP 517 asks for it; the package alone lacks the crates that the extension is made of."""
    raise SystemExit("mobifs-sqlite is built from its repository only; there is no sdist")


def built_library() -> Path:
    """The extension, after cargo has built it."""
    command = ["cargo", "build", "--release", "--locked", "--message-format=json"]
    messages = run(*command, "-p", "mobifs-sqlite-extension")
    for line in messages.splitlines():
        message = json.loads(line)
        if message.get("reason") != "compiler-artifact":
            continue
        for name in message["filenames"]:
            if Path(name).name == LIBRARY:
                return Path(name)
    raise SystemExit(f"cargo has built no {LIBRARY}")


def run(*command: str) -> str:
    done = subprocess.run(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise SystemExit(f"`{' '.join(command)}` ended with {done.returncode}")
    return done.stdout


def machine_of(library: Path) -> str:
    """The machine that the library is for, as in the tags of wheels."""
    header = run("readelf", "--file-header", str(library))
    found = re.search(r"Machine:\s+(.+)", header)
    names = {"Advanced Micro Devices X86-64": "x86_64", "AArch64": "aarch64", "ARM": "armv7l"}
    machine = names.get(found[1].strip()) if found else None
    if machine is None:
        raise SystemExit(f"no wheel is made for the machine {found[1] if found else 'of no name'}")
    return machine


def strip_program(library: Path) -> str:
    """`strip` of binutils knows its own machine, Debian's cross binutils have others."""
    machine = machine_of(library)
    if machine == platform.machine():
        return "strip"
    return f"{machine}-linux-gnu-strip" if machine != "armv7l" else "arm-linux-gnueabihf-strip"


def platform_tag(library: Path, glibc_max: str | None = None) -> str:
    """The oldest manylinux on which the library can be loaded; an error if that is newer than `glibc_max`."""
    dynamic = run("readelf", "--wide", "--dynamic", str(library))
    needed = set(re.findall(r"\(NEEDED\).*\[(.+)\]", dynamic))
    foreign = {name for name in needed - ALLOWED if not name.startswith("ld-linux")}
    if foreign:
        raise SystemExit(f"the extension needs {', '.join(sorted(foreign))}: no wheel carries that")
    versions = run("readelf", "--wide", "--version-info", str(library))
    found = re.findall(r"GLIBC_(\d+)\.(\d+)", versions)
    major, minor = max((int(major), int(minor)) for major, minor in found)
    limit = tuple(int(part) for part in glibc_max.split(".")) if glibc_max else (major, minor)
    if (major, minor) > limit:
        raise SystemExit(f"the extension needs glibc {major}.{minor}, and not {glibc_max} at most")
    return f"manylinux_{limit[0]}_{limit[1]}_{machine_of(library)}"


def project() -> dict[str, str]:
    """The fields of the project that are text. (A reader of TOML comes with Python 3.11 only.)"""
    text = (HERE / "pyproject.toml").read_text()
    table = text.partition("[project]\n")[2].partition("\n[")[0]
    return dict(re.findall(r'^([a-z-]+) = "(.*)"$', table, re.MULTILINE))


def metadata(about: dict[str, str]) -> str:
    text = (HERE / "pyproject.toml").read_text()
    classifiers = re.findall(r'^ {4}"(.+ :: .+)",$', text, re.MULTILINE)
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {about['name']}",
        f"Version: {about['version']}",
        f"Summary: {about['description']}",
        f"License: {about['license']}",
        *(f"Classifier: {classifier}" for classifier in classifiers),
        f"Requires-Python: {about['requires-python']}",
        "Description-Content-Type: text/markdown",
    ]
    return "\n".join(lines) + "\n\n" + (HERE / about["readme"]).read_text()


def write_wheel(directory: Path, library: bytes, tag: str) -> str:
    about = project()
    stem = f"{PACKAGE}-{about['version']}"
    information = f"{stem}.dist-info"
    files = {
        f"{PACKAGE}/{path.name}": path.read_bytes()
        for path in sorted((HERE / "src" / PACKAGE).iterdir())
        if path.suffix in (".py", ".typed")
    }
    files[f"{PACKAGE}/{LIBRARY}"] = library
    for licence in ("LICENSE-MIT", "LICENSE-APACHE"):
        files[f"{information}/licenses/{licence}"] = (REPOSITORY / licence).read_bytes()
    files[f"{information}/METADATA"] = metadata(about).encode()
    wheel = f"Wheel-Version: 1.0\nGenerator: {PACKAGE}\nRoot-Is-Purelib: false\nTag: py3-none-{tag}\n"
    files[f"{information}/WHEEL"] = wheel.encode()
    record = "".join(f"{name},{digest(data)},{len(data)}\n" for name, data in files.items())
    record_name = f"{information}/RECORD"
    files[record_name] = f"{record}{record_name},,\n".encode()
    directory.mkdir(parents=True, exist_ok=True)
    name = f"{stem}-py3-none-{tag}.whl"
    with zipfile.ZipFile(directory / name, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in files.items():
            entry = zipfile.ZipInfo(path, TIME)
            entry.compress_type = zipfile.ZIP_DEFLATED
            mode = 0o755 if path.endswith(".so") else 0o644
            entry.external_attr = (0o100000 | mode) << 16
            archive.writestr(entry, data)
    return name


def digest(data: bytes) -> str:
    hashed = base64.urlsafe_b64encode(hashlib.sha256(data).digest())
    return "sha256=" + hashed.rstrip(b"=").decode()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("directory", help="where the wheel goes")
    parser.add_argument("--library", help="the extension, if it is built already")
    parser.add_argument("--glibc-max", help="the newest C library that it may need; the tag names it")
    options = parser.parse_args()
    settings = {"library": os.path.abspath(options.library)} if options.library else {}
    if options.glibc_max:
        settings["glibc-max"] = options.glibc_max
    name = build_wheel(options.directory, settings)
    size = (Path(options.directory) / name).stat().st_size
    print(f"{Path(options.directory) / name} ({size / (1 << 20):.1f} MiB)")


if __name__ == "__main__":
    main()
