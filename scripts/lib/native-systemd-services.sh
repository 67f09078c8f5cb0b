# Services and containers in the guest of scripts/native-systemd.sh. To be sourced.

DATA=/srv/data/services
# service NAME: a unit from standard input, with the drop-in; not started.
service() {
  cat >"/etc/systemd/system/$1.service"
  systemctl daemon-reload
  mobifs run --systemd "$1" --install >/dev/null || failed "$1: there is no drop-in"
  systemctl daemon-reload
}
# counted COMMAND...: how often the device was flushed meanwhile. The writer stands still, its calls return at
# once; the daemon may commit twice.
counted() {
  local before
  before=$(flushes)
  "$@" >/dev/null 2>&1
  FAILED=$?
  FLUSHED=$(($(flushes) - before))
}
# skipped NAME: a oneshot service that calls fsync fifty times, and need not wait.
skipped() {
  counted systemctl start "$1.service"
  [ "$FAILED" = 0 ] || failed "$1 fails: $(journalctl --no-pager -u "$1" -n 5 -o cat)"
  [ "$FLUSHED" -lt 25 ] || failed "$1 waits: $FLUSHED flushes for 50 calls"
}
syncs() { echo "/usr/bin/python3 /usr/local/lib/check/native_order.py sync $DATA/$1 50"; }

check_services() {
  systemctl restart writer.service || failed "the service cannot be restarted"
  goes_on 3
  systemctl stop writer.service || failed "the service cannot be stopped"
  [ "$(systemctl show -p Result --value writer.service)" = success ] || failed "stopping the service fails"
  until_true "the supervisor has ended" 20 sh -c '! pgrep -x "mobifs-run|mobifs-run-keep"'
  [ ! -e /sys/fs/cgroup/system.slice/writer.service ] || failed "a control group stays"
  cat >/usr/local/bin/notifies <<'PROGRAM'
#!/usr/bin/python3
import os, socket, sys, time
notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
notify.connect(os.environ["NOTIFY_SOCKET"].replace("@", "\0", 1))
notify.send(b"READY=1")
file = open(sys.argv[1], "w")
while True:
    file.write("line\n")
    file.flush()
    os.fsync(file.fileno())
    time.sleep(0.05)
PROGRAM
  cat >/usr/local/bin/forks <<PROGRAM
#!/bin/bash
$(syncs forked)
sleep 1000 &
echo \$! >/run/forks.pid
PROGRAM
  chmod +x /usr/local/bin/notifies /usr/local/bin/forks
  service notifies <<UNIT
[Service]
Type=notify
ExecStart=/usr/local/bin/notifies $DATA/notified
Restart=always
RestartSec=10ms
StartLimitIntervalSec=0
UNIT
  service forks <<UNIT
[Service]
Type=forking
PIDFile=/run/forks.pid
ExecStart=/usr/local/bin/forks
UNIT
  counted systemctl start notifies.service
  [ "$FAILED" = 0 ] || failed "a service of Type=notify does not start"
  local turn
  for turn in 1 2 3; do
    case $turn in
      1) systemctl kill --signal KILL notifies.service ;;
      2) kill -KILL "$(systemctl show -p MainPID --value notifies.service)" ;;
      3) systemctl kill --signal TERM notifies.service ;;
    esac
    until_true "systemd starts the service again ($turn)" 60 sh -c "
      [ \$(systemctl show -p NRestarts --value notifies.service) -ge $turn ] &&
      systemctl is-active --quiet notifies.service"
  done
  systemctl stop notifies.service || failed "a service of Type=notify does not stop"
  counted systemctl start forks.service
  [ "$FAILED" = 0 ] || failed "a service of Type=forking does not start"
  [ "$FLUSHED" -lt 25 ] || failed "a service of Type=forking waits: $FLUSHED flushes"
  [ "$(systemctl show -p MainPID --value forks.service)" = "$(cat /run/forks.pid)" ] ||
    failed "systemd does not know the process of a service of Type=forking"
  systemctl stop forks.service || failed "a service of Type=forking does not stop"
  until_true "their supervisors have ended" 20 sh -c '! pgrep -x "mobifs-run|mobifs-run-keep"'
  say "services: restarted, stopped, killed as a whole and by their process; Type=notify and Type=forking"
}

