#!/usr/bin/env python3
"""Checks every dependency's licence expression against the list in deny.toml, offline."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


class Expression:
    """A licence expression: terms joined by OR, of factors joined by AND."""

    def __init__(self, text: str, allowed: set[str]) -> None:
        joined = re.sub(r"\s+WITH\s+", "_WITH_", text.replace("/", " OR "))
        self.tokens = re.findall(r"[()]|[^\s()]+", joined)
        self.allowed = allowed

    def permitted(self) -> bool:
        """True if one alternative consists of allowed licences only."""
        result = self._any()
        if self.tokens:
            raise ValueError(f"cannot read licence expression near {self.tokens}")
        return result

    def _any(self) -> bool:
        result = self._all()
        while self.tokens[:1] == ["OR"]:
            self.tokens.pop(0)
            result = self._all() or result
        return result

    def _all(self) -> bool:
        result = self._one()
        while self.tokens[:1] == ["AND"]:
            self.tokens.pop(0)
            result = self._one() and result
        return result

    def _one(self) -> bool:
        token = self.tokens.pop(0)
        if token != "(":
            return token.replace("_WITH_", " WITH ") in self.allowed
        result = self._any()
        self.tokens.pop(0)
        return result


def dependencies() -> list[dict]:
    """The packages this platform builds, from the lock file."""
    host = subprocess.run(["rustc", "-vV"], check=True, capture_output=True, text=True).stdout
    platform = re.search(r"^host: (\S+)$", host, re.MULTILINE)
    if platform is None:
        raise ValueError("rustc does not name its host")
    command = ["cargo", "metadata", "--format-version", "1", "--locked"]
    command += ["--filter-platform", platform.group(1)]
    output = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(output.stdout)["packages"]


def main() -> int:
    allowed = set(tomllib.loads((ROOT / "deny.toml").read_text())["licenses"]["allow"])
    packages = dependencies()
    refused = [
        f"{package['name']} {package['version']}: {package['license']}"
        for package in packages
        if not Expression(package["license"] or "none", allowed).permitted()
    ]
    for line in refused:
        print(f"licence not allowed: {line}", file=sys.stderr)
    print(f"{len(packages)} packages, {len(refused)} with a licence not allowed")
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
