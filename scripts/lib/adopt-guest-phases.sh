#!/usr/bin/env bash
# What scripts/adopt-guest.sh and scripts/package-guest.sh do in their guests, one boot each: the phase that the
# kernel's command line names.
set -u
cd "$(dirname "$0")"
. ./systemd-common.sh

SERVICE=mobifs-adopted-var-log.service
LOG=/var/log
PHASE=$(sed -n 's/.*mobifs_phase=\([^ ]*\).*/\1/p' /proc/cmdline)

say_to_journal() { logger -t adopt-check "$1" && journalctl --sync; }
journal_has() { journalctl --no-pager -q -o cat -t adopt-check "$@"; }
is_mounted() { findmnt -n "$LOG" >/dev/null; }
cut_power() { say "all of $PHASE" && sleep 1 && echo b >/proc/sysrq-trigger; sleep 60; }
switch_off() { say "all of $PHASE" && systemctl poweroff; }

# The journal is written to the directory, by its own name, and not to memory.
journal_is_there() {
  local file
  say_to_journal "$1"
  file=$(ls "$LOG"/journal/*/system.journal) || failed "there is no journal in $LOG"
  journalctl --no-pager -q -o cat --file "$file" -t adopt-check | grep -qx "$1" ||
    failed "\"$1\" is not in $file"
}

# Known files, for what must not change.
sums() { (cd "$LOG" && find kept -type f -print0 | sort -z | xargs -0 sha256sum); }

is_noted() { ls /etc/mobifs/adopted/*.json >/dev/null 2>&1; }

is_ordinary() {
  is_mounted && failed "$LOG is still a mount"
  [ ! -e "$LOG.mobifs-store" ] && [ ! -e "$LOG/.mobifs" ] || failed "there is still a store"
  is_noted && failed "there is still a note"
  ls /etc/systemd/system | grep -q mobifs && failed "there is still a unit"
  sums | cmp -s - /root/sums || failed "files have changed"
}

# Every file of the system but logs, caches, and what the package manager, systemd, root and the user keep (useradd
# has copies of its files, with a dash).
system_files() {
  find / -xdev \( -path /root -o -path /packages -o -path /tmp -o -path /var/log -o -path /var/cache -o -path /var/tmp \
    -o -path /var/lib/apt -o -path /var/lib/dpkg -o -path /var/lib/systemd -o -path /var/tester -o -path /var/mail \
    -o -path /etc/ld.so.cache -o -path '/etc/*-' \) -prune -o -print | sort
}

phase_install() {
  local begun=$SECONDS
  ls /usr/bin/cc /usr/bin/cargo /usr/bin/mobifs 2>/dev/null && failed "this Debian is not clean"
  system_files >/root/files
  DEBIAN_FRONTEND=noninteractive apt-get -qq install -y /packages/mobifs_*.deb >/tmp/out/apt.log 2>&1 ||
    failed "it is not installed: $(tail -n 3 /tmp/out/apt.log)"
  mobifs doctor /srv >/tmp/out/doctor.txt 2>&1
  say "$(mobifs --version) installed with one command, in $((SECONDS - begun)) s of this guest"
  switch_off
}

# A mount of a service that is in use stays where it is when the package is removed, and the package too.
remains_under_a_service() {
  local store=/srv/store place=/mnt/data begun
  mkdir -p "$store" "$place"
  printf 'STORE=%s\nOPTIONS=noatime\n' "$store" >/etc/mobifs/mnt-data.conf
  systemctl enable --now mobifs@mnt-data.service || failed "the unit of the package does not mount"
  exec 7>"$place/open"
  begun=$SECONDS
  apt-get -qq purge -y mobifs >/tmp/out/refused.log 2>&1 && failed "it is removed under a service in use"
  grep -q "nothing was removed" /tmp/out/refused.log || failed "no reason: $(tail -n 3 /tmp/out/refused.log)"
  findmnt -n "$place" >/dev/null || failed "a mount in use has left the tree"
  systemctl is-active --quiet mobifs@mnt-data.service || failed "the service of a mount in use was stopped"
  echo last >&7
  exec 7>&-
  say "not removed under a service whose mount is in use, said after $((SECONDS - begun)) s"
}

phase_purge() {
  remains_under_a_service
  apt-get -qq purge -y mobifs >/tmp/out/apt.log 2>&1 || failed "it is not removed: $(tail -n 3 /tmp/out/apt.log)"
  systemctl list-units --all --plain --no-legend 'mobifs*' | grep . && failed "systemd still knows a unit"
  [ "$(cat /srv/store/open)" = last ] || failed "a change is lost by the removal"
  # The user's.
  rm -r /srv/store /etc/mobifs /mnt/data
  system_files | diff /root/files - >/tmp/out/files.diff || failed "files differ: $(head -n 20 /tmp/out/files.diff)"
  is_ordinary
  say "purged; every file of the system is as before, and $LOG an ordinary directory with all files"
  switch_off
}

phase_adopt() {
  mkdir -p "$LOG/kept/deep" /root
  cp -r /etc/ssl /etc/pam.d "$LOG/kept/" 2>/dev/null
  head -c 3000000 /dev/urandom >"$LOG/kept/deep/large"
  sync
  sums >/root/sums
  journal_is_there "before"
  mobifs adopt --dry-run "$LOG" || failed "--dry-run"
  mobifs adopt "$LOG" 2>/tmp/out/refused && failed "it was adopted in use"
  grep -q "systemctl stop writer.service" /tmp/out/refused || failed "its user is not named: $(cat /tmp/out/refused)"
  systemctl stop writer.service
  mobifs adopt "$LOG" || failed "it is not adopted"
  systemctl start writer.service
  is_mounted && systemctl is-active --quiet "$SERVICE" || failed "its service does not serve it"
  [ "$(systemctl show -p NFileDescriptorStore --value "$SERVICE")" -gt 0 ] || failed "systemd keeps no descriptors"
  journal_is_there "behind MobiFS"
  grep -qx "$(cat /proc/sys/kernel/random/boot_id)" "$LOG/writer.log" || failed "the writer does not write"
  mobifs adopt --list
  mobifs sync "$LOG" || failed "no sync"
  say "$LOG adopted with one command, beside its refusal while a service wrote there; power is cut"
  cut_power
}

phase_after_cut() {
  is_mounted || failed "$LOG is not mounted after a power cut: $(systemctl status --no-pager "$SERVICE")"
  journal_has -b -1 | grep -qx "behind MobiFS" || failed "what was synced is lost"
  journal_is_there "after the cut"
  grep -qx "$(cat /proc/sys/kernel/random/boot_id)" "$LOG/writer.log" || failed "the writer began before the mount"
  sums | cmp -s - /root/sums || failed "files have changed"
  local main
  main=$(systemctl show -p MainPID --value "$SERVICE")
  kill -KILL "$main"
  until_true "the next daemon" 60 sh -c "[ \"\$(systemctl show -p NRestarts --value $SERVICE)\" -ge 1 ] &&
    systemctl is-active --quiet $SERVICE"
  journal_is_there "after a kill"
  journal_is_there "before power off"
  say "mounted before its users after a power cut; its daemon killed; switched off"
  switch_off
}

phase_after_poweroff() {
  is_mounted || failed "$LOG is not mounted"
  journal_has -b -1 | grep -qx "before power off" || failed "what was written before power off is lost"
  mobifs unadopt "$LOG" 2>/tmp/out/busy && failed "it came back in use"
  grep -q "stays adopted" /tmp/out/busy || failed "its users are not named: $(cat /tmp/out/busy)"
  journal_is_there "still adopted"
  systemctl stop writer.service
  mobifs unadopt "$LOG" || failed "it does not come back"
  is_ordinary
  journal_is_there "ordinary again"
  systemctl start writer.service
  mobifs adopt --at-boot "$LOG" || failed "--at-boot"
  mobifs adopt --list
  say "ordinary again with all files; to be adopted at the next start, with its users running"
  switch_off
}

phase_at_boot() {
  is_mounted || failed "$LOG was not adopted at boot: $(systemctl status --no-pager "$SERVICE")"
  journal_has -b -1 | grep -qx "ordinary again" || failed "a line is lost"
  journal_is_there "adopted at boot"
  systemctl stop writer.service
  mobifs unadopt "$LOG" || failed "it does not come back"
  is_ordinary
  say "adopted by the start of the machine, and ordinary again"
  switch_off
}

# tester COMMAND...: as a user with a systemd of their own.
tester() { runuser -u tester -- env XDG_RUNTIME_DIR=/run/user/4242 HOME=/var/tester "$@"; }

phase_user() {
  local cache=/var/tester/.cache unit=mobifs-adopted-var-tester-.cache.service main
  useradd -m -d /var/tester -u 4242 tester || failed "no user can be added"
  loginctl enable-linger tester || failed "no linger"
  until_true "the user's systemd" 120 systemctl is-active user@4242.service
  tester sh -c "mkdir -p $cache/app && echo first >$cache/app/file"
  tester mobifs adopt "$cache" || failed "a user cannot adopt"
  tester systemctl --user is-active --quiet "$unit" || failed "the user's unit does not serve it"
  tester sh -c "echo second >>$cache/app/file"
  main=$(tester systemctl --user show --property MainPID --value "$unit")
  kill -KILL "$main"
  until_true "the next daemon" 60 sh -c "runuser -u tester -- env XDG_RUNTIME_DIR=/run/user/4242 \
    systemctl --user show -p NRestarts --value $unit | grep -qx 1"
  until_true "it is served again" 60 tester grep -q second "$cache/app/file"
  systemctl stop user@4242.service
  findmnt "$cache" && failed "the mount has outlived the session"
  systemctl start user@4242.service
  until_true "it is mounted with the session" 60 findmnt "$cache"
  [ "$(tester cat "$cache/app/file" | tr '\n' ' ')" = "first second " ] || failed "the session's end loses a change"
  tester mobifs unadopt "$cache" || failed "it does not come back"
  [ "$(tr '\n' ' ' <"$cache/app/file")" = "first second " ] || failed "files have changed"
  [ ! -e "$cache.mobifs-store" ] && [ ! -e "$cache/.mobifs" ] || failed "there is still a store"
  find /var/tester/.config -name '*mobifs*' | grep . && failed "there is still a note or a unit"
  say "a user's cache, by a systemd of their own: its daemon killed, the session ended and begun again, and back"
  switch_off
}

# After a cut: with either command all is there. Then one adoption or return, and a cut in the middle of it.
phase_cut() {
  systemctl stop writer.service
  mobifs adopt --list
  if is_mounted; then
    sums | cmp -s - /root/sums || failed "files have changed"
  fi
  if [ $((RANDOM % 2)) = 0 ] && is_noted; then
    mobifs adopt "$LOG" || failed "it does not go on"
    is_mounted || failed "nothing is mounted"
    sums | cmp -s - /root/sums || failed "files have changed"
  fi
  if is_noted; then
    mobifs unadopt "$LOG" || failed "it does not go back"
  fi
  is_ordinary
  local command=adopt pause
  if [ $((RANDOM % 3)) = 0 ]; then
    mobifs adopt "$LOG" >/dev/null || failed "it is not adopted"
    command=unadopt
  fi
  pause=$(printf '%d.%03d' $((RANDOM % 8)) $((RANDOM % 1000)))
  say "power is cut $pause s after $command begins"
  mobifs "$command" "$LOG" >/dev/null 2>&1 &
  say "all of $PHASE"
  sleep "$pause"
  echo b >/proc/sysrq-trigger
  sleep 60
}

phase_end() {
  systemctl stop writer.service
  mobifs adopt --list
  if is_noted; then
    mobifs unadopt "$LOG" || failed "it does not go back"
  fi
  is_ordinary
  say "after all cuts an ordinary directory with all files"
  switch_off
}

case $PHASE in
cut-*) phase_cut ;;
*) "phase_${PHASE//-/_}" ;;
esac
