#!/usr/bin/env bash
# MobiFS under the real systemd, logind and UPower, in a guest: Debian's kernel boots in QEMU
# with this machine's files (read-only). Daemons are killed and started again by systemd, the
# guest sleeps, its battery gets low, a user's own systemd serves a mount, mounts log to journald,
# it is switched off with changes that are not committed; a second boot looks at what is there.
#
#   scripts/systemd-check.sh [SECONDS]
#
# Without what `scripts/setup.sh --systemd` installs it says so and ends.
set -euo pipefail
cd "$(dirname "$0")/.."

SECONDS_MAX=${1:-900}
TOOLS=${MOBIFS_TOOLS:-$PWD/.cache/tools}
KERNEL=$TOOLS/kernel EXTRA=$TOOLS/systemd
TARGET=${CARGO_TARGET_DIR:-$PWD/target}
GUEST=$TARGET/systemd-guest
. scripts/lib/guest.sh

missing=$(guest_needs mkfs.ext4)
[ -n "$missing" ] || [ -d "$EXTRA/usr" ] || missing="no packages in $EXTRA"
if [ -n "$missing" ]; then
  echo "SKIPPED systemd-check: $missing; scripts/setup.sh --systemd installs it"
  exit 0
fi
mkdir -p "$GUEST/out"
rm -f "$GUEST"/out/* "$GUEST/console.log" "$GUEST/disk.img"
truncate -s 256M "$GUEST/disk.img"
mkfs.ext4 -q -F "$GUEST/disk.img"
make_ramdisk scripts/lib/guest-systemd-init.sh \
  9pnet_virtio 9p virtio_pci virtio_blk overlay fuse ext4 crc32c_generic autofs4 unix
words="mobifs_check=$PWD/scripts/lib mobifs_binary=$(realpath "$TARGET/release/mobifs") mobifs_units=$PWD/dist"
for phase in before after; do
  boot "$SECONDS_MAX" "$words mobifs_phase=$phase" \
    -drive "file=$GUEST/disk.img,if=virtio,format=raw" \
    $(share extra "$EXTRA" ,readonly=on)
  grep -q "^check: all of $phase" "$GUEST/console.log" || {
    echo "systemd-check: \"$phase\" did not come to its end; see $GUEST/console.log and $GUEST/out" >&2
    exit 1
  }
done
