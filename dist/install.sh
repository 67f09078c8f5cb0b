#!/bin/sh
# Installs MobiFS from this archive, or removes it.
#
#   ./install.sh [--prefix DIR] [--helpers DIR] [--uninstall]
#
# PREFIX is /usr/local. mount(8) looks for its helpers in /sbin (--helpers) and nowhere else. Nothing is
# enabled or started, and no file that others have made is touched. DESTDIR comes before all paths.
set -eu
cd "$(dirname "$0")"

prefix=/usr/local helpers=/sbin uninstall=no
while [ $# -gt 0 ]; do
  case $1 in
  --prefix) prefix=$2 && shift 2 ;;
  --helpers) helpers=$2 && shift 2 ;;
  --uninstall) uninstall=yes && shift ;;
  *) echo "install.sh: unknown option $1 (--prefix DIR, --helpers DIR, --uninstall)" >&2 && exit 2 ;;
  esac
done
root=${DESTDIR:-}
# The directories that were not there before: only these go again.
made=$root$prefix/lib/mobifs/directories
links="mount.fuse.mobifs umount.fuse.mobifs umount.fuseblk.mobifs"

if [ "$uninstall" = yes ]; then
  # Without the program their names would lead to empty directories. Root's notes are in /etc, those of users in their
  # homes, and what is mounted without a note is an adoption, too: the program knows them all.
  adopted=no
  ! ls "$root"/etc/mobifs/adopted/*.json >/dev/null 2>&1 || adopted=yes
  mobifs=$prefix/bin/mobifs all=
  [ "$(id -u)" != 0 ] || all=--all-users
  if [ -z "$root" ] && [ -x "$mobifs" ] && list=$("$mobifs" adopt --list $all --json); then
    ! printf %s "$list" | grep -q '"directory"' || adopted=yes
    "$mobifs" every adopted || adopted=yes
  fi
  if [ $adopted = yes ]; then
    echo "install.sh: directories are adopted (mobifs adopt --list $all); make them ordinary ones first (mobifs unadopt DIR)" >&2
    exit 1
  fi
  if grep -qsE ' fuse(blk)?\.mobifs ' /proc/self/mounts && [ -z "$root" ]; then
    echo "install.sh: MobiFS is mounted; unmount it first (mobifs umount MOUNTPOINT)" >&2
    exit 1
  fi
  (cd files && find . -type f -o -type l) | while IFS= read -r file; do rm -f "$root$prefix/$file"; done
  for link in $links; do
    [ "$(readlink "$root$helpers/$link" 2>/dev/null)" != "$prefix/bin/mobifs" ] || rm -f "$root$helpers/$link"
  done
  [ -e "$made" ] || exit 0
  directories=$(sort -r "$made")
  rm -f "$made"
  printf '%s\n' "$directories" | while IFS= read -r directory; do rmdir "$root$prefix/$directory" 2>/dev/null || :; done
  exit 0
fi

new=$( (cd files && find . -type d && printf './lib\n./lib/mobifs\n') | sort -u | while IFS= read -r directory; do
  [ -d "$root$prefix/$directory" ] || printf '%s\n' "$directory"
  mkdir -p "$root$prefix/$directory"
done)
[ -z "$new" ] || printf '%s\n' "$new" >>"$made"
(cd files && find . -type f) | while IFS= read -r file; do
  # A new file in the place of the old one: a running program keeps the one that it has.
  rm -f "$root$prefix/$file"
  case $file in
  *.service) sed "s#/usr/local/bin/#$prefix/bin/#" "files/$file" >"$root$prefix/$file" && chmod 644 "$root$prefix/$file" ;;
  *) cp -p "files/$file" "$root$prefix/$file" ;;
  esac
done
mkdir -p "$root$helpers"
for link in $links; do ln -sfn "$prefix/bin/mobifs" "$root$helpers/$link"; done
echo "installed below $root$prefix: mobifs $("$root$prefix/bin/mobifs" --version 2>/dev/null | cut -d' ' -f2)"
