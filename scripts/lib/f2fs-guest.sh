# Work over f2fs, which Debian's kernel has: it boots in QEMU with this machine's files, read-only. To be sourced.

TARGET=${CARGO_TARGET_DIR:-$PWD/target}
KERNEL=${MOBIFS_TOOLS:-$PWD/.cache/tools}/kernel

# prepare_guest NAME PROGRAM...: GUEST, the directory of what the guest needs and leaves. Ends the script where
# something is missing.
prepare_guest() {
  local script=${0##*/} missing
  script=${script%.sh}
  GUEST=$TARGET/$1
  shift
  . scripts/lib/guest.sh
  missing=$(guest_needs "$@")
  if [ -n "$missing" ]; then
    echo "SKIPPED $script: $missing; scripts/setup.sh --f2fs installs it"
    exit 0
  fi
  case $GUEST in
    /tmp/* | /run/* | /dev/shm/*)
      echo "$script: the guest has a /tmp, /run and /dev/shm of its own and does not see $GUEST;" \
        "set CARGO_TARGET_DIR to another place" >&2
      exit 2
      ;;
  esac
  mkdir -p "$GUEST/out"
  rm -f "$GUEST"/out/* "$GUEST/console.log"
}

# test_program PACKAGE TEST: builds a test and prints where its program is.
test_program() {
  local program
  program=$(cargo test --locked -p "$1" --test "$2" --no-run --message-format json 2>/dev/null |
    sed -n "s/.*\"name\":\"$2\".*\"executable\":\"\([^\"]*\)\".*/\1/p" | tail -1)
  [ -x "$program" ] || { echo "${0##*/}: the tests do not build" >&2; return 1; }
  echo "$program"
}

# run_in_guest SECONDS COMMANDS [LAST]: runs the commands there, as root; the status is that of the last one. LAST is
# done after them, whatever their status.
run_in_guest() {
  cat >"$GUEST/work.sh" <<WORK
$2
status=\$?
dmesg > /tmp/out/kernel.log
${3:-}
exit \$status
WORK
  make_ramdisk scripts/lib/guest-init.sh 9pnet_virtio 9p virtio_pci loop fuse f2fs crc32_generic
  boot "$1" "mobifs_work=$GUEST/work.sh"
  grep -q '^guest: the work ended with 0' "$GUEST/console.log"
}
