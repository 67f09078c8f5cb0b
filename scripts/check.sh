#!/usr/bin/env bash
# What to run before every commit: formatting, clippy, the engine's purity, documents, unit tests. Needs
# neither root nor mounts; `make test` is everything.
set -euo pipefail
cd "$(dirname "$0")/.."

started=$SECONDS
cargo fmt --all --check
cargo clippy --quiet --workspace --all-targets --locked -- -D warnings
scripts/check-purity.sh
scripts/check-file-length.sh
python3 scripts/check_docs.py
cargo test --quiet --workspace --locked --lib --bins
echo "check: clean, $((SECONDS - started)) s"
