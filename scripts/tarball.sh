#!/usr/bin/env bash
# Makes archives of static programs, for machines with any C library or none: target/tarball/mobifs-VERSION-MACHINE.tar.gz
# with the program, manual pages, completions, units and an install script, and SHA256SUMS.
#
#   scripts/tarball.sh [TARGET...]      default: musl for x86_64, aarch64 and armv7
#
# Debug symbols are in archives of their own (-debug). The same commit and toolchain make the same bytes.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib/release.sh

OUT=${CARGO_TARGET_DIR:-$PWD/target}/tarball
VERSION=$(release_version)

# archive TREE NAME: sorted, owned by root, with the time of the release.
archive() {
  tar --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --format=gnu \
    -C "$1" -cf - "$2" | gzip -9n >"$OUT/$2.tar.gz"
}

# pack TARGET
pack() {
  local target=$1 machine=${1%%-*} tree name objcopy binaries program
  name=mobifs-$VERSION-linux-$machine
  tree=$(mktemp -d "$OUT/tree.XXXXXX")
  binaries=$(release_directory "$target" dist)
  objcopy=$(release_objcopy "$binaries/mobifs")
  release_has_no_path "$binaries/mobifs" "$binaries/mobifs-top"
  mkdir -p "$tree/$name/files" "$tree/$name-debug"
  make --no-print-directory install-programs install-manuals install-units BUILD="$binaries" \
    PREFIX=/ UNIT_PREFIX=/usr/local MANUALS="$OUT/manuals" PRELOAD=no DESTDIR="$tree/$name/files" ZSH_COMPLETIONS=/share/zsh/site-functions
  for program in mobifs mobifs-top; do
    "$objcopy" --only-keep-debug "$binaries/$program" "$tree/$name-debug/$program.debug"
    "$objcopy" --strip-all "$tree/$name/files/bin/$program"
  done
  cp dist/install.sh dist/etc/mobifs.toml LICENSE-MIT LICENSE-APACHE CHANGELOG.md "$tree/$name/"
  python3 scripts/copyright.py --target "$target" mobifs-cli mobifs-top >"$tree/$name/COPYRIGHT" 2>/dev/null
  archive "$tree" "$name"
  archive "$tree" "$name-debug"
  printf '%-40s %6d KiB, the program %6d KiB\n' "$name.tar.gz" "$(($(stat -c %s "$OUT/$name.tar.gz") / 1024))" \
    "$(($(stat -c %s "$tree/$name/files/bin/mobifs") / 1024))"
  rm -rf "$tree"
}

release_environment
mkdir -p "$OUT"
rm -f "$OUT"/*.tar.gz "$OUT/SHA256SUMS"
release_manuals dev "$OUT/manuals"
[ $# -gt 0 ] || set -- x86_64-unknown-linux-musl aarch64-unknown-linux-musl armv7-unknown-linux-musleabihf
for target in "$@"; do
  release_build "$target" dist -p mobifs-cli -p mobifs-top --bin mobifs --bin mobifs-top
  pack "$target"
done
(cd "$OUT" && sha256sum -- *.tar.gz >SHA256SUMS)
