# A Debian of nothing but what is named. To be sourced.

# clean_debian SUITE PACKAGES DIRECTORY LOG [ARCHITECTURE]: installs it from the mirror of this machine. Another
# architecture than this machine's needs emulate_programs before.
clean_debian() {
  local mirror architecture=${5:-$(dpkg --print-architecture)}
  mirror=$(apt-cache policy dpkg | sed -nE 's/^ +[0-9]+ ([a-z]+:[^ ]+) .*/\1/p' | head -n 1)
  debootstrap --arch="$architecture" --variant=minbase --include="$2" "$1" "$3" "$mirror" >"$4" 2>&1 && return
  tail -n 5 "$4" >&2
  return 1
}

BINFMT=/proc/sys/fs/binfmt_misc

# emulate_programs ARCHITECTURE: from now on the kernel runs programs of arm64 or armhf by qemu-user, in any root, until
# stop_emulating. Fails where that cannot be.
emulate_programs() {
  local class machine qemu magic mask
  case $1 in
  arm64) class='\x02' machine='\xb7' qemu=qemu-aarch64-static ;;
  armhf) class='\x01' machine='\x28' qemu=qemu-arm-static ;;
  *) return 1 ;;
  esac
  qemu=$(command -v "$qemu") || return 1
  if ! [ -e $BINFMT/register ]; then
    mount -t binfmt_misc binfmt_misc $BINFMT 2>/dev/null || return 1
    OWN_BINFMT=yes
  fi
  # The head of an ELF file, with any ABI, of an executable or a shared object.
  magic='\x7fELF'$class'\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00'$machine'\x00'
  mask='\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'
  EMULATION=mobifs-test-$1
  # Of a run that was killed.
  [ ! -e "$BINFMT/$EMULATION" ] || echo -1 >"$BINFMT/$EMULATION"
  # F: the emulator is opened now, and needs to be in no other root. C: fusermount3 has the rights of its owner.
  printf '%s' ":$EMULATION:M::$magic:$mask:$qemu:OCF" >$BINFMT/register
}

stop_emulating() {
  [ ! -e "$BINFMT/${EMULATION:-none}" ] || echo -1 >"$BINFMT/$EMULATION"
  [ -z "${OWN_BINFMT:-}" ] || umount $BINFMT
  OWN_BINFMT=
}
