#!/usr/bin/env bash
# Power cuts of mounts over f2fs: Debian's kernel, which has it, boots in QEMU with this
# machine's files (read-only) and runs the campaign of crash-campaign-disks. The device is
# served inside, by the same model, so what was not flushed is lost at a cut as it is there.
#
#   scripts/crash-campaign-f2fs.sh [CUTS] [SEED] [SECONDS]
#
# What a failed round leaves is in target/f2fs-guest/out. Without what `scripts/setup.sh
# --f2fs` installs it says so and ends.
set -euo pipefail
cd "$(dirname "$0")/.."

CUTS=${1:-200} SEED=${2:-1} SECONDS_MAX=${3:-7200}
KERNEL=${MOBIFS_TOOLS:-$PWD/.cache/tools}/kernel
TARGET=${CARGO_TARGET_DIR:-$PWD/target}
GUEST=$TARGET/f2fs-guest
. scripts/lib/guest.sh

missing=$(guest_needs mkfs.f2fs fsck.f2fs)
if [ -n "$missing" ]; then
  echo "SKIPPED crash-campaign-f2fs: $missing; scripts/setup.sh --f2fs installs it"
  exit 0
fi
case $GUEST in
  /tmp/* | /run/* | /dev/shm/*)
    echo "crash-campaign-f2fs: the guest has a /tmp, /run and /dev/shm of its own and does not see $GUEST;" \
      "set CARGO_TARGET_DIR to another place" >&2
    exit 2
    ;;
esac
# On a processor that is emulated everything takes longer, and cuts come so much later.
slowness=2
[ "$(guest_acceleration)" = tcg ] || slowness=1

mkdir -p "$GUEST/out"
rm -f "$GUEST"/out/* "$GUEST/console.log"
# What the guest runs, as root, in this machine's files.
cat >"$GUEST/work.sh" <<WORK
MOBIFS_KEEP=1 $TARGET/release/mobifs-campaign --scratch /dev/shm cuts --filesystems f2fs \\
  --cuts $CUTS --seed $SEED --scale 0 --slowness $slowness
status=\$?
dmesg > /tmp/out/kernel.log
[ \$status = 0 ] || tar -C /dev/shm -cf /tmp/out/kept.tar .
exit \$status
WORK
make_ramdisk scripts/lib/guest-init.sh 9pnet_virtio 9p virtio_pci loop fuse f2fs crc32_generic
boot "$SECONDS_MAX" "mobifs_work=$GUEST/work.sh"
grep -q '^guest: the work ended with 0' "$GUEST/console.log"
