#!/usr/bin/env bash
# What the guest of scripts/native-systemd.sh does, as a service of its systemd: native mode under real units.
# /srv/data is an ext4 of which QEMU logs all writes, /srv/history a btrfs.
set -u
cd "$(dirname "$0")" || exit 1
. ./systemd-common.sh
. ./native-systemd-services.sh
. ./native-systemd-sleep.sh

MOUNT=/srv/data STEER=mobifs-steer@srv-data.service
# As in the configuration, and how much later a commit may have ended.
AGE_S=5 SLACK_S=4
STEPS=/run/steps

failed() {
  say "FAILED: $*"
  { journalctl --no-pager; dmesg; systemctl status --no-pager --full; } >/dev/ttyS1 2>&1
  systemctl poweroff --force
  sleep 60
}
order() { python3 native_order.py "$@"; }
flushes() {
  local -a counts
  read -r -a counts </sys/block/vdb/stat
  echo "${counts[15]}"
}
# The last step that had returned so many seconds ago.
returned_before() { order returned-before "$STEPS" "$1"; }
steps() { returned_before 0; }
# mark NAME STEP: from now on a power cut has to leave all that was done up to this step.
mark() { say "mark $1 $2"; }
mark_age() { mark "$1" "$(returned_before $((AGE_S + SLACK_S)))"; }
promise_holds() { [ "$(status native.calls_return_at_once)" = True ]; }

# goes_on SECONDS: the writer works, and its calls for durability return at once.
goes_on() {
  local before flushed
  before=$(steps) flushed=$(flushes)
  sleep "$1"
  flushed=$(($(flushes) - flushed)) before=$(($(steps) - before))
  [ "$before" -ge 20 ] || failed "the writer does not go on: $before steps in $1 s"
  [ "$flushed" -lt $((before / 2)) ] || failed "calls for durability wait: $flushed flushes of $before steps"
}

# What the status says of the ages of what is not committed, and of the last commit.
ages_are_sane() {
  mobifs status --json "$MOUNT" | python3 -c '
import datetime, json, sys
limit = float(sys.argv[1])
app = json.load(sys.stdin)["apps"][0]
risk, last = app["seconds_at_risk"], app["last_checkpoint"]
at = datetime.datetime.fromisoformat(last["time"].replace("Z", "+00:00"))
if not 0 <= risk <= limit or not 0 <= last["age_seconds"] <= limit:
    sys.exit(f"{risk} s at risk, last commit {last}")' $((AGE_S + SLACK_S)) ||
    failed "the status shows other ages than the limit allows: $1"
}

check_order_of_start() {
  findmnt "$MOUNT" >/dev/null || failed "the filesystem is not mounted"
  mkdir "$MOUNT/app" "$MOUNT/services"
  chmod 1777 "$MOUNT/services"
  order begin "$MOUNT/app"
  systemctl start "$STEER" || failed "it is not steered"
  promise_holds || failed "systemd takes the daemon for started, and it does not steer yet"
  mobifs run --systemd writer --install || failed "there is no drop-in"
  systemctl daemon-reload
  systemctl stop "$STEER" srv-data.mount || failed "it cannot be stopped and unmounted"
  findmnt "$MOUNT" >/dev/null && failed "the filesystem is still mounted"
  systemctl start writer.service || failed "the service does not start"
  until_true "the writer works" 60 sh -c "[ \$(stat -c %s $STEPS) -gt 0 ]"
  systemctl is-active --quiet writer.service || failed "the service ended: $(journalctl -u writer -n 3)"
  findmnt "$MOUNT" >/dev/null || failed "the filesystem is not mounted"
  promise_holds || failed "the service was started before the filesystem was steered"
  goes_on 5
  mark started 1
  say "a start of the service mounts, steers and runs, in this order, and its fsyncs return at once"
}

check_steering() {
  local main
  systemctl restart "$STEER" || failed "the daemon cannot be restarted"
  promise_holds || failed "a daemon that was restarted promises nothing"
  goes_on 4
  main=$(systemctl show --property MainPID --value "$STEER")
  kill -KILL "$main"
  is_next() { [ "$(systemctl show -p MainPID --value "$STEER")" != "$main" ] && promise_holds; }
  until_true "the next daemon steers" 60 is_next
  goes_on 4
  systemctl stop "$STEER" || failed "the daemon cannot be stopped"
  local flushed
  flushed=$(flushes)
  sleep 4
  [ $(($(flushes) - flushed)) -ge 10 ] || failed "calls return at once without a daemon"
  grep -q " $MOUNT ext4 .*commit=$AGE_S" /proc/mounts && failed "the options are not restored"
  systemctl start "$STEER" || failed "it is not steered again"
  goes_on 4
  mark_age steering-restarted
  say "the daemon restarted, killed, stopped and started again under the service"
}

check_order_of_start
for part in $(sed -n 's/.*mobifs_parts=\([^ ]*\).*/\1/p' /proc/cmdline | tr , ' '); do
  "check_$part"
done
say "off end $(steps)"
say "all of native"
systemctl poweroff
