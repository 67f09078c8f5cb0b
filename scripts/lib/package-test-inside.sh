#!/usr/bin/env bash
# What scripts/package-test.sh does in the clean Debian. Each step names itself; the first that fails ends it.
set -euo pipefail
cd /packages

STORE=/srv/store MOUNT=/mnt/data
TRIPLET=$(basename "$(dirname "$(ls -d /usr/lib/*/libc.so.6)")")

say() { printf 'package-test: %s\n' "$*"; }
failed() { printf 'package-test: FAILED: %s\n' "$*" >&2; exit 1; }
apt() { apt-get -qq -o Dpkg::Use-Pty=0 "$@" >/tmp/apt.log 2>&1; }

# Every file there is, a line each, but for the state that package managers and the shell keep of themselves.
files() {
  find / -xdev \( -path /packages -o -path /proc -o -path /var/lib/apt -o -path /var/cache -o -path /var/log \
    -o -path /var/lib/dpkg -o -path /tmp -o -path /etc/ld.so.cache -o -path /root/.sqlite_history \) -prune -o -print0 |
    tr '\n\0' '?\n' | sort
}

# By qemu-user: what is the same for all machines (pages, completions, units) is looked at on this one, and the emulator
# has no ptrace and shows itself as the program of a process.
is_emulated() { [ -n "${IS_EMULATED:-}" ]; }

# `PRODUCT_ONLY=1 make deb` makes none.
has_laboratory() { ls mobifs-lab_*.deb >/dev/null 2>&1; }
own() { dpkg-query -W -f '${db:Status-Abbrev}${Package}\n' '*mobifs*' | sed -n 's/^[ir][ic] *//p'; }

# Packages that ours depend on or recommend stay when ours go: they are here before.
prepare() {
  apt update || failed "no lists of packages: $(cat /tmp/apt.log)"
  apt install -y fuse3 python3-minimal $(is_emulated || echo strace) || failed "$(cat /tmp/apt.log)"
  useradd -m tester
  mkdir -p "$STORE" "$MOUNT"
  files >/tmp/before
}

check_install() {
  apt install -y ./*.deb || failed "apt install: $(cat /tmp/apt.log)"
  dpkg --audit | grep . && failed "dpkg --audit has something to say"
  mobifs --version
  ! has_laboratory || mobifs-lab --version
  [ -e /etc/mobifs/mobifs.toml ] || failed "no configuration"
  is_emulated || check_units
  say "installed: $(own | xargs)"
}

check_units() {
  systemd-analyze verify --man=no /usr/lib/systemd/system/mobifs-sleep.service \
    'mobifs@mnt-data.service' 'mobifs-steer@mnt-data.service' 2>&1 | grep -i mobifs && failed "systemd has something to say of a unit"
  systemd-analyze --user verify --man=no 'mobifs@home-tester-data.service' 2>&1 | grep -i mobifs@ && failed "systemd has something to say of the user's unit"
  say "units: systemd has nothing to say of them"
}

check_pages() {
  local page
  for page in $(dpkg -L $(own) | sed -nE 's#^/usr/share/man/man./(.*)\.[158]\.gz$#\1#p'); do
    # With a name that is not known, or requests that groff does not know, this says so.
    man --warnings -Tutf8 "$page" 2>/tmp/man.err >/tmp/man.out || failed "man $page"
    [ -s /tmp/man.out ] && [ ! -s /tmp/man.err ] || failed "man $page: $(head -n 3 /tmp/man.err)"
  done
  # Read to the end: man reports a reader that leaves.
  man -P cat mobifs-mount | grep 'memory_budget_bytes' >/dev/null || failed "mobifs-mount(1) lacks the keys"
  man -P cat 5 mobifs.toml | grep 'staleness_max_bytes' >/dev/null || failed "mobifs.toml(5) lacks a key"
  say "manual pages: $(dpkg -L $(own) | grep -c '/man[158]/.*gz') shown without a warning"
}

check_completions() {
  local found
  found=$(bash -c '
    source /usr/share/bash-completion/bash_completion
    _completion_loader mobifs || :
    COMP_WORDS=(mobifs um) COMP_CWORD=1 COMP_LINE="mobifs um" COMP_POINT=9
    $(complete -p mobifs | sed -E "s/.*-F ([^ ]+).*/\1/") mobifs um mobifs
    echo "${COMPREPLY[*]}"')
  [ "$found" = umount ] || failed "bash completes \"mobifs um\" to \"$found\""
  found=$(HOME=/tmp fish -c 'complete -C "mobifs um"' | cut -f1)
  [ "$found" = umount ] || failed "fish completes \"mobifs um\" to \"$found\""
  zsh -fc 'fpath=(/usr/share/zsh/vendor-completions $fpath); autoload -Uz compinit; compinit -u -d /tmp/zcompdump
    [[ $_comps[mobifs] = _mobifs ]] && autoload +X _mobifs' || failed "zsh does not know the completion"
  say "completions: bash, fish and zsh know the commands"
}

check_mount() {
  mobifs mount "$STORE" "$MOUNT"
  mkdir "$MOUNT/app"
  echo kept >"$MOUNT/app/file"
  mobifs sync "$MOUNT"
  [ "$(cat "$STORE/app/file")" = kept ] || failed "sync has not brought a file to the store"
  mobifs status "$MOUNT" >/dev/null
  mobifs umount "$MOUNT"
  echo "$STORE $MOUNT fuse.mobifs noauto,config=/etc/mobifs/mobifs.toml 0 0" >>/etc/fstab
  mount "$MOUNT" || failed "mount(8) does not find its helper"
  [ "$(cat "$MOUNT/app/file")" = kept ] || failed "the file is lost"
  (cd /mnt && umount data) || failed "umount(8) does not find its helper"
  mkdir -p /home/tester/store /home/tester/data
  chown -R tester: /home/tester
  runuser -u tester -- sh -ec 'cd; mobifs mount store data; mkdir data/app; echo mine >data/app/file; mobifs umount data
    [ "$(cat store/app/file)" = mine ]' || failed "a user without privileges cannot mount"
  mobifs run --help >/dev/null
  say "mount: by mobifs, by mount(8) and fstab, and by a user without privileges"
}

daemon_of() { mobifs status --json "$1" | python3 -c 'import json, sys; print(json.load(sys.stdin)["daemon_pid"])'; }

check_upgrade() {
  local before after tries
  mobifs mount "$STORE" "$MOUNT"
  before=$(daemon_of "$MOUNT")
  exec 7>"$MOUNT/app/upgrade"
  echo before >&7
  apt install -y --reinstall ./mobifs_*.deb || failed "reinstall: $(cat /tmp/apt.log)"
  [ "$(daemon_of "$MOUNT")" = "$before" ] || failed "an upgrade interrupts a mount"
  kill -9 "$before"
  echo after >&7
  exec 7>&-
  for tries in $(seq 100); do
    after=$(daemon_of "$MOUNT" 2>/dev/null) && [ "$after" != "$before" ] && break
    sleep 0.1
  done
  [ -n "$after" ] && [ "$after" != "$before" ] || failed "no daemon has taken over after $tries tries"
  # The supervisor starts the program that it is itself, which knows the memory of the mount.
  is_emulated || [ "$(readlink "/proc/$after/exe")" = "/usr/bin/mobifs (deleted)" ] || failed "the next daemon is $(readlink "/proc/$after/exe")"
  mobifs umount "$MOUNT"
  [ "$(xargs <"$STORE/app/upgrade")" = "before after" ] || failed "a change is lost by an upgrade"
  say "upgrade: the mount goes on, also with a daemon that takes over"
}

check_sqlite() {
  printf '%s\n' ".load /usr/lib/$TRIPLET/mobifs/libmobifs" ".open file:/root/app.db?vfs=mobifs" \
    "create table notes(text); insert into notes values ('kept');" >/tmp/commands
  sqlite3 :memory: </tmp/commands || failed "the shell cannot use the extension"
  [ "$(sqlite3 /root/app.db 'select text from notes')" = kept ] || failed "the database is no ordinary one"
  say "SQLite: the extension is loaded, and the closed database an ordinary file"
}

check_laboratory() {
  has_laboratory || { say "laboratory: SKIPPED, there is no such package"; return; }
  ! is_emulated || { say "laboratory: SKIPPED, traces need ptrace"; return; }
  mobifs trace record --root /home/tester/store --out /tmp/trace.parquet -- cp /etc/passwd /home/tester/store/passwd
  mobifs trace stat /tmp/trace.parquet | grep -q . || failed "the trace is empty"
  say "laboratory: a trace is recorded and read by mobifs trace"
}

# What the table of mounts does not show: a lazily unmounted mount, which is in use and so in the way.
check_remove_lazy() {
  local lazy=/mnt/lazy
  mobifs mount /srv/lazy-store "$lazy"
  exec 8>"$lazy/file"
  umount -i -l "$lazy"
  if apt-get -qq purge -y mobifs >/tmp/apt.log 2>&1; then failed "purged under a lazily unmounted mount"; fi
  grep -q 'nothing was removed' /tmp/apt.log || failed "the reason is missing: $(cat /tmp/apt.log)"
  [ -d /run/mobifs ] || failed "the runtime directory is gone under daemons that run"
  echo lazy >&8
  exec 8>&-
  until_file_is lazy /srv/lazy-store/file
}

# What it shows under another name: a mount whose name has a tab and a new line, which is committed and unmounted.
check_remove_unseen() {
  local odd=$'/mnt/with\ta tab\nand a line' lazy=/mnt/lazy
  mkdir -p "$odd" "$lazy" /srv/odd-store /srv/lazy-store
  # Such daemons are found by their command lines, which are the emulator's.
  is_emulated || check_remove_lazy
  mobifs mount /srv/odd-store "$odd"
  echo odd >"$odd/file"
  mountpoint -q "$MOUNT" || mount "$MOUNT"
  ! mobifs mount -o subtype=mine /srv/lazy-store "$lazy" 2>/dev/null || failed "a mount hides behind another subtype"
}

until_file_is() {
  local tries
  for tries in $(seq 100); do
    [ "$(cat "$2" 2>/dev/null)" = "$1" ] && return
    sleep 0.1
  done
  failed "$2 is not $1 after $tries tries"
}

check_remove() {
  # Of another user, with a name that is not ASCII, as it is under a package manager that runs in C.
  local theirs=/home/tester/dätä
  runuser -u tester -- sh -ec 'mkdir "$1"; mobifs mount ~/store "$1"; echo last >"$1/app/file"' - "$theirs"
  mount "$MOUNT"
  exec 7>"$MOUNT/app/open"
  if apt-get -qq remove -y mobifs >/tmp/apt.log 2>&1; then failed "removed under a mount that is in use"; fi
  grep -q 'nothing was removed' /tmp/apt.log || failed "the reason is missing: $(cat /tmp/apt.log)"
  [ -x /usr/bin/mobifs ] || failed "the program is gone"
  echo last >&7
  exec 7>&-
  check_remove_unseen
  # Purged, they are gone with the units.
  is_emulated || systemctl --quiet enable mobifs-sleep.service mobifs@mnt-data.service mobifs-steer@mnt-data.service
  is_emulated || systemctl --quiet --global enable mobifs@home-tester-data.service
  # What depends on it goes with it.
  LC_ALL=C apt remove -y mobifs || failed "remove: $(cat /tmp/apt.log)"
  findmnt -l -t fuse.mobifs && failed "a mount is still there"
  [ "$(cat "$STORE/app/open" /home/tester/store/app/file | xargs)" = "last last" ] || failed "a change is lost by removing the package"
  [ ! -e /usr/bin/mobifs ] || failed "the program is still there"
  [ "$(cat /srv/odd-store/file)" = odd ] || failed "a change is lost under a name with a tab and a new line"
  [ -e /etc/mobifs/mobifs.toml ] || failed "a removed package keeps its configuration"
  say "removed: refused while the mount is in use, then everything is in the store"
}

# What was there before and what is left of a way to install, but for the user's files.
check_left() {
  files >/tmp/after
  # The store, the database and what was mounted are the user's.
  comm -13 /tmp/before /tmp/after | grep -vE '^(/srv/(odd-|lazy-)?store|/home/tester|/root/app\.db|/mnt)' >/tmp/left || :
  [ ! -s /tmp/left ] || failed "$1, and there are: $(head -n 20 /tmp/left)"
  comm -23 /tmp/before /tmp/after | grep . && failed "$1, and files of others are gone"
  [ -z "$(ls -A /run/mobifs 2>/dev/null)" ] || failed "files are left in /run/mobifs"
  return 0
}

check_purge() {
  apt purge -y $(own) || failed "purge: $(cat /tmp/apt.log)"
  check_left purged
  say "purged: nothing but the user's files is left"
}

# The archive, after the packages: the fstab still names the mount.
check_archive() {
  [ -e archive.tar.gz ] || { say "archive: SKIPPED, there is none for this machine"; return; }
  mkdir /packages/archive
  tar xf archive.tar.gz --strip-components 1 -C /packages/archive
  hash -r
  sh archive/install.sh >/tmp/install.log || failed "install.sh: $(cat /tmp/install.log)"
  [ "$(command -v mobifs)" = /usr/local/bin/mobifs ] || failed "mobifs is $(command -v mobifs)"
  mobifs mount "$STORE" "$MOUNT"
  mkdir -p "$MOUNT/archive"
  echo static >"$MOUNT/archive/file"
  if sh archive/install.sh --uninstall 2>/dev/null; then failed "uninstalled under a mount"; fi
  mobifs umount "$MOUNT"
  [ "$(cat "$STORE/archive/file")" = static ] || failed "a change is lost by the static program"
  mobifs-top --version >/dev/null
  mobifs run --help >/dev/null
  sh archive/install.sh --uninstall || failed "install.sh --uninstall"
  rm -rf /run/mobifs
  check_left uninstalled
  say "archive: the static program is installed, used and uninstalled"
}

prepare
check_install
is_emulated || check_pages
is_emulated || check_completions
check_mount
check_upgrade
check_sqlite
check_laboratory
check_remove
check_purge
check_archive
say "all passed"
