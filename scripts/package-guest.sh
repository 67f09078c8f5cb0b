#!/usr/bin/env bash
# The Debian package in a clean Debian that boots in QEMU: no compiler, nothing of this machine. The package is
# installed; /var/log is adopted, with power cuts, reboots and back, and a user's cache; then the package is purged,
# and every file of the system is as before.
#
#   scripts/package-guest.sh [SUITE [SECONDS]]      bookworm, or another suite; `make deb` comes first
#
# Needs root, debootstrap (`scripts/setup.sh --packages`) and what `scripts/setup.sh --systemd` installs. Without
# them it says so and ends.
set -euo pipefail
cd "$(dirname "$0")/.."

SUITE=${1:-bookworm} SECONDS_MAX=${2:-600}
TOOLS=${MOBIFS_TOOLS:-$PWD/.cache/tools}
KERNEL=$TOOLS/kernel
TARGET=${CARGO_TARGET_DIR:-$PWD/target}
GUEST=$TARGET/package-guest
# What an installed Debian has, and a minimal one has not.
BASE=ca-certificates,dbus,dbus-user-session,fuse3,libpam-systemd,systemd,udev
. scripts/lib/guest.sh
. scripts/lib/clean-debian.sh

missing=$(guest_needs mkfs.ext4 debootstrap)
[ "$(id -u)" = 0 ] || missing="not root"
if [ -n "$missing" ]; then
  echo "SKIPPED package-guest: $missing"
  exit 0
fi
package=$(ls "$TARGET"/deb/mobifs_*_"$(dpkg --print-architecture)".deb 2>/dev/null) || {
  echo "package-guest: no package in $TARGET/deb; run make deb" >&2
  exit 1
}

# disk: a Debian with the package beside it, and what tries it in /usr/local.
disk() {
  local root=$GUEST/debian
  clean_debian "$SUITE" "$BASE" "$root" "$GUEST/debootstrap.log"
  mkdir -p "$root/packages" "$root/var/log/journal" "$root/usr/local/lib/check"
  cp "$package" "$root/packages/"
  cp scripts/lib/adopt-guest-phases.sh scripts/lib/systemd-common.sh "$root/usr/local/lib/check/"
  cp scripts/lib/adopt-guest-units/* "$root/etc/systemd/system/"
  : >"$root/etc/fstab"
  echo 0123456789abcdef0123456789abcdef >"$root/etc/machine-id"
  truncate -s 2G "$GUEST/disk.img"
  mkfs.ext4 -q -F -d "$root" "$GUEST/disk.img"
  rm -rf --one-file-system "$root"
}

# phase NAME: boots; its script says "all of NAME" when it has come to its end.
phase() {
  # shellcheck disable=SC2046  # share gives several words
  start "$SECONDS_MAX" "mobifs_phase=$1" -drive "file=$GUEST/disk.img,if=virtio,format=raw" $(share out "$GUEST/out" "")
  grep -q "^check: all of $1" "$GUEST/console.log" || {
    echo "package-guest: \"$1\" did not come to its end; see $GUEST/console.log and $GUEST/out" >&2
    exit 1
  }
}

rm -rf --one-file-system "$GUEST"
mkdir -p "$GUEST/out"
disk
make_ramdisk scripts/lib/guest-package-init.sh 9pnet_virtio 9p virtio_pci virtio_blk fuse ext4 crc32c_generic autofs4 unix
for name in install adopt after-cut after-poweroff at-boot user purge; do phase "$name"; done
rm -f "$GUEST/disk.img"
