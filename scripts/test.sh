#!/usr/bin/env bash
# Runs every test and ends with one line: N passed, M failed, K skipped.
#
#   scripts/test.sh [STEP...]     steps: counting install cargo interleavings bindings sqlite notes
#                               pjdfstest fsx (default: all)
#
# The mounted tests and the suites need /dev/fuse and root (loop devices, several users);
# what cannot run here is counted as skipped, with the reason.
set -uo pipefail
cd "$(dirname "$0")/.."

STEPS=("$@")
[ "${#STEPS[@]}" -gt 0 ] || STEPS=(counting install cargo interleavings bindings sqlite notes pjdfstest fsx)
TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}
LOG_DIR=$TARGET_DIR/test-logs
mkdir -p "$LOG_DIR" target
rm -f "$LOG_DIR"/*.log "$LOG_DIR"/*.status
passed=0 failed=0 skipped=0

step() { printf '\n== %s\n' "$*"; }

# count LOG: adds what scripts/count-tests.awk finds in it.
count() {
  local counts
  counts=$(awk -f scripts/count-tests.awk "$1")
  read -r p f s <<<"$counts"
  passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
}

# conclude NAME STATUS SECONDS: counts a step; its failure does not stop the others.
conclude() {
  local name=$1 status=$2 before=$failed
  count "$LOG_DIR/$name.log"
  if [ "$status" != 0 ] && [ "$failed" = "$before" ]; then
    failed=$((failed + 1)) # it did not even get to its own closing line
  fi
  echo "-- $name: exit $status, $3 s"
}

# run NAME COMMAND...: a step whose output is seen as it comes.
run() {
  local name=$1 status started=$SECONDS
  shift
  step "$name"
  "$@" 2>&1 | tee "$LOG_DIR/$name.log"
  status=${PIPESTATUS[0]}
  conclude "$name" "$status" "$((SECONDS - started))"
}

# The command of a step.
command_of() {
  case $1 in
    counting) echo "python3 scripts/test_counting.py" ;;
    install) echo "python3 scripts/test_install.py" ;;
    # Tests that cannot run here say so on a line of their own (test/skip).
    cargo) echo "cargo test --workspace --locked --no-fail-fast -- --show-output" ;;
    # All packages are named, so that all but the volume has the features that it was built with.
    interleavings) echo "cargo test --locked --workspace --features mobifs-volume/interleavings --test interleavings" ;;
    bindings) echo "python3 scripts/test_bindings.py" ;;
    sqlite) echo "python3 scripts/sqlite_conformance.py --short" ;;
    notes) echo "python3 scripts/test_notes.py" ;;
    pjdfstest) echo "python3 scripts/suite_pjdfstest.py" ;;
    fsx) echo "python3 scripts/suite_fsx.py" ;;
    *) echo "unknown step: $1" >&2; return 2 ;;
  esac
}

# run_beside NAME...: steps that wait more than they compute, one after the other, beside those of cargo.
run_beside() {
  local name status started
  for name in "$@"; do
    started=$SECONDS status=0
    # shellcheck disable=SC2046 # words of a command
    $(command_of "$name") >"$LOG_DIR/$name.log" 2>&1 || status=$?
    echo "$status $((SECONDS - started))" >"$LOG_DIR/$name.status"
  done
}

# tell_failures: prints which tests failed and why, once more, at the end of the output.
tell_failures() {
  step "what failed"
  # Tests of cargo end with the word, the suites go on with the reason.
  grep -hE '\bFAILED\b|^error: ' "$LOG_DIR"/*.log | grep -v '^test result:' | head -60
  grep -hE -A4 '^thread .* panicked at ' "$LOG_DIR"/*.log |
    grep -vE '^(stack backtrace:|--| +[0-9]+: | +at )' | head -60
}

# detach_dead_mounts: takes away mounts of MobiFS whose server was killed, by an earlier run for example.
# A loop device over the file of one makes mkfs.btrfs fail on the whole machine, and its tests with it.
detach_dead_mounts() {
  local type target said
  while read -r type target; do
    case $type in fuse.mobifs* | fuseblk.mobifs*) target=$(printf %b "$target") ;; *) continue ;; esac
    said=$(LC_ALL=C stat -f -- "$target" 2>&1) && continue
    case $said in *"not connected"*) umount -l -- "$target" && echo "detached $target, whose server is gone" ;; esac
  done < <(findmnt -rn -o FSTYPE,TARGET)
}
detach_dead_mounts

for name in "${STEPS[@]}"; do
  command_of "$name" >/dev/null || exit 2
done
# The tests' own build has debug assertions and overflow checks, so the suites run on it, too.
step "build"
# Programs load the library of `mobifs run`: nothing links it, so no test builds it.
if ! { cargo test --workspace --locked --no-run && cargo build --locked -p mobifs-run-preload; }; then
  echo "0 passed, 1 failed, 0 skipped" | tee target/test-summary.txt
  exit 1
fi
export MOBIFS_BIN=$TARGET_DIR/debug/mobifs

# chosen NAME...: those of them that are wanted.
chosen() {
  local name step
  for name in "$@"; do
    for step in "${STEPS[@]}"; do
      [ "$step" != "$name" ] || echo "$name"
    done
  done
}

# in_front NAME...: steps whose output is seen as it comes, one after the other.
in_front() {
  local name
  for name in $(chosen "$@"); do
    # shellcheck disable=SC2046 # words of a command
    run "$name" $(command_of "$name")
  done
}

# What runs in the background of a script does not hear Ctrl-C.
trap 'trap - INT TERM; kill 0' INT TERM
# shellcheck disable=SC2046 # names of steps
run_beside $(chosen bindings sqlite pjdfstest fsx) &
in_front counting install cargo
# Its disks must not meet those of other steps; what computes runs beside it.
wait
# shellcheck disable=SC2046 # names of steps
run_beside $(chosen interleavings) &
in_front notes
wait
for name in $(chosen interleavings bindings sqlite pjdfstest fsx); do
  step "$name"
  cat "$LOG_DIR/$name.log"
  # A step that did not get to its end has none.
  read -r status seconds <"$LOG_DIR/$name.status" || status=1 seconds=0
  conclude "$name" "$status" "$seconds"
done

[ "$failed" = 0 ] || tell_failures
echo
echo "$passed passed, $failed failed, $skipped skipped" | tee target/test-summary.txt
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
