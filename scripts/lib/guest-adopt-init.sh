#!/bin/busybox sh
# First process of the guest of scripts/adopt-guest.sh: the host's files and the packages that it lacks, under
# an overlay whose upper directory is on the guest's disk, and that disk's /var.
B=/bin/busybox
. /begin.sh
for directory in extra disk root; do $B mkdir -p "/$directory"; done
$B mount -t 9p -o "$P9,cache=loose,ro" host /host
$B mount -t 9p -o "$P9,cache=loose,ro" extra /extra
$B mount -t ext4 /dev/vda /disk
$B mount -t overlay -o lowerdir=/extra:/host,upperdir=/disk/upper,workdir=/disk/work overlay /root
$B mount --bind /disk/var /root/var
if [ ! -e /root/etc/mobifs-guest ]; then
  $B rm -rf /root/etc/systemd/system /root/etc/fstab /root/etc/machine-id /root/etc/mobifs /root/.dockerenv
  $B mkdir -p /root/etc/systemd/system /root/usr/local/bin /root/usr/local/lib
  : > /root/etc/fstab
  echo 0123456789abcdef0123456789abcdef > /root/etc/machine-id
  $B cp -r "/host$(value mobifs_check)" /root/usr/local/lib/check
  $B cp "/host$(value mobifs_binary)" /root/usr/local/bin/mobifs
  cat > /root/etc/systemd/system/check.target <<UNIT
[Unit]
Requires=basic.target
Wants=check.service writer.service
After=basic.target
UNIT
  # A service as any other: it begins after the local filesystems.
  cat > /root/etc/systemd/system/writer.service <<'UNIT'
[Service]
ExecStart=/bin/bash -c 'exec >>/var/log/writer.log; while :; do cat /proc/sys/kernel/random/boot_id; sleep 0.1; done'
UNIT
  : > /root/etc/mobifs-guest
fi
cat > /root/etc/systemd/system/check.service <<UNIT
[Unit]
Requires=dbus.service
After=dbus.service basic.target
[Service]
Type=oneshot
ExecStart=/bin/bash /usr/local/lib/check/adopt-guest-phases.sh $(value mobifs_phase)
StandardOutput=tty
StandardError=tty
TTYPath=/dev/ttyS0
TimeoutStartSec=infinity
UNIT
$B mount -t tmpfs tmpfs /root/tmp
$B mkdir -p /root/tmp/out
$B mount -t 9p -o "$P9" out /root/tmp/out
for directory in proc sys dev; do $B mount --move "/$directory" "/root/$directory"; done
exec $B switch_root /root /lib/systemd/systemd --unit=check.target --show-status=false
