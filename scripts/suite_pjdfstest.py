#!/usr/bin/env python3
"""pjdfstest, complete, on a MobiFS mount over a real ext4, compared with its list exactly.

  suite_pjdfstest.py [--bare]     --bare: on the ext4 itself, with an empty list

As root, and then what it has for ordinary users as one of them: on root's mount and on the
user's own, where every case must end as it does for that user on the ext4.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from lib.disk import LoopImage, loop_devices_work, scratch_dir
from lib.mount import MobiMount
from lib.process import ROOT, Cleanup, Failed, built_binary, main_guard, say, suite_binary

SUITES = ROOT / "scripts" / "suites"
# The suite remounts read-only for these; see `run_suite`.
REMOUNTING = "erofs"
# The unprivileged user `nobody`, on every Linux system.
USER = 65534


def fitting_directory(parent: Path, name: str = "m") -> Path:
    """A directory whose path length suits the suite; its name starts with `name`.

    pjdfstest 0.2.2 makes the longest legal path out of components of 127 characters and
    miscounts if the remainder behind its two temporary directories is 0 or 1.
    """
    path = parent / name
    while (4095 - len(str(path)) - 2 * len("/.tmpXXXXXX")) % 127 < 2:
        path = path.with_name(path.name + "m")
    return path


def users_directory(parent: Path, name: str) -> Path:
    path = fitting_directory(parent, name)
    path.mkdir()
    shutil.chown(path, USER, USER)
    return path


def outcomes(output: str) -> dict[str, str]:
    """Case name -> ok, FAILED or skipped, with the suite's words for a failure."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", output)
    pattern = re.compile(r"^(\S+::\S+)\s+(ok|FAILED|skipped)$\n?(\t.*)?", re.MULTILINE)
    found = {}
    for match in pattern.finditer(plain):
        name, outcome, detail = match.groups()
        found[name] = outcome if outcome != "FAILED" else f"FAILED: {(detail or '').strip()}"
    return found


AS_USER = {"user": USER, "group": USER, "extra_groups": []}


def run_command(command: list[object], **who: object) -> dict[str, str]:
    done = subprocess.run(
        [str(word) for word in command],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        **who,
    )
    found = outcomes(done.stdout)
    if "Summary" not in done.stdout or not found:
        raise Failed(f"pjdfstest did not run to its end:\n{done.stdout[-2000:]}{done.stderr}")
    return found


def run_once(config: Path, path: Path, secondary: Path, *patterns: str) -> dict[str, str]:
    command = [suite_binary("pjdfstest"), "-c", config, "-p", path, "-s", secondary, *patterns]
    return run_command(command)


class User:
    """A user that may read neither our tools nor our configuration: copies lie in scratch."""

    def __init__(self, scratch: Path) -> None:
        self.suite = self.copy(Path(suite_binary("pjdfstest")), scratch)
        self.config = self.copy(SUITES / "pjdfstest.toml", scratch)
        self.mobifs = self.copy(Path(built_binary("mobifs")), scratch)

    @staticmethod
    def copy(source: Path, scratch: Path) -> Path:
        target = scratch / f"user-{source.name}"
        shutil.copy(source, target)
        target.chmod(0o755)
        return target

    def run_suite(self, path: Path) -> dict[str, str]:
        return run_command([self.suite, "-c", self.config, "-p", path], cwd="/", **AS_USER)

    def mobifs_command(self, *words: object) -> None:
        command = [str(word) for word in (self.mobifs, *words)]
        done = subprocess.run(command, capture_output=True, text=True, cwd="/", **AS_USER)
        if done.returncode != 0:
            raise Failed(f"{command}: {done.stdout}{done.stderr}")

    @staticmethod
    def may_mount() -> bool:
        opens = ["sh", "-c", ": < /dev/fuse > /dev/fuse"]
        return subprocess.run(opens, capture_output=True, cwd="/", **AS_USER).returncode == 0


def run_as_user(
    cleanup: Cleanup, scratch: Path, lower: Path, mount: Path, listed: set[str]
) -> tuple[int, int, int]:
    """What ends otherwise for an ordinary user than on the ext4; passed, bad and skipped."""
    user = User(scratch)
    plain = user.run_suite(users_directory(lower, "p"))
    subjects = {"on root's mount": user.run_suite(users_directory(mount, "r"))}
    if user.may_mount():
        subjects["on the user's own mount"] = run_on_own_mount(cleanup, scratch, lower, user)
    else:
        say("SKIPPED pjdfstest on the user's own mount: /dev/fuse is not for everybody here")
    passed = bad = 0
    skipped = 2 - len(subjects)
    for subject, found in subjects.items():
        for name in (plain.keys() | found.keys()) - listed:
            if plain.get(name) != found.get(name):
                say(f"unexpected: {name} {found.get(name)} for a user {subject}, "
                    f"{plain.get(name)} on ext4")
                bad += 1
        ran = sum(1 for outcome in found.values() if outcome == "ok")
        say(f"pjdfstest as a user {subject}: {ran} passed, the others are for root")
        passed += ran
    return passed, bad, skipped


