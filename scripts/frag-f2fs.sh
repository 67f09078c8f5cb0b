#!/usr/bin/env bash
# `mobifs frag measure`, `advise` and `defrag` on f2fs: Debian's kernel, which has it, boots in QEMU with this
# machine's files (read-only), and the tests of the defragmenter that want an f2fs run there.
#
#   scripts/frag-f2fs.sh [SECONDS]
#
# Without what `scripts/setup.sh --f2fs` installs it says so and ends.
set -euo pipefail
cd "$(dirname "$0")/.."

SECONDS_MAX=${1:-1800}
KERNEL=${MOBIFS_TOOLS:-$PWD/.cache/tools}/kernel
TARGET=${CARGO_TARGET_DIR:-$PWD/target}
GUEST=$TARGET/f2fs-frag
. scripts/lib/guest.sh

missing=$(guest_needs mkfs.f2fs)
if [ -n "$missing" ]; then
  echo "SKIPPED frag-f2fs: $missing; scripts/setup.sh --f2fs installs it"
  exit 0
fi
case $GUEST in
  /tmp/* | /run/* | /dev/shm/*)
    echo "frag-f2fs: the guest has a /tmp, /run and /dev/shm of its own and does not see $GUEST;" \
      "set CARGO_TARGET_DIR to another place" >&2
    exit 2
    ;;
esac

tests=$(cargo test --locked -p mobifs-defragmenter --test it --no-run --message-format json 2>/dev/null |
  sed -n 's/.*"name":"it".*"executable":"\([^"]*\)".*/\1/p' | tail -1)
[ -x "$tests" ] || { echo "frag-f2fs: the tests do not build" >&2; exit 1; }
mkdir -p "$GUEST/out"
rm -f "$GUEST"/out/* "$GUEST/console.log"
# What the guest runs, as root, in this machine's files. A test that cannot run there is a failure.
cat >"$GUEST/work.sh" <<WORK
export MOBIFS_SCRATCH=/dev/shm
$tests --ignored --nocapture --test-threads 1 f2fs::
status=\$?
dmesg > /tmp/out/kernel.log
exit \$status
WORK
make_ramdisk scripts/lib/guest-init.sh 9pnet_virtio 9p virtio_pci loop f2fs crc32_generic
boot "$SECONDS_MAX" "mobifs_work=$GUEST/work.sh"
grep -q '^guest: the work ended with 0' "$GUEST/console.log"
grep -q 'test result: ok. [1-9]' "$GUEST/console.log"
