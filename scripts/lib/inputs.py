"""Real input that is always there: this project's own history, and a package from crates.io."""

from __future__ import annotations

import os
import subprocess
import tarfile
from pathlib import Path

from lib.process import ROOT, Failed, run

GIT = {
    "GIT_AUTHOR_NAME": "demo",
    "GIT_AUTHOR_EMAIL": "demo@example.org",
    "GIT_COMMITTER_NAME": "demo",
    "GIT_COMMITTER_EMAIL": "demo@example.org",
}


def prepare_git(scratch: Path) -> None:
    """Keeps git from looking at the user's own settings, and lets it read a clone that another
    user owns: git takes that permission from a settings file only."""
    settings = scratch / "gitconfig"
    settings.write_text("[safe]\n\tdirectory = *\n")
    os.environ["GIT_CONFIG_GLOBAL"] = str(settings)
    os.environ["GIT_CONFIG_NOSYSTEM"] = "1"


def source_repository(scratch: Path) -> Path:
    """The project's own clone; from an unpacked archive, a repository made of its files."""
    prepare_git(scratch)
    inside = subprocess.run(
        ["git", "-C", ROOT, "rev-parse", "--git-dir"],
        capture_output=True,
    )
    if inside.returncode == 0:
        return ROOT
    made = scratch / "source-repository"
    run("git", "init", "--quiet", made, env=GIT)
    run("cp", "-r", ROOT / "crates", ROOT / "scripts", made)
    run("git", "-C", made, "add", ".", env=GIT)
    run("git", "-C", made, "commit", "--quiet", "-m", "The project's files", env=GIT)
    return made


def packages(count: int) -> list[Path]:
    """The largest package files that building this project has brought here."""
    home = Path(os.environ.get("CARGO_HOME", Path.home() / ".cargo"))
    crates = sorted(home.glob("registry/cache/*/*.crate"), key=lambda path: path.stat().st_size)
    if not crates:
        raise Failed(f"no package file below {home}/registry/cache; run `make build` first")
    return crates[-count:]


def unpack(package: Path, directory: Path) -> None:
    """With tar, as a person would; the order of the members is the order of the writes."""
    directory.mkdir(parents=True, exist_ok=True)
    run("tar", "-xzf", package, "-C", directory)


def unpacked_prefix(package: Path, directory: Path) -> tuple[int, int]:
    """How many files of the package are there, of how many.

    They must be a state that unpacking goes through: files complete up to some point, at most
    one begun there, nothing behind it. Anything else is a `Failed`.
    """
    there, total, ended_at = 0, 0, None
    with tarfile.open(package) as archive:
        for member in archive:
            if not member.isfile():
                continue
            total += 1
            reader = archive.extractfile(member)
            expected = reader.read() if reader else b""
            path = directory / member.name
            found = path.read_bytes() if path.exists() else None
            if found == expected and (ended_at is None or not expected):
                there += 1
            elif ended_at is None:
                ended_at = member.name
                if found is not None and not expected.startswith(found):
                    raise Failed(f"{path} is not the beginning of what was written")
            elif found is not None:
                raise Failed(f"{path} is there, but {ended_at}, written before it, is not whole")
    return there, total
