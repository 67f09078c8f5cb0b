#!/usr/bin/env bash
# Builds the Debian packages into target/deb: mobifs, mobifs-lab, libmobifs-sqlite, libmobifs-sqlite-dev, and the debug
# symbols of each apart (-dbgsym).
#
#   scripts/deb.sh [ARCHITECTURE...]      amd64, arm64, armhf; default: this machine's
#   PRODUCT_ONLY=1 scripts/deb.sh …       without mobifs-lab
#   BUILT=1 scripts/deb.sh …              packs what was built before
#
# Needs debhelper, and for other architectures Debian's cross compilers and Rust's standard library of the target
# (`scripts/setup.sh --packages`). The programs need the C library of the machine that builds, or glibc 2.34 if that
# is Debian 12: libc6 in their Depends says so.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib/release.sh

OUT=${CARGO_TARGET_DIR:-$PWD/target}/deb
PROGRAMS=(mobifs-cli mobifs-top)
LIBRARIES=(mobifs-run-preload mobifs-sqlite-extension)
LABORATORY=(mobifs-lab-cli)
# Built together with what makes the manual pages: it has other features of the same libraries, and all of it would be
# built twice.
MANUALS=mobifs-manuals
# PRODUCT_ONLY=1: without mobifs-lab, which takes longer to build than all else.
[ -z "${PRODUCT_ONLY:-}" ] || LABORATORY=()

die() { printf 'deb: %s\n' "$*" >&2; exit 1; }

target_of() {
  case $1 in
  amd64) echo x86_64-unknown-linux-gnu ;;
  arm64) echo aarch64-unknown-linux-gnu ;;
  armhf) echo armv7-unknown-linux-gnueabihf ;;
  *) die "unknown architecture $1: amd64, arm64 or armhf" ;;
  esac
}

# stage ARCHITECTURE TARGET TREE: lays out what each package holds.
stage() {
  local triplet binaries libraries stage=$3/stage
  triplet=$(dpkg-architecture -a"$1" -q DEB_HOST_MULTIARCH)
  binaries=$(release_directory "$2" dist)
  libraries=$(release_directory "$2" dist-library)
  release_has_no_path "$binaries"/{mobifs,mobifs-top} "$libraries"/{libmobifs_run.so,libmobifs.so}
  local -a variables=(PREFIX=/usr HELPERDIR=/usr/sbin "BUILD=$binaries" "LIBRARIES=$libraries" "MANUALS=$OUT/manuals"
    ZSH_COMPLETIONS=/usr/share/zsh/vendor-completions SHARED_HELPER=no)
  make --silent --no-print-directory install "${variables[@]}" DESTDIR="$stage/mobifs"
  [ -n "${PRODUCT_ONLY:-}" ] || make --silent --no-print-directory install-lab "${variables[@]}" \
    "BUILD=$(release_directory "$2" release)" DESTDIR="$stage/mobifs-lab"
  install -D -m 644 dist/etc/mobifs.toml "$stage/mobifs/etc/mobifs/mobifs.toml"
  local examples=$stage/mobifs/usr/share/doc/mobifs/examples
  install -D -m 644 dist/grafana-dashboard.json "$examples/grafana-dashboard.json"
  sed 's#/usr/local/bin/#/usr/bin/#' dist/mobifs-metrics.service >"$examples/mobifs-metrics.service"
  # SQLite does not search libraries: the extension is loaded by its path.
  install -D -m 644 "$libraries/libmobifs.so" "$stage/libmobifs-sqlite/usr/lib/$triplet/mobifs/libmobifs.so"
  install -D -m 644 "$libraries/libmobifs.a" "$stage/libmobifs-sqlite-dev/usr/lib/$triplet/libmobifs.a"
  install -D -m 644 crates/sqlite-extension/include/mobifs.h "$stage/libmobifs-sqlite-dev/usr/include/mobifs.h"
}

# pack ARCHITECTURE TARGET TREE
pack() {
  local triplet libraries=""
  triplet=$(dpkg-architecture -a"$1" -q DEB_HOST_MULTIARCH)
  # The C library of another architecture is where Debian's cross compilers have it.
  [ "$1" = "$(dpkg --print-architecture)" ] || libraries=/usr/${triplet/x86_64/x86-64}/lib
  cp -r dist/debian "$3/debian"
  [ -z "$libraries" ] || release_libraries "$3"/stage/*/usr/bin/* "$3"/stage/*/usr/lib/{mobifs,"$triplet"/mobifs}/*.so \
    >"$3/debian/shlibs.local"
  cp CHANGELOG.md "$3/CHANGELOG.md"
  python3 scripts/copyright.py --target "$2" "${PROGRAMS[@]}" "${LIBRARIES[@]}" "${LABORATORY[@]}" >"$3/debian/copyright" 2>/dev/null
  (cd "$3" && CROSS_LIBRARIES=$libraries PRODUCT_ONLY=${PRODUCT_ONLY:-} dpkg-buildpackage --rules-target=binary --host-arch "$1" \
    --no-check-builddeps >"../$1.log" 2>&1) ||
    { tail -n 20 "$3/../$1.log" >&2; die "packing for $1 failed; see $OUT/$1.log"; }
}

command -v dh >/dev/null || die "there is no debhelper: scripts/setup.sh --packages"
release_environment
[ $# -gt 0 ] || set -- "$(dpkg --print-architecture)"
release_manuals "$([ -n "${PRODUCT_ONLY:-}" ] && echo dev || echo release)" "$OUT/manuals"
for architecture in "$@"; do
  target=$(target_of "$architecture")
  [ -n "${BUILT:-}" ] || release_build "$target" dist $(printf -- '-p %s ' "${PROGRAMS[@]}")
  [ -n "${BUILT:-}" ] || release_build "$target" dist-library $(printf -- '-p %s ' "${LIBRARIES[@]}")
  [ -n "${BUILT:-}${PRODUCT_ONLY:-}" ] || release_build "$target" release $(printf -- '-p %s ' "${LABORATORY[@]}" $MANUALS)
  tree=$OUT/tree-$architecture
  rm -rf "$tree"
  rm -f "$OUT"/*_"$architecture".deb
  mkdir -p "$tree"
  stage "$architecture" "$target" "$tree"
  pack "$architecture" "$target" "$tree"
  release_has_no_cross_package "$OUT"/*_"$architecture".deb
  rm -rf "$tree"
done
cd "$OUT"
for package in *.deb; do
  printf '%-50s %6d KiB, installed %6d KiB\n' "$package" "$(($(stat -c %s "$package") / 1024))" \
    "$(dpkg-deb --field "$package" Installed-Size)"
done
