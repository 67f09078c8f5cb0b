#!/usr/bin/env bash
# Installs what building, testing and the demo need, and nothing that is already there.
# Debian and Ubuntu with a Rust toolchain. Works offline once everything is in place.
#
#   scripts/setup.sh [--build-only | --soak | --fuzz | --f2fs | --systemd | --sqlite-tcl | --32bit | --packages]
#
# Without: what the tests need.
set -euo pipefail
cd "$(dirname "$0")/.."

PJDFSTEST_VERSION=0.2.2
FSX_VERSION=0.3.2
CARGO_FUZZ_VERSION=0.13.1
TOOLS_DIR=${MOBIFS_TOOLS:-$PWD/.cache/tools}

say() { printf 'setup: %s\n' "$*"; }
die() { printf 'setup: %s\n' "$*" >&2; exit 1; }

# What each system package is needed for: a command it brings, or a file (with its path).
PACKAGES=(
  "gcc:gcc" "git:git" "python3:python3" "sqlite3:sqlite3"
  "fusermount3:fuse3" "setfattr:attr" "setfacl:acl"
  "mkfs.ext4:e2fsprogs" "mkfs.btrfs:btrfs-progs" "losetup:mount"
  "eatmydata:eatmydata" "strace:strace" "xz:xz-utils"
)

# Programs of others that some tests talk to; without them these tests are skipped.
TEST_PACKAGES=("qemu-io:qemu-utils" "nbdinfo:libnbd-bin" "mkfs.xfs:xfsprogs" "dbus-daemon:dbus" "runc:runc"
  "valgrind:valgrind")

# What `make soak` runs.
SOAK_PACKAGES=("stress-ng:stress-ng" "fio:fio" "dbench:dbench")

# What `make crash-campaign-f2fs` runs.
F2FS_PACKAGES=("qemu-system-x86_64:qemu-system-x86" "mkfs.f2fs:f2fs-tools" "busybox:busybox-static")

# What building SQLite's own tests takes, for `make sqlite-tcl`.
SQLITE_TCL_PACKAGES=("gcc:gcc" "make:make" "tclsh:tcl" "/usr/include/tcl8.6/tcl.h:tcl8.6-dev" "xz:xz-utils")

# What `make test-32bit` runs: a cross linker with a C library, and an emulator of programs.
ARM_PACKAGES=("arm-linux-gnueabihf-gcc:gcc-arm-linux-gnueabihf"
  "/usr/arm-linux-gnueabihf/lib/libc.so:libc6-dev-armhf-cross" "qemu-arm-static:qemu-user-static")

# What `make deb`, `make tarball` and `make package-test` run, for all architectures.
PACKAGING_PACKAGES=("dh:debhelper" "dpkg-buildpackage:dpkg-dev" "fakeroot:fakeroot" "lintian:lintian" "debootstrap:debootstrap"
  "qemu-aarch64-static:qemu-user-static"
  "gcc:gcc" "aarch64-linux-gnu-gcc:gcc-aarch64-linux-gnu" "/usr/aarch64-linux-gnu/lib/libc.so:libc6-dev-arm64-cross"
  "arm-linux-gnueabihf-gcc:gcc-arm-linux-gnueabihf" "/usr/arm-linux-gnueabihf/lib/libc.so:libc6-dev-armhf-cross")

# What `make systemd-check` and `make native-systemd` run in their guests, and nowhere else.
GUEST_PACKAGES=(systemd-sysv libpam-systemd dbus udev upower umockdev systemd-container bubblewrap)

# missing PAIR...: the packages of those pairs whose command is not there.
missing() {
  local pair
  for pair in "$@"; do
    [ -f "${pair%%:*}" ] && continue
    PATH="$PATH:/usr/sbin:/sbin" command -v "${pair%%:*}" >/dev/null 2>&1 || echo "${pair##*:}"
  done
}

as_root() {
  if [ "$(id -u)" = 0 ]; then
    "$@"
  elif command -v sudo >/dev/null 2>&1; then
    sudo "$@"
  else
    return 1
  fi
}

# apt_get COMMAND...: waits for another package manager (a new machine upgrades itself)
# rather than failing.
apt_get() { as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=600 "$@"; }

