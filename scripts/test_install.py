#!/usr/bin/env python3
"""Installs by the script of the archives (dist/install.sh) into directories, and uninstalls; and compares the recipes
for other systems with what `make install` installs.

Ends with one line: N passed, M failed, K skipped.

  test_install.py [--script FILE]
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from lib.process import ROOT

HELPERS = ("mount.fuse.mobifs", "umount.fuse.mobifs", "umount.fuseblk.mobifs")
UNIT = "lib/systemd/system/mobifs@.service"


class Wrong(Exception):
    """What is not as it should be."""


def must(is_so: bool, what: str) -> None:
    if not is_so:
        raise Wrong(what)


def archive(directory: Path, script: Path) -> Path:
    """An archive of a program that only says a version, with a page and a unit."""
    for name, text in (("bin/mobifs", "#!/bin/sh\necho mobifs 1\n"), ("share/man/man1/mobifs.1", ""),
                       (UNIT, "ExecStart=/usr/local/bin/mobifs\n")):  # fmt: skip
        file = directory / "files" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (directory / "files/bin/mobifs").chmod(0o755)
    shutil.copy(script, directory / "install.sh")
    return directory / "install.sh"


def run(script: Path, root: Path, *words: str) -> None:
    environment = {**os.environ, "DESTDIR": str(root)}
    done = subprocess.run(["sh", script, *words], env=environment, capture_output=True, text=True)
    must(done.returncode == 0, f"install.sh {' '.join(words)}: {done.stderr}")


def everything(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*")}


def a_user_of_a_prefix(script: Path, root: Path) -> None:
    run(script, root, "--prefix", "/opt/mobifs")
    unit = root / "opt/mobifs" / UNIT
    must(unit.read_text() == "ExecStart=/opt/mobifs/bin/mobifs\n", f"the unit is {unit.read_text()}")
    for helper in HELPERS:
        must(os.readlink(root / "sbin" / helper) == "/opt/mobifs/bin/mobifs", f"{helper} leads elsewhere")
    run(script, root, "--prefix", "/opt/mobifs", "--uninstall")
    left = everything(root) - {"opt", "sbin"}
    must(left <= {"opt/mobifs"}, f"left: {sorted(left)}")


def empty_directories_of_the_system_stay(script: Path, root: Path) -> None:
    for directory in ("sbin", "usr/local/bin", "usr/local/share/man"):
        (root / directory).mkdir(parents=True)
    before = everything(root)
    # The second time as an upgrade, which finds the directories of the first.
    for _ in range(2):
        run(script, root)
    run(script, root, "--uninstall")
    must(everything(root) == before, f"before {sorted(before)}, after {sorted(everything(root))}")


def files_of_others_stay(script: Path, root: Path) -> None:
    run(script, root)
    theirs = root / "usr/local/share/man/man1/other.1"
    theirs.write_text("theirs")
    run(script, root, "--uninstall")
    must(theirs.read_text() == "theirs", "a file of others is gone")
    must(not (root / "usr/local/bin").exists(), "a directory of ours is left")


def adopted_directories_of_any_user_keep_the_program(script: Path, root: Path) -> None:
    prefix = root / "prefix"
    makefile = ("make", "-s", "-C", str(ROOT), "uninstall", f"PREFIX={prefix}", f"HELPERDIR={root}/sbin")
    script_command = ("sh", str(script), "--prefix", str(prefix), "--helpers", f"{root}/sbin", "--uninstall")
    environment = {name: value for name, value in os.environ.items() if name not in ("DESTDIR", "MAKEFLAGS", "MAKELEVEL")}
    program = prefix / "bin/mobifs"
    adopted = """case $* in 'adopt --list'*) echo '{"adopted":[{"directory":"/home/a/.cache"}]}' ;; esac"""
    mounted = "case $* in 'every adopted') exit 1 ;; esac"
    for command in (script_command, makefile):
        for text in (adopted, mounted):
            program.parent.mkdir(parents=True, exist_ok=True)
            program.write_text(f"#!/bin/sh\n{text}\n")
            program.chmod(0o755)
            done = subprocess.run(command, env=environment, capture_output=True, text=True)
            must(done.returncode != 0, f"{command[0]} succeeded although a directory is adopted")
            must("directories are adopted" in done.stderr, f"{command[0]}: {done.stderr}")
            must(program.exists(), f"{command[0]} has removed the program")
        program.write_text("#!/bin/sh\n")
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        is_mounted = "MobiFS is mounted" in done.stderr
        must(done.returncode == 0 or is_mounted, f"{command[0]}: {done.stderr}")
        must(is_mounted or not program.exists(), f"{command[0]} has left the program")


def recipes_install_every_program(_script: Path, _root: Path) -> None:
    commands = subprocess.run(["make", "-n", "install-programs", "BUILD=built", "DESTDIR=", "PREFIX=/usr"], cwd=ROOT,
                              check=True, capture_output=True, text=True).stdout  # fmt: skip
    installed = re.findall(r"/usr/bin/(\S+)", commands)
    must(len(installed) > 1, f"make install-programs installs {installed}")
    for recipe, bindir in (("rpm/mobifs.spec", "%{_bindir}"), ("buildroot/mobifs.mk", "/usr/bin"),
                           ("yocto/mobifs_0.1.0.bb", "${bindir}")):  # fmt: skip
        words = (ROOT / "dist" / recipe).read_text().split()
        for program in installed:
            must(any(word.endswith(f"{bindir}/{program}") for word in words), f"dist/{recipe} lacks {program}")


def rpm_has_the_pages_of_the_laboratory_apart(_script: Path, _root: Path) -> None:
    source = (ROOT / "crates/cli/src/lib.rs").read_text()
    commands = ["lab", *re.findall(r'laboratory::run\(Some\("([a-z]+)"\)', source)]
    must(len(commands) > 1, f"the laboratory's commands are {commands}")
    lines = (ROOT / "dist/rpm/mobifs.spec").read_text().splitlines()
    for command in commands:
        pages = f"%{{_mandir}}/man1/mobifs-{command}*.1*"
        must(f"%exclude {pages}" in lines, f"the package mobifs does not leave out {pages}")
        must(pages in lines, f"the package mobifs-lab lacks {pages}")


def release(command: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", "-c", f'set -euo pipefail; . scripts/lib/release.sh; {command} "$@"', "-", *words],
                          cwd=ROOT, capture_output=True, text=True)  # fmt: skip


def cross_built_packages_depend_on_packages_of_their_architecture(_script: Path, root: Path) -> None:
    done = release("release_libraries", sys.executable, "/bin/sh")
    must(done.returncode == 0, f"release_libraries: {done.stderr}")
    libraries = dict(re.findall(r"(.+ \d+) (libc6 \(>= 2\.\d+\)|libgcc-s1)\n", done.stdout))
    must({"libc 6", "libgcc_s 1"} <= libraries.keys(), f"libraries are {done.stdout}")
    if shutil.which("dpkg-deb") is None:
        return
    control = root / "DEBIAN/control"
    control.parent.mkdir()
    for depends, is_fine in (("libc6 (>= 2.34), libgcc-s1", True), ("libc6 (>= 2.34), libgcc-s1-arm64-cross (>= 4.2)", False),
                             ("libc6:arm64 (>= 2.36)", False)):  # fmt: skip
        control.write_text(f"Package: mobifs\nVersion: 1\nArchitecture: arm64\nMaintainer: m <m@example.org>\n"
                           f"Depends: {depends}\nDescription: d\n")  # fmt: skip
        package = str(root.parent / "mobifs.deb")
        subprocess.run(["dpkg-deb", "--root-owner-group", "--build", root, package], check=True, capture_output=True)
        done = release("release_has_no_cross_package", package)
        must((done.returncode == 0) == is_fine, f"a package that depends on {depends}: {done.returncode}, {done.stderr}")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--script", type=Path, default=ROOT / "dist/install.sh")
    options = parser.parse_args()
    failed = 0
    tests = (a_user_of_a_prefix, empty_directories_of_the_system_stay, files_of_others_stay,
             adopted_directories_of_any_user_keep_the_program, recipes_install_every_program,
             rpm_has_the_pages_of_the_laboratory_apart,
             cross_built_packages_depend_on_packages_of_their_architecture)  # fmt: skip
    for test in tests:
        with TemporaryDirectory() as scratch:
            root = Path(scratch) / "root"
            root.mkdir()
            try:
                test(archive(Path(scratch) / "archive", options.script), root)
            except Wrong as wrong:
                print(f"{test.__name__}: FAILED, {wrong}")
                failed += 1
    print(f"{len(tests) - failed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