check_hardened() {
  service hardened <<UNIT
[Service]
Type=oneshot
ExecStart=$(syncs hardened)
DynamicUser=yes
ReadWritePaths=$DATA
NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
PrivateDevices=yes
PrivateNetwork=yes
ProtectClock=yes
ProtectHostname=yes
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectKernelLogs=yes
ProtectControlGroups=yes
ProtectProc=invisible
ProcSubset=pid
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
RestrictAddressFamilies=AF_INET
LockPersonality=yes
MemoryDenyWriteExecute=yes
CapabilityBoundingSet=
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallFilter=~@privileged @resources
UNIT
  skipped hardened
  service private-users <<UNIT
[Service]
Type=oneshot
ExecStart=$(syncs private-users)
DynamicUser=yes
ReadWritePaths=$DATA
PrivateUsers=yes
UNIT
  skipped private-users
  service denied <<UNIT
[Service]
Type=oneshot
ExecStart=$(syncs denied)
SystemCallFilter=~@privileged @mount @process @debug @resources
SystemCallFilter=execve
UNIT
  skipped denied
  service narrow <<UNIT
[Service]
Type=oneshot
ExecStart=$(syncs narrow)
SystemCallFilter=@basic-io @file-system @sync @signal madvise uname sysinfo socket connect
UNIT
  skipped narrow
  say "hardened services: their fsyncs return at once"
  service hidden <<UNIT
[Service]
Type=oneshot
ExecStart=$(syncs hidden)
TemporaryFileSystem=/run
UNIT
  systemctl start hidden.service 2>/dev/null && failed "a service without sight of the registrations starts"
  journalctl --no-pager -u hidden -o cat | grep -q 'mobifs: no filesystem is steered' ||
    failed "a service that is refused does not say why: $(journalctl --no-pager -u hidden -o cat -n 5)"
  say "a service that cannot see the registrations: $(journalctl --no-pager -u hidden -o cat | grep mobifs: | head -1)"
}

# contained NAME COMMAND...: a container that calls fsync fifty times below mobifs run.
contained() {
  local name=$1
  shift
  counted "$@"
  [ "$FAILED" = 0 ] || failed "$name fails: $("$@" 2>&1 | tail -n 3)"
  [ "$FLUSHED" -lt 25 ] || failed "$name waits: $FLUSHED flushes for 50 calls"
}

check_containers() {
  local inside outside
  inside="mobifs run -- $(syncs contained)" outside=$(syncs contained)
  local -a nspawn=(systemd-nspawn --quiet --pipe --register=no --keep-unit --volatile=yes --directory=/
    --bind="$DATA" --bind-ro=/run/mobifs-steered)
  local -a bwrap=(bwrap --ro-bind / / --dev /dev --proc /proc --tmpfs /run --bind "$DATA" "$DATA"
    --ro-bind /run/mobifs-steered /run/mobifs-steered --unshare-pid --unshare-net)
  local -a unshare=(unshare --mount --pid --fork --mount-proc --uts --ipc --net)
  # shellcheck disable=SC2086  # commands and their words
  {
    contained "unshare, mobifs run inside," "${unshare[@]}" $inside
    contained "unshare, mobifs run outside," mobifs run -- "${unshare[@]}" $outside
    contained "bubblewrap, mobifs run inside," "${bwrap[@]}" $inside
    contained "bubblewrap, mobifs run outside," mobifs run -- "${bwrap[@]}" $outside
    contained "nspawn, mobifs run inside," "${nspawn[@]}" $inside
  }
  say "containers (unshare, bubblewrap, systemd-nspawn): their fsyncs return at once"
}