# install_packages PAIR...: what is missing of them, or the end.
install_packages() {
  local missing
  mapfile -t missing < <(missing "$@")
  if [ "${#missing[@]}" = 0 ]; then
    say "system packages: all there"
    return
  fi
  command -v apt-get >/dev/null 2>&1 ||
    die "missing: ${missing[*]}. There is no apt-get here; install them with this system's package manager."
  say "installing system packages: ${missing[*]}"
  # Without new lists the old ones may do.
  apt_get update || true
  apt_get install -y "${missing[@]}" >/dev/null ||
    die "could not install: ${missing[*]}. Run as root: apt-get install ${missing[*]}"
}

install_test_packages() {
  local missing
  mapfile -t missing < <(missing "${TEST_PACKAGES[@]}")
  [ "${#missing[@]}" != 0 ] || return 0
  say "installing for the tests: ${missing[*]}"
  apt_get install -y "${missing[@]}" >/dev/null 2>&1 ||
    { apt_get update && apt_get install -y "${missing[@]}"; } >/dev/null 2>&1 ||
    say "note: could not install ${missing[*]}; the tests that need it will say that they are skipped"
}

check_toolchain() {
  command -v cargo >/dev/null 2>&1 ||
    die "no Rust toolchain found. Install one (rustup.rs, or the package 'cargo' of a recent release)."
}

# Which nightly compiler is the user's choice; nothing else here needs one.
check_nightly() {
  cargo +nightly --version >/dev/null 2>&1 ||
    die "fuzzing needs a nightly compiler: rustup toolchain install nightly --profile minimal"
  command -v c++ >/dev/null 2>&1 || die "fuzzing needs a C++ compiler, c++: install the package g++"
}

# suite NAME VERSION: a program from crates.io, pinned, into our own directory.
install_suite() {
  local name=$1 version=$2
  if "$TOOLS_DIR/bin/$name" --version 2>/dev/null | grep -qF "$version"; then
    say "$name $version: there"
    return
  fi
  say "installing $name $version (a few minutes)"
  CARGO_TARGET_DIR="$TOOLS_DIR/build" cargo install --quiet --locked \
    --root "$TOOLS_DIR" --version "$version" "$name"
}

# A kernel to boot in a guest, into our own directory: the machine's own stays as it is.
fetch_kernel() {
  local directory=$TOOLS_DIR/kernel package version
  if ls "$directory"/lib/modules/*/modules.dep >/dev/null 2>&1; then
    say "kernel for a guest: there"
    return
  fi
  apt_get update || true
  package=$(apt-cache depends linux-image-amd64 | sed -n 's/.*Depends: //p' | head -1)
  [ -n "$package" ] || die "no package linux-image-amd64 is known: add Debian's main to apt's sources"
  say "fetching $package"
  rm -rf "$directory"
  mkdir -p "$directory"
  (cd "$directory" && apt-get download -qq "$package" 2>/dev/null && dpkg-deb -x ./*.deb . && rm ./*.deb)
  version=$(ls "$directory/lib/modules")
  (cd "$directory" && busybox depmod -b . "$version")
}

# Packages for the guest that this machine lacks, into our own directory: the machine itself
# stays as it is.
fetch_guest_packages() {
  local directory=$TOOLS_DIR/systemd debs=$TOOLS_DIR/debs package
  if [ "$(cat "$directory/packages" 2>/dev/null)" = "${GUEST_PACKAGES[*]}" ]; then
    say "packages for a guest: there"
    return
  fi
  apt_get update || true
  rm -rf "$directory.new"
  mkdir -p "$debs/partial" "$directory.new"/usr/{bin,sbin,lib}
  say "fetching ${GUEST_PACKAGES[*]}"
  apt_get install -y --download-only --no-install-recommends \
    -o Dir::Cache::archives="$debs" "${GUEST_PACKAGES[@]}" >/dev/null
  for package in bin sbin lib; do ln -sfn "usr/$package" "$directory.new/$package"; done
  for package in "$debs"/*.deb; do
    dpkg-deb --fsys-tarfile "$package" | tar -x --keep-directory-symlink -C "$directory.new"
  done
  as_root rm -rf "$debs" "$directory"
  echo "${GUEST_PACKAGES[*]}" >"$directory.new/packages"
  mv "$directory.new" "$directory"
}

# fetch_sqlite_source DIRECTORY: Debian's source package of SQLite, which has its tests, into a
# directory. Where apt knows no sources (deb-src), the place that it has the program from is asked,
# with lists of our own: the machine's stay as they are.
fetch_sqlite_source() {
  local directory=$1 apt=$1/apt uri suite component _rest keys=/usr/share/keyrings/debian-archive-keyring.gpg
  local -a own
  mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial"
  (cd "$directory" && apt-get source -qq --download-only sqlite3 >/dev/null 2>&1) && return
  # A line as "500 http://deb.debian.org/debian bookworm/main amd64 Packages".
  read -r _ uri suite _rest < <(apt-cache policy sqlite3 | grep -E '^ +[0-9]+ [a-z]+://' | head -1) ||
    die "apt does not know where sqlite3 comes from: run apt-get update"
  component=${suite#*/}
  echo "deb-src $([ ! -e "$keys" ] || echo "[signed-by=$keys]") $uri ${suite%%/*} $component" \
    >"$apt/sources.list"
  own=(-o "Dir::Etc::sourcelist=$apt/sources.list" -o Dir::Etc::sourceparts=/dev/null
    -o "Dir::State::lists=$apt/lists" -o "Dir::Cache=$apt/cache")
  (cd "$directory" && apt-get -qq "${own[@]}" update >/dev/null &&
    apt-get -qq "${own[@]}" source --download-only sqlite3 >/dev/null 2>&1) ||
    die "the source package of sqlite3 cannot be fetched from $uri"
}

