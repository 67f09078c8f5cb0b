#!/usr/bin/env bash
# Power cuts of mounts over f2fs, in a guest of QEMU: the campaign of crash-campaign-disks. The device is served inside,
# by the same model, so what was not flushed is lost at a cut as it is there.
#
#   scripts/crash-campaign-f2fs.sh [CUTS] [SEED] [SECONDS]
#
# What a failed round leaves is in target/f2fs-guest/out. Without what `scripts/setup.sh --f2fs` installs it says so and
# ends.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib/f2fs-guest.sh

CUTS=${1:-200} SEED=${2:-1}
prepare_guest f2fs-guest mkfs.f2fs fsck.f2fs
# On a processor that is emulated everything takes longer, and cuts come so much later.
slowness=2
[ "$(guest_acceleration)" = tcg ] || slowness=1
run_in_guest "${3:-7200}" "MOBIFS_KEEP=1 $TARGET/release/mobifs-campaign --scratch /dev/shm cuts --filesystems f2fs \\
  --cuts $CUTS --seed $SEED --scale 0 --slowness $slowness" \
  '[ $status = 0 ] || tar -C /dev/shm -cf /tmp/out/kept.tar .'
