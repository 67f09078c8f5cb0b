#!/usr/bin/env bash
# Builds the SQLite VFS for older distributions: wheels for manylinux_2_28 (Debian 10, Ubuntu 20.04, RHEL 8 and newer)
# into target/wheels, and the npm package into target/npm.
#
#   scripts/wheels.sh [MACHINE...]      x86_64, aarch64; default: both
#
# zig links it with the symbols of that C library. The wheel's tag is read from the symbols that the extension needs, and
# must be no newer.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib/release.sh
. scripts/lib/zig.sh

GLIBC=2.28
TARGET_DIRECTORY=${CARGO_TARGET_DIR:-$PWD/target}
NPM=$TARGET_DIRECTORY/npm

# build MACHINE
build() {
  local target=$1-unknown-linux-gnu
  [ "$target" = "$RELEASE_HOST" ] || rustup --quiet target add "$target"
  CARGO_PROFILE_RELEASE_STRIP=symbols RUSTFLAGS="$(release_paths)" zig_build --release --locked \
    --target "$target.$GLIBC" --target-dir "$TARGET_DIRECTORY/portable" -p mobifs-sqlite-extension
}

npm_package() {
  rm -rf "$NPM/package"
  mkdir -p "$NPM/package"
  cp bindings/node/{index.cjs,index.d.ts,package.json,README.md} LICENSE-MIT LICENSE-APACHE "$NPM/package/"
  local machine name
  for machine in "$@"; do
    name=${machine/x86_64/x64}
    name=${name/aarch64/arm64}
    install -D -m 644 "$TARGET_DIRECTORY/portable/$machine-unknown-linux-gnu/release/libmobifs.so" \
      "$NPM/package/prebuilds/linux-$name/libmobifs.so"
  done
  (cd "$NPM/package" && npm pack --silent --pack-destination "$NPM")
}

[ $# -gt 0 ] || set -- x86_64 aarch64
release_environment
zig_tools
for machine in "$@"; do
  build "$machine"
  python3 bindings/python/backend/wheel_backend.py "$TARGET_DIRECTORY/wheels" --glibc-max "$GLIBC" \
    --library "$TARGET_DIRECTORY/portable/$machine-unknown-linux-gnu/release/libmobifs.so"
done
if command -v npm >/dev/null; then npm_package "$@"; else echo "wheels: no npm here: no npm package"; fi
