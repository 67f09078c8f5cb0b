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
# On a processor that is emulated everything takes longer, and cuts come so much later.
SLOWNESS=2
# What they need is loaded before them.
MODULES=(9pnet_virtio 9p virtio_pci loop fuse f2fs crc32_generic)

skip() {
  echo "SKIPPED crash-campaign-f2fs: $*; scripts/setup.sh --f2fs installs it"
  exit 0
}

PATH=$PATH:/usr/sbin:/sbin
for program in qemu-system-x86_64 busybox mkfs.f2fs fsck.f2fs; do
  command -v "$program" >/dev/null || skip "no $program"
done
if ldd "$(command -v busybox)" >/dev/null 2>&1; then
  skip "busybox needs libraries: package busybox-static"
fi
image=$(ls "$KERNEL"/boot/vmlinuz-* 2>/dev/null | tail -1) || true
[ -n "$image" ] || skip "no kernel in $KERNEL"
version=${image##*/vmlinuz-}

# modules: paths of the wanted modules and of all that they need, each behind what it needs.
modules() {
  awk -F: -v wanted="${MODULES[*]}" '
    function add(path,    needed, count, i) {
      if (path in done) return
      done[path] = 1
      count = split(needs[path], needed, " ")
      for (i = count; i > 0; i--) add(needed[i])
      print path
    }
    { needs[$1] = $2; name = $1; sub(/.*\//, "", name); sub(/\.ko.*/, "", name)
      gsub(/-/, "_", name); path_of[name] = $1 }
    END { count = split(wanted, names, " ")
          for (i = 1; i <= count; i++) if (names[i] in path_of) add(path_of[names[i]]) }
  ' "$KERNEL/lib/modules/$version/modules.dep"
}

# make_ramdisk: busybox, the modules and what to do with them.
make_ramdisk() {
  local root=$GUEST/root module
  rm -rf "$root"
  mkdir -p "$root"/{bin,proc,sys,dev,host,modules}
  cp "$(command -v busybox)" "$root/bin/busybox"
  modules | while read -r module; do
    cp "$KERNEL/lib/modules/$version/$module" "$root/modules/"
    basename "$module"
  done >"$root/order"
  cp scripts/lib/guest-init.sh "$root/init"
  chmod +x "$root/init"
  (cd "$root" && find . | busybox cpio -o -H newc 2>/dev/null | gzip -1) >"$GUEST/ramdisk"
}

# make_work: what the guest runs, as root, in this machine's files.
make_work() {
  mkdir -p "$GUEST/out"
  rm -f "$GUEST"/out/*
  cat >"$GUEST/work.sh" <<WORK
MOBIFS_KEEP=1 $TARGET/release/mobifs-campaign --scratch /dev/shm cuts --filesystems f2fs \\
  --cuts $CUTS --seed $SEED --scale 0 --slowness $SLOWNESS
status=\$?
dmesg > /tmp/out/kernel.log
[ \$status = 0 ] || tar -C /dev/shm -cf /tmp/out/kept.tar .
exit \$status
WORK
}

make_ramdisk
make_work
acceleration=tcg
if [ -w /dev/kvm ] && grep -qE 'vmx|svm' /proc/cpuinfo; then
  acceleration=kvm SLOWNESS=1
  make_work
fi
share() { echo "-fsdev local,id=$1,path=$2,security_model=none,multidevs=remap$3 -device virtio-9p-pci,fsdev=$1,mount_tag=$1"; }
# shellcheck disable=SC2046  # share gives several words
timeout "$SECONDS_MAX" qemu-system-x86_64 -machine "pc,accel=$acceleration" -cpu max -smp 2 -m 3G \
  -nographic -no-reboot -net none -kernel "$image" -initrd "$GUEST/ramdisk" \
  -append "console=ttyS0 panic=-1 quiet mobifs_work=$GUEST/work.sh" \
  $(share host / ,readonly=on) $(share out "$GUEST/out" "") </dev/null | tee "$GUEST/console.log" || true
grep -q '^guest: the work ended with 0' "$GUEST/console.log"
