# How the guests of adopt-guest and package-guest go from the ramdisk to the systemd below /root, with the host's
# directory for results at /tmp/out. To be sourced by busybox's shell, after guest-begin.sh.
$B mount -t tmpfs tmpfs /root/tmp
$B mkdir -p /root/tmp/out
$B mount -t 9p -o "$P9" out /root/tmp/out
for directory in proc sys dev; do $B mount --move "/$directory" "/root/$directory"; done
exec $B switch_root /root /lib/systemd/systemd --unit=check.target --show-status=false
