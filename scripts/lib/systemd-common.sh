# What both boots of scripts/systemd-check.sh share. Runs in the guest, as a service.

SERVICE=mobifs@mnt-data.service
STORE=/srv/store MOUNT=/mnt/data

say() { printf 'check: %s\r\n' "$*"; }

# The end, with what systemd and the daemon said.
failed() {
  say "FAILED: $*"
  journalctl --no-pager >/tmp/out/journal.log 2>&1
  systemctl status --no-pager --full "$SERVICE" >/tmp/out/service.log 2>&1
  dmesg >/tmp/out/kernel.log
  upower --dump >/tmp/out/upower.txt 2>&1
  systemctl poweroff --force
  sleep 60
}

# until_true WHAT SECONDS COMMAND...: waits for the command to succeed.
until_true() {
  local what=$1 seconds=$2 end
  end=$((SECONDS + seconds))
  shift 2
  until "$@" >/dev/null 2>&1; do
    [ "$SECONDS" -lt "$end" ] || failed "$what: not after $seconds s"
    sleep 0.2
  done
}

# status FIELD: of the mount's status as JSON, with dots for what lies within.
status() {
  mobifs status --json "$MOUNT" | python3 -c '
import functools, json, sys
print(functools.reduce(lambda value, key: value[key], sys.argv[1].split("."), json.load(sys.stdin)))' "$1"
}

start_mount() {
  mkdir -p "$STORE" /etc/mobifs
  printf 'STORE=%s\nOPTIONS=rw\n' "$STORE" >/etc/mobifs/mnt-data.conf
  systemctl start "$SERVICE" || failed "the service does not start"
}
