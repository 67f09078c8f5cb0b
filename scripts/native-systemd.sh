#!/usr/bin/env bash
# Native mode under the real systemd, in a guest that sleeps for real: Debian's kernel boots in QEMU with a root
# filesystem of this machine's packages. Services run by `mobifs run --systemd`, also hardened ones and containers;
# the daemon is restarted under them; the clock jumps; the machine is suspended and woken up. QEMU records what
# the guest writes and flushes; afterwards, on this machine, the power is cut at each of these moments and at
# random ones, with a random part of what was not flushed, and the files are compared.
#
#   scripts/native-systemd.sh [CUTS] [SEED] [SECONDS]
#
# MOBIFS_PARTS names the parts to be tried, separated by commas. MOBIFS_BIN names another mobifs, with
# libmobifs_run.so beside it. Without what `scripts/setup.sh --systemd` installs it says so and ends.
set -euo pipefail
cd "$(dirname "$0")/.."

CUTS=${1:-100} SEED=${2:-1} SECONDS_MAX=${3:-2400}
PARTS=${MOBIFS_PARTS:-steering,services,hardened,containers,clock,history,sleep}
TOOLS=${MOBIFS_TOOLS:-$PWD/.cache/tools}
KERNEL=$TOOLS/kernel EXTRA=$TOOLS/systemd
TARGET=${CARGO_TARGET_DIR:-$PWD/target}
BIN=${MOBIFS_BIN:-$TARGET/release/mobifs}
GUEST=$TARGET/native-systemd
. scripts/lib/guest.sh

missing=$(guest_needs mkfs.ext4 mkfs.btrfs dpkg-query)
[ -n "$missing" ] || [ -x "$EXTRA/usr/bin/bwrap" ] || missing="no packages in $EXTRA"
[ -n "$missing" ] || [ "$(id -u)" = 0 ] || missing="not root, and the images after the cuts have to be mounted"
if [ -n "$missing" ]; then
  echo "SKIPPED native-systemd: $missing; scripts/setup.sh --systemd installs what it needs"
  exit 0
fi
rm -rf "$GUEST"
OWN=$GUEST/own
mkdir -p "$OWN"/etc/systemd/system/ "$OWN"/etc/mobifs "$OWN"/usr/local/{bin,lib/mobifs,lib/check} \
  "$OWN"/srv/{data,history}
cp "$BIN" "$OWN/usr/local/bin/mobifs"
cp "$(dirname "$BIN")/libmobifs_run.so" "$OWN/usr/local/lib/mobifs/"
cp scripts/lib/native_order.py scripts/lib/systemd-common.sh scripts/lib/native-systemd-*.sh "$OWN/usr/local/lib/check/"
cp dist/mobifs-steer@.service "$OWN/etc/systemd/system/"
printf '[defaults]\nage_max_ms = 5000\n' >"$OWN/etc/mobifs/srv-data.toml"
printf '[defaults]\nage_max_ms = 5000\n[history]\nkeep_count = 3\ninterval_min_ms = 1000\n' \
  >"$OWN/etc/mobifs/srv-history.toml"
printf '/dev/vdb /srv/data ext4 data=journal 0 2\n/dev/vdc /srv/history btrfs defaults 0 0\n' >"$OWN/etc/fstab"
echo 0123456789abcdef0123456789abcdef >"$OWN/etc/machine-id"
cat >"$OWN/etc/systemd/system/writer.service" <<'UNIT'
[Unit]
RequiresMountsFor=/srv/data
[Service]
ExecStart=/usr/bin/python3 /usr/local/lib/check/native_order.py go-on /srv/data/app /run/steps 0.01
UNIT
cat >"$OWN/etc/systemd/system/check.service" <<'UNIT'
[Unit]
Requires=dbus.service
After=dbus.service basic.target
[Service]
Type=oneshot
ExecStart=/bin/bash /usr/local/lib/check/native-systemd-guest.sh
StandardOutput=tty
StandardError=tty
TTYPath=/dev/ttyS0
TimeoutStartSec=infinity
UNIT
cat >"$OWN/etc/systemd/system/check.target" <<'UNIT'
[Unit]
Requires=basic.target
Wants=check.service
After=basic.target
UNIT
python3 scripts/lib/guest_root.py "$GUEST/root.img" "$EXTRA" "$OWN"
truncate -s 256M "$GUEST/disk.img" "$GUEST/history.img"
mkfs.ext4 -q -F -b 4096 -J size=64 -E lazy_itable_init=0,lazy_journal_init=0 "$GUEST/disk.img"
mkfs.btrfs -q "$GUEST/history.img"
cp --sparse=always "$GUEST/disk.img" "$GUEST/before.img"
: >"$GUEST/writes.log"
: >"$GUEST/console.log"

python3 scripts/lib/guest_sleep.py "$GUEST" &
watching=$!
trap 'kill "$watching" 2>/dev/null || true' EXIT
make_ramdisk scripts/lib/guest-root-init.sh virtio_pci virtio_blk overlay ext4 crc32c_generic btrfs autofs4 unix
start "$SECONDS_MAX" "mobifs_parts=$PARTS" -qmp "unix:$GUEST/qmp,server=on,wait=off" \
  -serial mon:stdio -serial "file:$GUEST/guest.log" \
  -drive "file=$GUEST/root.img,if=none,id=root,format=raw,cache=unsafe" -device virtio-blk-pci,drive=root \
  -blockdev "driver=file,filename=$GUEST/disk.img,node-name=disk,cache.no-flush=on" \
  -blockdev "driver=file,filename=$GUEST/writes.log,node-name=log,cache.no-flush=on" \
  -blockdev "driver=blklogwrites,node-name=logged,file=disk,log=log,log-super-update-interval=1" \
  -device virtio-blk-pci,drive=logged \
  -drive "file=$GUEST/history.img,if=none,id=history,format=raw,cache=unsafe" -device virtio-blk-pci,drive=history
grep -q '^check: all of native' "$GUEST/console.log" || {
  echo "native-systemd: the guest did not come to its end; see $GUEST/console.log and $GUEST/guest.log" >&2
  exit 1
}
wait "$watching"
exec python3 scripts/native_systemd_check.py "$GUEST" "$CUTS" "$SEED"
