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

# The profile dev compiles in a fraction of the time of the profile test, which optimizes what `make test`
# computes with. Frames of code that is not optimized are larger, so threads get more than the
# 256 KiB of scripts/with-small-stacks.sh; not so the compiler, hence two commands.
tests=(cargo test --quiet --workspace --locked --lib --bins --profile dev)
"${tests[@]}" --no-run
RUST_MIN_STACK=$((512 * 1024)) "${tests[@]}"
echo "check: clean, $((SECONDS - started)) s"
