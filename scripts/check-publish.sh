#!/usr/bin/env bash
# Packs every crate that is published as crates.io would get it and builds it from there, so that
# `cargo install mobifs-cli` works: nothing outside its directory is needed, its description is complete.
#
#   scripts/check-publish.sh [--no-verify]      --no-verify: without building
#   scripts/check-publish.sh --described        whether their descriptions are complete, and nothing else
set -euo pipefail
cd "$(dirname "$0")/.."

# The limit of crates.io.
SIZE_MAX=$((10 * 1024 * 1024))

mapfile -t crates < <(cargo metadata --locked --no-deps --format-version 1 2>/dev/null | python3 -c '
import json, sys
missing = []
for package in json.load(sys.stdin)["packages"]:
    name = package["name"]
    is_test = "/test/" in package["manifest_path"] or "/lab/" in package["manifest_path"]
    is_published = package["publish"] != []
    if is_test and is_published:
        missing.append(f"{name}: of the tests or the laboratory, and published")
    if not is_published:
        continue
    for field in ("description", "license", "repository", "homepage", "categories"):
        if not package[field]:
            missing.append(f"{name}: no {field}")
    for dependency in package["dependencies"]:
        needed = dependency["name"]
        if dependency.get("path") and dependency["kind"] is None and dependency["req"] == "*":
            missing.append(f"{name}: {needed} has no version")
    print(name)
if missing:
    sys.exit("\n".join(missing))
' || echo FAILED)
if [[ " ${crates[*]} " == *" FAILED "* ]]; then exit 1; fi
[ "${1:-}" != --described ] || exit 0
packages=()
for crate in "${crates[@]}"; do packages+=(--package "$crate"); done
directory=${CARGO_TARGET_DIR:-$PWD/target}/package
rm -rf "$directory"
cargo package --locked --allow-dirty "$@" "${packages[@]}"
for file in "$directory"/*.crate; do
  size=$(stat -c %s "$file")
  [ "$size" -le "$SIZE_MAX" ] || { echo "$file is too large: $size bytes" >&2; exit 1; }
done
echo "${#crates[@]} crates can be published, the largest of $(stat -c %s "$directory"/*.crate | sort -n | tail -n 1) bytes"
