# What the guests' first processes begin with: the kernel's filesystems and the modules.
# To be sourced by busybox's shell; $B is busybox, $P9 how files of the host are mounted.
$B mount -t proc proc /proc
$B mount -t sysfs sysfs /sys
$B mount -t devtmpfs dev /dev
while read -r module; do
  $B insmod "/modules/$module" || echo "guest: no module $module"
done < /order
P9="trans=virtio,version=9p2000.L,msize=524288"
# value NAME: what the kernel's command line says after NAME=.
value() { $B sed -n "s/.*$1=\([^ ]*\).*/\1/p" /proc/cmdline; }
