#!/usr/bin/env bash
# `make room` over f2fs: Debian's kernel, which has it, boots in QEMU with this machine's files
# (read-only) and fills disks there.
#
#   scripts/room-f2fs.sh [SHAPE,SHAPE...] [SECONDS]
#
# Without what `scripts/setup.sh --f2fs` installs it says so and ends.
set -euo pipefail
cd "$(dirname "$0")/.."

SHAPES=${1:-} SECONDS_MAX=${2:-7200}
KERNEL=${MOBIFS_TOOLS:-$PWD/.cache/tools}/kernel
TARGET=${CARGO_TARGET_DIR:-$PWD/target}
GUEST=$TARGET/f2fs-room
. scripts/lib/guest.sh

missing=$(guest_needs mkfs.f2fs)
if [ -n "$missing" ]; then
  echo "SKIPPED room-f2fs: $missing; scripts/setup.sh --f2fs installs it"
  exit 0
fi
case $GUEST in
  /tmp/* | /run/* | /dev/shm/*)
    echo "room-f2fs: the guest has a /tmp, /run and /dev/shm of its own and does not see $GUEST;" \
      "set CARGO_TARGET_DIR to another place" >&2
    exit 2
    ;;
esac

tests=$(cargo test --locked -p mobifs-cli --test mounted --no-run --message-format json 2>/dev/null |
  sed -n 's/.*"name":"mounted".*"executable":"\([^"]*\)".*/\1/p' | tail -1)
[ -x "$tests" ] || { echo "room-f2fs: the tests do not build" >&2; exit 1; }
mkdir -p "$GUEST/out"
rm -f "$GUEST"/out/* "$GUEST/console.log"
# What the guest runs, as root, in this machine's files.
cat >"$GUEST/work.sh" <<WORK
export TMPDIR=/dev/shm MOBIFS_FILESYSTEMS=f2fs ${SHAPES:+MOBIFS_SHAPES=$SHAPES}
$tests --ignored --nocapture disks_full_of_every_shape
status=\$?
dmesg > /tmp/out/kernel.log
exit \$status
WORK
make_ramdisk scripts/lib/guest-init.sh 9pnet_virtio 9p virtio_pci loop fuse f2fs crc32_generic
boot "$SECONDS_MAX" "mobifs_work=$GUEST/work.sh"
grep -q '^guest: the work ended with 0' "$GUEST/console.log"
