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
  $B cp /root/usr/local/lib/check/adopt-guest-units/* /root/etc/systemd/system/
  : > /root/etc/mobifs-guest
fi
. /enter.sh
