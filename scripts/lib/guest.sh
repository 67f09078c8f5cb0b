# Booting Debian's kernel in QEMU with this machine's files, read-only. To be sourced, with
# GUEST (a directory for what the guest needs and leaves) and KERNEL (an unpacked package of a
# kernel) set.

PATH=$PATH:/usr/sbin:/sbin

# guest_needs PROGRAM...: names what is missing, or finds the kernel.
guest_needs() {
  local program
  for program in qemu-system-x86_64 busybox "$@"; do
    command -v "$program" >/dev/null || { echo "no $program"; return; }
  done
  if ldd "$(command -v busybox)" >/dev/null 2>&1; then
    echo "busybox needs libraries: package busybox-static"
  elif [ -z "$(guest_kernel)" ]; then
    echo "no kernel in $KERNEL"
  fi
}

guest_kernel() { find "$KERNEL/boot" -name 'vmlinuz-*' 2>/dev/null | sort | tail -1; }

# modules NAME...: paths of modules and of all that they need, each after those that it needs.
modules() {
  awk -F: -v wanted="$*" '
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
  ' "$(guest_module_directory)/modules.dep"
}

guest_module_directory() {
  local image
  image=$(guest_kernel)
  echo "$KERNEL/lib/modules/${image##*/vmlinuz-}"
}

# make_ramdisk INIT MODULE...: busybox, the modules and what to do with them.
make_ramdisk() {
  local init=$1 root=$GUEST/root module
  shift
  rm -rf "$root"
  mkdir -p "$root"/{bin,proc,sys,dev,host,modules}
  cp "$(command -v busybox)" "$root/bin/busybox"
  modules "$@" | while read -r module; do
    cp "$(guest_module_directory)/$module" "$root/modules/"
    basename "$module"
  done >"$root/order"
  cp "$init" "$root/init"
  cp scripts/lib/guest-begin.sh "$root/begin.sh"
  cp scripts/lib/guest-enter.sh "$root/enter.sh"
  chmod +x "$root/init"
  (cd "$root" && find . | busybox cpio -o -H newc 2>/dev/null | gzip -1) >"$GUEST/ramdisk"
}

guest_acceleration() {
  if [ -w /dev/kvm ] && grep -qE 'vmx|svm' /proc/cpuinfo; then echo kvm; else echo tcg; fi
}

# share NAME PATH OPTIONS: QEMU's options for a directory that the guest can mount.
share() {
  echo "-fsdev local,id=$1,path=$2,security_model=none,multidevs=remap$3" \
    "-device virtio-9p-pci,fsdev=$1,mount_tag=$1"
}

# start SECONDS_MAX WORDS [QEMU OPTIONS...]: runs the guest, WORDS on its kernel's command line, with nothing of
# this machine. The console is shown and kept.
start() {
  local seconds=$1 words=$2
  shift 2
  timeout "$seconds" qemu-system-x86_64 -machine "pc,accel=$(guest_acceleration)" -cpu max -smp 2 \
    -m 3G -nographic -no-reboot -net none -kernel "$(guest_kernel)" -initrd "$GUEST/ramdisk" \
    -append "console=ttyS0 panic=-1 quiet $words" "$@" \
    </dev/null | tee -a "$GUEST/console.log" || true
}

# boot: the same with this machine's files as `host` and $GUEST/out as `out`.
boot() {
  local seconds=$1 words=$2
  shift 2
  # shellcheck disable=SC2046  # share gives several words
  start "$seconds" "$words" $(share host / ,readonly=on) $(share out "$GUEST/out" "") "$@"
}
