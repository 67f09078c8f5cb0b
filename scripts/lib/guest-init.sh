#!/bin/busybox sh
# First process of the guest of scripts/crash-campaign-f2fs.sh: mounts the host's files and
# runs there what the kernel's command line names as mobifs_work.
B=/bin/busybox
. /begin.sh
# Disk errors are what is tried here; they stay out of the console.
$B dmesg -n 1
$B mount -t 9p -o "$P9,cache=loose,ro" host /host
for directory in proc sys dev; do $B mount --bind "/$directory" "/host/$directory"; done
for directory in dev/shm tmp run; do
  $B mkdir -p "/host/$directory"
  $B mount -t tmpfs tmpfs "/host/$directory"
done
$B mkdir /host/tmp/out
$B mount -t 9p -o "$P9" out /host/tmp/out
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp
$B chroot /host /bin/bash "$(value mobifs_work)"
echo "guest: the work ended with $?"
$B poweroff -f