def run_on_own_mount(cleanup: Cleanup, scratch: Path, lower: Path, user: User) -> dict[str, str]:
    own = users_directory(scratch, "u")
    store = users_directory(lower, "s")
    log = users_directory(scratch, "l") / "log"
    user.mobifs_command("mount", "--log", log, store, own)
    cleanup.callback(subprocess.run, ["umount", "-l", str(own)], capture_output=True)
    found = user.run_suite(own)
    user.mobifs_command("umount", own)
    return found


def run_suite(scratch: Path, path: Path, secondary: Path) -> dict[str, str]:
    """All cases. Those that remount run on their own afterwards: a case of the suite keeps a
    file open for writing, and the kernel then refuses the remount, on ext4 too."""
    config = SUITES / "pjdfstest.toml"
    found = run_once(config, path, secondary)
    remounting = scratch / "pjdfstest-remount.toml"
    remounting.write_text(
        config.read_text().replace("allow_remount = false", "allow_remount = true")
    )
    again = run_once(remounting, path, secondary, REMOUNTING)
    strangers = [name for name in again if found.get(name) != "skipped"]
    if strangers:
        raise Failed(f"cases ran twice: {strangers}")
    return {**found, **again}


def compare(found: dict[str, str], expected: dict[str, dict[str, str]]) -> tuple[int, int]:
    """Prints every difference; passed and bad."""
    bad = 0
    listed = {name: "FAILED" for name in expected["failed"]}
    listed |= {name: "skipped" for name in expected["skipped"]}
    for name, outcome in found.items():
        if outcome.split(":")[0] != listed.get(name, "ok"):
            say(f"unexpected: {name} {outcome}, the list says {listed.get(name, 'ok')}")
            bad += 1
    for name in listed.keys() - found.keys():
        say(f"unexpected: the list names {name}, which the suite does not have")
        bad += 1
    passed = sum(1 for outcome in found.values() if outcome == "ok")
    say(f"pjdfstest: {len(found)} cases, {passed} passed, {len(listed)} listed as impossible")
    return passed, bad


def main() -> int:
    reason = loop_devices_work()
    if reason or not Path("/dev/fuse").exists():
        say(f"SKIPPED pjdfstest: {reason or 'no /dev/fuse'}")
        say("0 passed, 0 failed, 1 skipped")
        return 0
    bare = "--bare" in sys.argv[1:]
    expected = tomllib.loads((SUITES / "pjdfstest-expected.toml").read_text())
    if bare:
        expected = {"failed": {}, "skipped": {}}
    with Cleanup() as cleanup:
        scratch = scratch_dir(cleanup, "pjdfstest")
        lower = LoopImage(cleanup, scratch, "ext4", 2048)
        secondary = LoopImage(cleanup, scratch, "ext4", 128)
        path = fitting_directory(scratch)
        if bare:
            path.mkdir()
            subprocess.run(["mount", "--bind", lower.mountpoint, path], check=True)
            cleanup.callback(subprocess.run, ["umount", str(path)], check=True)
            # A remount of the bind mount would only change the bind; the suite must see the
            # filesystem itself.
            subprocess.run(["umount", str(lower.mountpoint)], check=True)
        else:
            mount = MobiMount(cleanup, lower.mountpoint / "store", path)
            mount.mount()
        path.chmod(0o755)
        say(f"pjdfstest on {'ext4' if bare else 'MobiFS over ext4'}")
        passed, bad = compare(run_suite(scratch, path, secondary.mountpoint), expected)
        skipped = len(expected["skipped"])
        if not bare:
            as_user = run_as_user(
                cleanup, scratch, lower.mountpoint, path, set(expected["skipped"])
            )
            passed, bad, skipped = passed + as_user[0], bad + as_user[1], skipped + as_user[2]
        say(f"{passed} passed, {bad} failed, {skipped} skipped")
        return 1 if bad else 0


if __name__ == "__main__":
    main_guard(main)
