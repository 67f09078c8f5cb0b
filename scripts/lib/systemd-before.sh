#!/usr/bin/env bash
# First boot of scripts/systemd-check.sh: all but what is seen after the power is off.
set -u
cd "$(dirname "$0")"
. ./systemd-common.sh

KILLS=5

at_risk() { [ "$(mobifs status --json "$MOUNT" | python3 -c '
import json, sys
print(sum(app["bytes_at_risk"] for app in json.load(sys.stdin)["apps"]))')" != 0 ]; }
safe() { ! at_risk; }

# A program that never stops: appends, reads everything back, keeps a deleted file open.
writer() {
  exec 7>"$MOUNT/app/deleted" 8<"$MOUNT/app/deleted"
  rm "$MOUNT/app/deleted"
  echo "still here" >&7
  local count=0
  while [ ! -e /run/writer-stops ]; do
    count=$((count + 1))
    echo "$count" >>"$MOUNT/app/lines" || echo "append $count" >>/run/writer-errors
    [ "$(tail -n 1 "$MOUNT/app/lines")" = "$count" ] || echo "read $count" >>/run/writer-errors
  done
  [ "$(cat <&8)" = "still here" ] || echo "deleted file" >>/run/writer-errors
  echo "$count" >/run/writer-count
}

check_kills() {
  local number main
  : >/run/writer-errors
  mkdir -p "$MOUNT/app"
  writer &
  for number in $(seq "$KILLS"); do
    main=$(systemctl show --property MainPID --value "$SERVICE")
    kill -KILL "$main"
    until_true "systemd starts daemon $number" 60 \
      sh -c "[ \"\$(systemctl show -p NRestarts --value $SERVICE)\" -ge $number ] &&
             [ \"\$(systemctl show -p ActiveState --value $SERVICE)\" = active ]"
    sleep 1
  done
  : >/run/writer-stops
  wait
  [ ! -s /run/writer-errors ] || failed "programs saw errors: $(head -n 3 /run/writer-errors)"
  [ "$(wc -l <"$MOUNT/app/lines")" = "$(cat /run/writer-count)" ] || failed "lines are missing"
  [ "$(status supervised_by)" = systemd ] || failed "the status does not name systemd as the supervisor"
  say "systemd started the daemon $KILLS times while a program wrote $(cat /run/writer-count) lines: no error, no line lost"
}

check_inhibitor() {
  until_true "logind knows of the daemon" 60 sh -c "systemd-inhibit --list --no-legend | grep -i mobifs"
  systemd-inhibit --list --no-legend | grep -i mobifs | grep -q 'sleep:\?.*delay\|shutdown.*delay' ||
    failed "no delay inhibitor: $(systemd-inhibit --list --no-legend)"
  say "logind: $(systemd-inhibit --list --no-legend | grep -i mobifs | tr -s ' ')"
}

# The kernel freezes everything and wakes up again, as far as drivers are concerned.
check_sleep() {
  local before after
  echo freezer >/sys/power/pm_test || failed "this kernel cannot sleep for a test"
  echo "before sleep" >"$MOUNT/app/sleep"
  at_risk || failed "what was written just now is committed already"
  before=$(status store.commits)
  systemctl suspend || failed "logind does not let the machine sleep"
  until_true "the kernel slept" 60 sh -c "dmesg | grep -q 'PM: suspend exit'"
  after=$(status store.commits)
  [ "$after" -gt "$before" ] || failed "nothing was committed before the sleep"
  grep -q "before sleep" "$MOUNT/app/sleep" || failed "the mount does not answer after the sleep"
  dmesg | grep -q 'Freezing of tasks failed' && failed "a task could not be frozen"
  until_true "the next delay inhibitor" 30 sh -c "systemd-inhibit --list --no-legend | grep -i mobifs"
  echo none >/sys/power/pm_test
  say "sleep: committed before it ($before to $after commits), mounted and awake after it"
}

# A battery of paper, by umockdev, under the real UPower.
check_battery() {
  cat >/run/battery.umockdev <<'DEVICE'
P: /devices/BAT0
E: SUBSYSTEM=power_supply
E: DEVTYPE=power_supply
E: POWER_SUPPLY_NAME=BAT0
A: type=Battery
A: present=1
A: status=Discharging
A: energy_full=60000000
A: energy_full_design=80000000
A: energy_now=48000000
A: voltage_now=12000000
A: capacity=80
DEVICE
  cat >/etc/systemd/system/upower.service <<'UNIT'
[Service]
Type=dbus
BusName=org.freedesktop.UPower
ExecStart=/usr/bin/umockdev-run --device /run/battery.umockdev -- bash -c \
  'echo "$UMOCKDEV_DIR" >/run/battery-directory; exec /usr/libexec/upowerd'
UNIT
  systemctl daemon-reload
  systemctl restart upower.service || failed "UPower does not start"
  until_true "UPower has the battery" 60 \
    sh -c "upower --enumerate | grep -q BAT0"
  [ "$(status battery_low)" = False ] || failed "a battery of 80 % is low"
  local supply
  supply=$(cat /run/battery-directory)/sys/devices/BAT0
  # UPower looks every half a minute. Below that it would switch the machine off.
  echo 4800000 >"$supply/energy_now"
  echo 8 >"$supply/capacity"
  until_low() { [ "$(status battery_low)" = True ]; }
  until_true "the daemon hears of the low battery" 90 until_low
  echo durable >"$MOUNT/app/battery"
  sync "$MOUNT/app/battery"
  safe || failed "an fsync with a low battery left something at risk"
  echo 48000000 >"$supply/energy_now"
  echo 80 >"$supply/capacity"
  echo Charging >"$supply/status"
  until_full() { [ "$(status battery_low)" = False ]; }
  until_true "the daemon hears that it is charged" 90 until_full
  say "UPower: low battery and charged again were heard, an fsync between was durable"
}

# A mount in the background without a service, as /etc/fstab makes it.
check_journal() {
  mkdir -p /srv/logged /mnt/logged
  mobifs mount /srv/logged /mnt/logged || failed "no mount in the background"
  mobifs umount /mnt/logged || failed "no unmount"
  until_true "its daemon's lines are in the journal" 30 \
    sh -c "journalctl --no-pager -t mobifs -o json | grep -q '\"MESSAGE\":\"unmounted'"
  journalctl --no-pager -t mobifs -p warning | grep -q unmounted && failed "information has the priority of a warning"
  ls /run/mobifs/*.log >/dev/null 2>&1 && failed "there is a log file as well: $(ls /run/mobifs)"
  say "journald: a mount in the background logs there"
}

# tester COMMAND...: as a user with a systemd of their own.
tester() { runuser -u tester -- env XDG_RUNTIME_DIR=/run/user/4242 HOME=/home/tester "$@"; }

check_user_unit() {
  local unit=mobifs@home-tester-data.service main
  useradd -m -u 4242 tester || failed "no user can be added"
  tester mkdir -p /home/tester/data /home/tester/.config/mobifs
  install -d -o tester /srv/tester
  printf 'STORE=/srv/tester\nOPTIONS=noatime\n' >/home/tester/.config/mobifs/home-tester-data.conf
  loginctl enable-linger tester || failed "no linger"
  until_true "the user's systemd" 90 systemctl is-active user@4242.service
  tester systemctl --user start "$unit" || failed "the user's service does not start: $(journalctl --no-pager -n 20)"
  tester sh -c 'mkdir /home/tester/data/app && echo kept >/home/tester/data/app/file' || failed "the user cannot write"
  main=$(tester systemctl --user show --property MainPID --value "$unit")
  kill -KILL "$main"
  until_true "the user's systemd starts the next daemon" 60 sh -c "
    [ \"\$(runuser -u tester -- env XDG_RUNTIME_DIR=/run/user/4242 systemctl --user show -p NRestarts --value $unit)\" -ge 1 ] &&
    runuser -u tester -- env XDG_RUNTIME_DIR=/run/user/4242 systemctl --user is-active $unit"
  [ "$(tester cat /home/tester/data/app/file)" = kept ] || failed "a killed daemon of a user loses a change"
  tester sh -c 'echo last >/home/tester/data/app/last'
  # The end of the user's manager, as at shutdown.
  systemctl stop user@4242.service || failed "the user's systemd does not end"
  findmnt /home/tester/data && failed "the user's mount is still there"
  [ "$(cat /srv/tester/app/last)" = last ] || failed "the end of the user's systemd loses a change"
  say "systemd --user: a mount of a user, its daemon killed, its manager ended; nothing lost"
}

mount -t ext4 /dev/vda /srv || failed "no disk"
start_mount
[ "$(systemctl show --property NFileDescriptorStore --value "$SERVICE")" -gt 0 ] ||
  failed "systemd keeps no descriptors"
check_kills
check_inhibitor
check_sleep
check_battery
check_journal
check_user_unit
echo "not committed" >"$MOUNT/app/last"
at_risk || failed "what was written just now is committed already"
say "switched off with changes at risk"
say "all of before"
systemctl poweroff
