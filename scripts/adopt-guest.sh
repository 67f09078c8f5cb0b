#!/usr/bin/env bash
# `mobifs adopt` under the real systemd and journald, in a guest: Debian's kernel boots in QEMU with this machine's
# files over a disk that keeps /etc and /var. /var/log is adopted while a service writes there, the power is cut, the
# machine is switched off, the directory comes back, is adopted by the next start; a user adopts a cache by a systemd of
# their own; and then the power is cut in the middle of adoptions, at random moments.
#
#   scripts/adopt-guest.sh [CUTS [SECONDS]]
#
# Without what `scripts/setup.sh --systemd` installs it says so and ends.
set -euo pipefail
cd "$(dirname "$0")/.."

CUTS=${1:-4} SECONDS_MAX=${2:-600}
TOOLS=${MOBIFS_TOOLS:-$PWD/.cache/tools}
KERNEL=$TOOLS/kernel EXTRA=$TOOLS/systemd
TARGET=${CARGO_TARGET_DIR:-$PWD/target}
GUEST=$TARGET/adopt-guest
. scripts/lib/guest.sh

missing=$(guest_needs mkfs.ext4)
[ -n "$missing" ] || [ -d "$EXTRA/usr" ] || missing="no packages in $EXTRA"
if [ -n "$missing" ]; then
  echo "SKIPPED adopt-guest: $missing; scripts/setup.sh --systemd installs it"
  exit 0
fi
mkdir -p "$GUEST/out"
rm -rf "$GUEST"/out/* "$GUEST/console.log" "$GUEST/disk.img" "$GUEST/content"
mkdir -p "$GUEST"/content/{upper,work,var/log/journal}
truncate -s 1G "$GUEST/disk.img"
mkfs.ext4 -q -F -d "$GUEST/content" "$GUEST/disk.img"
make_ramdisk scripts/lib/guest-adopt-init.sh \
  9pnet_virtio 9p virtio_pci virtio_blk overlay fuse ext4 crc32c_generic autofs4 unix
words="mobifs_check=$PWD/scripts/lib mobifs_binary=$(realpath "${MOBIFS_BIN:-$TARGET/release/mobifs}")"

# phase NAME: boots; its script says "all of NAME" when it has come to its end.
phase() {
  boot "$SECONDS_MAX" "$words mobifs_phase=$1" -drive "file=$GUEST/disk.img,if=virtio,format=raw" \
    $(share extra "$EXTRA" ,readonly=on)
  grep -q "^check: all of $1" "$GUEST/console.log" || {
    echo "adopt-guest: \"$1\" did not come to its end; see $GUEST/console.log and $GUEST/out" >&2
    exit 1
  }
}

for name in adopt after-cut after-poweroff at-boot user; do phase "$name"; done
for number in $(seq "$CUTS"); do phase "cut-$number"; done
phase end
