#!/usr/bin/env bash
# Runs every test and ends with one line: N passed, M failed, K skipped.
#
#   scripts/test.sh [STEP...]     steps: counting cargo interleavings bindings sqlite notes
#                               pjdfstest fsx (default: all)
#
# The mounted tests and the suites need /dev/fuse and root (loop devices, several users);
# what cannot run here is counted as skipped, with the reason.
set -uo pipefail
cd "$(dirname "$0")/.."

STEPS=("$@")
[ "${#STEPS[@]}" -gt 0 ] || STEPS=(counting cargo interleavings bindings sqlite notes pjdfstest fsx)
TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}
LOG_DIR=$TARGET_DIR/test-logs
mkdir -p "$LOG_DIR" target
rm -f "$LOG_DIR"/*.log
passed=0 failed=0 skipped=0

step() { printf '\n== %s\n' "$*"; }

# count LOG: adds what scripts/count-tests.awk finds in it.
count() {
  local counts
  counts=$(awk -f scripts/count-tests.awk "$1")
  read -r p f s <<<"$counts"
  passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
}

# run NAME COMMAND...: a step whose failure is counted and does not stop the others.
run() {
  local name=$1 log=$LOG_DIR/$1.log status before=$failed started=$SECONDS
  shift
  step "$name"
  "$@" 2>&1 | tee "$log"
  status=${PIPESTATUS[0]}
  count "$log"
  if [ "$status" != 0 ] && [ "$failed" = "$before" ]; then
    failed=$((failed + 1)) # it did not even get to its own closing line
  fi
  echo "-- $name: exit $status, $((SECONDS - started)) s"
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
    case $type in fuse.mobifs*) target=$(printf %b "$target") ;; *) continue ;; esac
    said=$(LC_ALL=C stat -f -- "$target" 2>&1) && continue
    case $said in *"not connected"*) umount -l -- "$target" && echo "detached $target, whose server is gone" ;; esac
  done < <(findmnt -rn -o FSTYPE,TARGET)
}
detach_dead_mounts

# The tests' own build has debug assertions and overflow checks, so the suites run on it, too.
step "build"
# Programs load the library of `mobifs run`: nothing links it, so no test builds it.
if ! { cargo test --workspace --locked --no-run && cargo build --locked -p mobifs-run-preload; }; then
  echo "0 passed, 1 failed, 0 skipped" | tee target/test-summary.txt
  exit 1
fi
export MOBIFS_BIN=$TARGET_DIR/debug/mobifs

for name in "${STEPS[@]}"; do
  case $name in
    counting) run counting python3 scripts/test_counting.py ;;
    # Tests that cannot run here say so on a line of their own (test/skip).
    cargo) run cargo cargo test --workspace --locked --no-fail-fast -- --show-output ;;
    interleavings)
      # All packages are named, so that all but the volume has the features that it was built with above.
      run interleavings cargo test --locked --workspace --features mobifs-volume/interleavings --test interleavings
      ;;
    bindings) run bindings python3 scripts/test_bindings.py ;;
    sqlite) run sqlite python3 scripts/sqlite_conformance.py --short ;;
    notes) run notes python3 scripts/test_notes.py ;;
    pjdfstest) run pjdfstest python3 scripts/suite_pjdfstest.py ;;
    fsx) run fsx python3 scripts/suite_fsx.py ;;
    *) echo "unknown step: $name" >&2; exit 2 ;;
  esac
done

[ "$failed" = 0 ] || tell_failures
echo
echo "$passed passed, $failed failed, $skipped skipped" | tee target/test-summary.txt
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
