#!/usr/bin/env bash
# Formatting, clippy, the purity of the engine, file lengths, licences.
set -euo pipefail
cd "$(dirname "$0")/.."

step() { printf '\n== %s\n' "$*"; }

step "format"
cargo fmt --all --check

step "clippy"
cargo clippy --workspace --all-targets -- -D warnings

step "purity of the engine (no standard library in core and types)"
scripts/check-purity.sh

step "file length"
scripts/check-file-length.sh

step "shell and python syntax"
for file in scripts/*.sh .ci/run; do bash -n "$file"; done
python3 - <<'PYTHON'
import ast, pathlib
for path in sorted(pathlib.Path("scripts").rglob("*.py")):
    ast.parse(path.read_text(), str(path))
PYTHON

step "licences"
if cargo deny --version >/dev/null 2>&1; then
  cargo deny --offline check licenses bans sources
else
  echo "cargo-deny is not installed; checking licences from the lock file only"
  python3 scripts/check_licences.py
fi
