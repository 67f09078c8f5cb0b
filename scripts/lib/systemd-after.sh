#!/usr/bin/env bash
# Second boot of scripts/systemd-check.sh: what a machine that was switched off has kept.
set -u
cd "$(dirname "$0")"
. ./systemd-common.sh

dumpe2fs -h /dev/vda 2>/dev/null | grep -q '^Filesystem state: *clean$' ||
  failed "the filesystem below was not unmounted"
mount -t ext4 /dev/vda /srv || failed "no disk"
# In the store itself: unmounting has brought everything to its place.
[ "$(cat "$STORE/app/last")" = "not committed" ] || failed "the last change is not in the store"
start_mount
[ "$(cat "$MOUNT/app/last")" = "not committed" ] || failed "the last change is lost"
[ "$(cat "$MOUNT/app/battery")" = durable ] || failed "a change is lost"
tail -n 1 "$MOUNT/app/lines" | grep -q '^[0-9][0-9]*$' || failed "the lines are lost"
systemctl stop "$SERVICE" || failed "the service does not stop"
findmnt "$MOUNT" >/dev/null && failed "the service has stopped and the mount is there"
say "switched off: committed, applied and unmounted before the filesystem below"
say "all of after"
systemctl poweroff
