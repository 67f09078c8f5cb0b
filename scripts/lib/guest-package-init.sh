#!/bin/busybox sh
# First process of the guest of scripts/package-guest.sh: all it has is the Debian on its disk.
B=/bin/busybox
. /begin.sh
$B mkdir -p /root
$B mount -t ext4 /dev/vda /root
. /enter.sh