# SQLite's own tests, and the program that runs them, into our own directory.
install_sqlite_tcl() {
  local directory=$TOOLS_DIR/sqlite-tcl new=$TOOLS_DIR/sqlite-tcl.new tcl
  if [ -x "$directory/testfixture" ]; then
    say "SQLite's own tests: there"
    return
  fi
  rm -rf "$new"
  mkdir -p "$new/build" "$new/source" "$new/package"
  fetch_sqlite_source "$new/package"
  tar -xf "$new"/package/sqlite3_*.orig.tar.* -C "$new/source" --strip-components=1
  tcl=$(find /usr/lib -maxdepth 3 -name tclConfig.sh | head -1)
  [ -n "$tcl" ] || die "there is no tclConfig.sh: install the package tcl-dev"
  say "building SQLite's testfixture (a minute)"
  (cd "$new/build" && ../source/configure --with-tcl="$(dirname "$tcl")" CFLAGS=-O1 >log 2>&1 &&
    make testfixture >>log 2>&1) || die "building it failed: $new/build/log"
  cp "$new/build/testfixture" "$new/testfixture"
  rm -rf "$new/build" "$new/package" "$directory"
  mv "$new" "$directory"
}

check_toolchain
case "${1:-}" in
  --soak) install_packages "${PACKAGES[@]}" "${SOAK_PACKAGES[@]}" ;;
  --f2fs)
    install_packages "${PACKAGES[@]}" "${F2FS_PACKAGES[@]}"
    fetch_kernel
    ;;
  --systemd)
    install_packages "${PACKAGES[@]}" "${F2FS_PACKAGES[@]}"
    fetch_kernel
    fetch_guest_packages
    ;;
  --sqlite-tcl)
    install_packages "${SQLITE_TCL_PACKAGES[@]}"
    install_sqlite_tcl
    ;;
  --32bit) install_packages "${ARM_PACKAGES[@]}" ;;
  --packages) install_packages "${PACKAGING_PACKAGES[@]}" ;;
  *) install_packages "${PACKAGES[@]}" ;;
esac
if [ "${1:-}" = "--fuzz" ]; then
  check_nightly
  install_suite cargo-fuzz "$CARGO_FUZZ_VERSION"
fi
if [ -z "${1:-}" ]; then
  install_test_packages
  install_suite pjdfstest "$PJDFSTEST_VERSION"
  install_suite fsx "$FSX_VERSION"
  rm -rf "$TOOLS_DIR/build"
fi
[ -e /dev/fuse ] || say "note: /dev/fuse is not there; mounting will fail (try: modprobe fuse)"
say "ready"
