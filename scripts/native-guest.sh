#!/usr/bin/env bash
# Native mode for some directories of an ext4 (`mobifs steer --only`): Debian's kernel boots in QEMU with this
# machine's files (read-only), because `chattr +j` needs CAP_SYS_RESOURCE, which containers lack. QEMU records
# what the guest writes and flushes; afterwards, on this machine, the power is cut at many moments of it, with
# a random part of what was not flushed, and the files are compared.
#
#   scripts/native-guest.sh [CUTS] [SEED] [STEPS] [SECONDS]
#
# MOBIFS_BIN names another mobifs, with libmobifs_run.so beside it. Without what `scripts/setup.sh --f2fs`
# installs it says so and ends.
set -euo pipefail
cd "$(dirname "$0")/.."

CUTS=${1:-200} SEED=${2:-1} STEPS=${3:-6000} SECONDS_MAX=${4:-1800}
KERNEL=${MOBIFS_TOOLS:-$PWD/.cache/tools}/kernel
TARGET=${CARGO_TARGET_DIR:-$PWD/target}
BIN=${MOBIFS_BIN:-$TARGET/release/mobifs}
GUEST=$TARGET/native-guest
. scripts/lib/guest.sh

missing=$(guest_needs mkfs.ext4 lsattr)
[ -n "$missing" ] || [ "$(id -u)" = 0 ] || missing="not root, and the images after the cuts have to be mounted"
if [ -n "$missing" ]; then
  echo "SKIPPED native-guest: $missing; scripts/setup.sh --f2fs installs what it needs"
  exit 0
fi
OUT=$GUEST/out
rm -rf "$GUEST"
mkdir -p "$OUT/bin" "$OUT/lib/mobifs"
# The guest has a /tmp of its own, where this lies.
cp "$BIN" "$OUT/bin/mobifs"
cp "$(dirname "$BIN")/libmobifs_run.so" "$OUT/lib/mobifs/"
cp scripts/lib/native_order.py "$OUT/"
cp scripts/lib/native-guest-work.sh "$OUT/work.sh"
echo "$STEPS" >"$OUT/steps"
printf '[defaults]\nage_max_ms = 1000\n' >"$OUT/steer.toml"
truncate -s 192M "$GUEST/disk.img"
mkfs.ext4 -q -F -b 4096 -J size=32 -E lazy_itable_init=0,lazy_journal_init=0 "$GUEST/disk.img"
cp --sparse=always "$GUEST/disk.img" "$GUEST/before.img"
: >"$GUEST/writes.log"

# How many writes there were when the writers began; the guest waits for it.
count_writes() {
  PYTHONPATH=scripts/lib python3 -c '
import sys, write_log
print(len(write_log.entries(sys.argv[1])))' "$GUEST/writes.log"
}
note_the_begin() {
  until [ -e "$OUT/steered" ]; do sleep 0.5; done
  count_writes >"$GUEST/mark"
  touch "$OUT/go"
}
note_the_begin &
noting=$!
trap 'kill "$noting" 2>/dev/null || true' EXIT

make_ramdisk scripts/lib/guest-init.sh 9pnet_virtio 9p virtio_pci virtio_blk fuse ext4 crc32c_generic
boot "$SECONDS_MAX" "mobifs_work=/tmp/out/work.sh" \
  -blockdev "driver=file,filename=$GUEST/disk.img,node-name=disk,cache.no-flush=on" \
  -blockdev "driver=file,filename=$GUEST/writes.log,node-name=log,cache.no-flush=on" \
  -blockdev "driver=blklogwrites,node-name=logged,file=disk,log=log,log-super-update-interval=1" \
  -device virtio-blk-pci,drive=logged
grep -q '^native-guest: all of the guest' "$GUEST/console.log" || {
  echo "native-guest: the guest did not come to its end; see $GUEST/console.log" >&2
  exit 1
}
exec python3 scripts/native_guest_check.py "$GUEST/before.img" "$GUEST/writes.log" "$(cat "$GUEST/mark")" "$CUTS" "$SEED"
