#!/usr/bin/env bash
# Installs the Debian packages of target/deb in a clean Debian, uses them there, removes and purges them, and looks at what
# is left: nothing but the user's files. The same with the archive of target/tarball, if there is one for the machine.
# Before that lintian looks at the packages, if it is there: what it calls an error fails.
#
#   scripts/package-test.sh [SUITE [ARCHITECTURE]]    bookworm, or another suite of Debian; `make deb` comes first
#
# Another architecture than this machine's (arm64, armhf) is emulated, without what is the same on all of them.
# Needs root, /dev/fuse, debootstrap and Debian's mirror, and qemu-user to emulate. Without them it says so and ends.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib/clean-debian.sh

SUITE=${1:-bookworm}
TARGET=${CARGO_TARGET_DIR:-$PWD/target}
DEBS=$TARGET/deb
OWN=$(dpkg --print-architecture)
ARCHITECTURE=${2:-$OWN}
# What a user's Debian has, and what looks at it here.
BASE=ca-certificates,sqlite3
[ "$ARCHITECTURE" != "$OWN" ] || BASE=$BASE,man-db,bash-completion,systemd,zsh,fish

skip() {
  echo "SKIPPED package-test: $1"
  exit 0
}

# How archives call a machine.
machine_of() {
  case $1 in
  amd64) echo x86_64 ;;
  arm64) echo aarch64 ;;
  armhf) echo armv7 ;;
  *) echo "$1" ;;
  esac
}

[ "$(id -u)" = 0 ] || skip "not root"
[ -c /dev/fuse ] || skip "no /dev/fuse"
command -v debootstrap >/dev/null || skip "no debootstrap; scripts/setup.sh --packages installs it"
ls "$DEBS"/mobifs_*_"$ARCHITECTURE".deb >/dev/null 2>&1 || {
  echo "package-test: no packages for $ARCHITECTURE in $DEBS; run make deb" >&2
  exit 1
}

if command -v lintian >/dev/null; then
  lintian --allow-root --display-level '=error' --fail-on error "$DEBS"/*_"$ARCHITECTURE".deb || {
    echo "package-test: FAILED: lintian finds errors" >&2
    exit 1
  }
  echo "package-test: lintian: no errors"
else
  echo "package-test: lintian: SKIPPED, it is not installed; scripts/setup.sh --packages installs it"
fi

ROOT=$(mktemp -d "${MOBIFS_SCRATCH:-/var/tmp}/mobifs-package-test.XXXXXX")
clean_up() {
  stop_emulating
  # Of a debootstrap that was killed.
  ! mountpoint -q "$ROOT/proc" || umount "$ROOT/proc"
  rm -rf --one-file-system "$ROOT"
}
trap clean_up EXIT
[ "$ARCHITECTURE" = "$OWN" ] || emulate_programs "$ARCHITECTURE" ||
  skip "programs of $ARCHITECTURE cannot be run here; scripts/setup.sh --packages installs qemu-user, and the kernel needs binfmt_misc"
# It is the root of users without privileges, too.
chmod 755 "$ROOT"
echo "package-test: a clean Debian $SUITE, $ARCHITECTURE"
clean_debian "$SUITE" "$BASE" "$ROOT" "$DEBS/debootstrap.log" "$ARCHITECTURE"
cp /etc/resolv.conf "$ROOT/etc/resolv.conf"
# As systemd makes it, which the emulated Debian lacks: fusermount3 unmounts nothing for users without it.
[ -L "$ROOT/etc/mtab" ] || ln -s ../proc/self/mounts "$ROOT/etc/mtab"
mkdir "$ROOT/packages"
cp "$DEBS"/*_"$ARCHITECTURE".deb "$ROOT/packages/"
archive=$(ls "$TARGET"/tarball/mobifs-*-linux-"$(machine_of "$ARCHITECTURE")".tar.gz 2>/dev/null) || :
[ -z "$archive" ] || cp "$archive" "$ROOT/packages/archive.tar.gz"
cp scripts/lib/package-test-inside.sh "$ROOT/packages/inside.sh"
# Mounts, processes and sockets of the test are its own, and end with it.
unshare --mount --pid --fork --kill-child bash -euc '
  mount --make-rprivate /
  mount -t proc proc "$1/proc"
  mount -t sysfs -o ro sysfs "$1/sys"
  mount -t tmpfs tmpfs "$1/run"
  mount -t tmpfs -o mode=755 tmpfs "$1/dev"
  # As udev makes it on Debian; a container may have another mode.
  mknod -m 666 "$1/dev/fuse" c 10 229
  for device in null zero random urandom tty; do
    touch "$1/dev/$device"
    mount --bind "/dev/$device" "$1/dev/$device"
  done
  mkdir -m 1777 "$1/dev/shm"
  mount -t tmpfs tmpfs "$1/dev/shm"
  ln -s /proc/self/fd "$1/dev/fd"
  exec chroot "$1" env -i PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 IS_EMULATED="$2" \
    DEBIAN_FRONTEND=noninteractive bash /packages/inside.sh
' - "$ROOT" "$([ "$ARCHITECTURE" = "$OWN" ] || echo yes)"
