# Clocks that jump and machines that sleep, in the guest of scripts/native-systemd.sh. To be sourced.

commits() { echo $(($(status store.commits) + $(status native.other_commits))); }

set_clock() { date -s "$1" >/dev/null || failed "the clock cannot be set: $1"; }

# under_clock WHAT: for some time after the clock was set.
under_clock() {
  local before
  before=$(commits)
  goes_on $((2 * (AGE_S + SLACK_S)))
  before=$(($(commits) - before))
  # Four or five are expected; a storm is hundreds.
  [ "$before" -le 40 ] || failed "$before commits after the clock was set $1"
  [ "$before" -ge 1 ] || failed "no commit after the clock was set $1"
  ages_are_sane "the clock was set $1"
  promise_holds || failed "the promise does not hold after the clock was set $1"
  mark_age "clock-$1"
  say "the clock was set $1: $before commits in $((2 * (AGE_S + SLACK_S))) s"
}

check_clock() {
  systemctl start writer.service || failed "the service does not start"
  goes_on 3
  set_clock '+1 hour'
  under_clock forward
  set_clock '-1 day'
  under_clock back
  set_clock '1970-01-02 UTC'
  under_clock to-1970
  set_clock '@4102444800'
  under_clock to-2100
  set_clock '@1798761600'
}

# kept TEXT WORD: writes, commits, and the last snapshot has it.
kept() {
  echo "$1" >/srv/history/notes/file
  sleep 1.2
  mobifs sync /srv/history || failed "the btrfs does not commit"
  local name file
  is_kept() {
    name=$(date -u +%Y-%m-%dT%H)
    for file in /srv/history/.mobifs-history/"$name"*/notes/file; do
      [ "$(cat "$file" 2>/dev/null)" = "$1" ] && return
    done
    return 1
  }
  until_true "a snapshot of this hour has '$1' ($2)" 15 is_kept "$1"
}

check_history() {
  systemctl start mobifs-steer@srv-history.service || failed "the btrfs is not steered"
  mkdir /srv/history/notes
  local number
  for number in 1 2 3 4; do kept "before $number" "before"; done
  set_clock '+1 hour'
  for number in 1 2; do kept "forward $number" "an hour forward"; done
  set_clock '-1 day'
  for number in 1 2 3 4; do kept "back $number" "a day back"; done
  mobifs restore --at -0s --app notes --to /run/restored /srv/history || failed "nothing can be restored"
  [ "$(cat /run/restored/file)" = "back 4" ] || failed "restored: $(cat /run/restored/file)"
  status_of_history
  set_clock '@1798761600'
  systemctl stop mobifs-steer@srv-history.service || failed "the btrfs is still steered"
  say "history: snapshots are kept after the clock was set an hour forward and a day back"
}

status_of_history() {
  mobifs status --json /srv/history | python3 -c '
import datetime, json, sys
history = json.load(sys.stdin)["native"]["history"]
last = datetime.datetime.fromisoformat(history["last"].replace("Z", "+00:00"))
now = datetime.datetime.now(datetime.timezone.utc)
if history["failed"] or history["kept"] > 3 or not 0 <= (now - last).total_seconds() < 60:
    sys.exit(str(history))' || failed "the status of the history is wrong"
}

# sleeps NAME COMMAND...: sleeps for real, until the host wakes the guest, and goes on.
sleeps() {
  local name=$1 slept tries=0
  shift
  slept=$(cat /sys/power/suspend_stats/success)
  # What logind does not announce may be in vain: a program may just wait for its supervisor (docs/RUN.md).
  until say "sleeping $name $(steps)" && "$@"; do
    tries=$((tries + 1))
    [ "$tries" -lt 6 ] || failed "$name: the machine does not go to sleep"
    say "$name: tried again"
  done
  is_awake() { [ "$(cat /sys/power/suspend_stats/success)" -gt "$slept" ]; }
  until_true "$name: the machine slept" 60 is_awake
  promise_holds || failed "$name: the promise does not hold after the sleep"
  goes_on $((AGE_S + SLACK_S + 2))
  ages_are_sane "$name"
  mark_age "after-$name"
}

check_sleep() {
  local sync=/sys/power/sync_on_suspend
  grep -q deep /sys/power/mem_sleep || failed "this machine cannot sleep: $(cat /sys/power/mem_sleep)"
  until_true "logind knows of the daemon" 60 sh -c "systemd-inhibit --list --no-legend | grep -i mobifs"
  # The daemon alone commits.
  echo 0 >$sync
  local number
  for number in 1 2 3; do sleeps "by-logind-$number" systemctl suspend; done
  [ "$(cat /sys/power/suspend_stats/fail)" = 0 ] || failed "a task could not be frozen when logind had announced it"
  # Nothing does: for the cuts to show something.
  for number in 1 2; do sleeps "control-$number" sh -c 'echo mem >/sys/power/state'; done
  # The kernel alone does.
  echo 1 >$sync
  sleeps by-kernel sh -c 'echo mem >/sys/power/state'
  say "slept for real and woke up six times"
}
