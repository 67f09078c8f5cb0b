#!/bin/busybox sh
# First process of the guest of scripts/systemd-check.sh: the host's files, the packages that it
# lacks over them, a memory filesystem for all changes; then systemd itself, with one service of
# ours.
B=/bin/busybox
. /begin.sh
for directory in extra changes root; do $B mkdir -p "/$directory"; done
$B mount -t 9p -o "$P9,cache=loose,ro" host /host
$B mount -t 9p -o "$P9,cache=loose,ro" extra /extra
$B mount -t tmpfs tmpfs /changes
$B mkdir /changes/upper /changes/work
$B mount -t overlay -o lowerdir=/extra:/host,upperdir=/changes/upper,workdir=/changes/work overlay /root
# Of the host's own services none is wanted, and none of its mounts; and if it is a container,
# the guest is none.
$B rm -rf /root/etc/systemd/system /root/etc/fstab /root/etc/machine-id /root/.dockerenv
$B mkdir -p /root/etc/systemd/system /root/srv /root/mnt/data /root/etc/mobifs
# Systemd clears it, and it may be large.
$B mount -t tmpfs tmpfs /root/tmp
$B mkdir -p /root/tmp/out
: > /root/etc/fstab
echo 0123456789abcdef0123456789abcdef > /root/etc/machine-id
$B mkdir -p /root/usr/local/bin /root/usr/local/lib
$B cp -r "/host$(value mobifs_check)" /root/usr/local/lib/check
$B cp "/host$(value mobifs_binary)" /root/usr/local/bin/mobifs
$B cp "/host$(value mobifs_units)/mobifs@.service" /root/etc/systemd/system/
$B mkdir -p /root/etc/systemd/user
$B cp "/host$(value mobifs_units)/user/mobifs@.service" /root/etc/systemd/user/
cat > /root/etc/systemd/system/check.service <<UNIT
[Unit]
Requires=dbus.service
After=dbus.service basic.target
[Service]
Type=oneshot
ExecStart=/bin/bash /usr/local/lib/check/systemd-$(value mobifs_phase).sh
StandardOutput=tty
StandardError=tty
TTYPath=/dev/ttyS0
TimeoutStartSec=infinity
UNIT
cat > /root/etc/systemd/system/check.target <<UNIT
[Unit]
Requires=basic.target
Wants=check.service
After=basic.target
UNIT
$B mount -t 9p -o "$P9" out /root/tmp/out
for directory in proc sys dev; do $B mount --move "/$directory" "/root/$directory"; done
exec $B switch_root /root /lib/systemd/systemd --unit=check.target --show-status=false
