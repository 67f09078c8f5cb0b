#!/bin/busybox sh
# First process of a guest that has a root filesystem of its own (scripts/lib/guest_root.py) in /dev/vda: starts
# systemd there.
B=/bin/busybox
. /begin.sh
$B mkdir -p /root
$B mount -t ext4 /dev/vda /root
for directory in proc sys dev; do $B mount --move "/$directory" "/root/$directory"; done
exec $B switch_root /root /lib/systemd/systemd --unit=check.target --show-status=false
