#!/usr/bin/env bash
# Runs the fuzzers, one after the other, and ends with a table.
#
#   scripts/fuzz.sh SECONDS [TARGET...]     seconds for each target (default: all targets)
#
# Corpora grow in test/fuzz/corpus, inputs that fail lie in test/fuzz/artifacts; git ignores both.
set -uo pipefail
cd "$(dirname "$0")/.."

SECONDS_EACH=${1:?"usage: scripts/fuzz.sh SECONDS [TARGET...]"}
shift
TARGETS=("$@")
if [ "${#TARGETS[@]}" = 0 ]; then
  for program in test/fuzz/fuzz_targets/*.rs; do TARGETS+=("$(basename "$program" .rs)"); done
fi
TOOLS_DIR=${MOBIFS_TOOLS:-$PWD/.cache/tools}
LOG_DIR=${CARGO_TARGET_DIR:-$PWD/target}/fuzz-logs
export PATH="$TOOLS_DIR/bin:$PATH"
# One input may take so long, and a target so much memory.
INPUT_SECONDS_MAX=20
MEMORY_MIB_MAX=2048

die() { printf 'fuzz: %s\n' "$*" >&2; exit 1; }

for target in "${TARGETS[@]}"; do
  [ -f "test/fuzz/fuzz_targets/$target.rs" ] || die "there is no target $target; see test/fuzz/fuzz_targets"
done
scripts/setup.sh --fuzz || exit 1
mkdir -p "$LOG_DIR"

echo "fuzz: building ${#TARGETS[@]} of $(find test/fuzz/fuzz_targets -name '*.rs' | wc -l) targets"
cargo build --quiet --release --locked -p mobifs-fuzz-targets --bin fuzz-seeds || exit 1
for target in "${TARGETS[@]}"; do
  cargo +nightly fuzz build --fuzz-dir test/fuzz "$target" >"$LOG_DIR/build.log" 2>&1 ||
    { cat "$LOG_DIR/build.log" >&2; die "$target does not build"; }
done

# figure NAME LOG: a number of libFuzzer's closing statistics.
figure() { awk -v name="stat::$1:" '$1 == name { print $2 }' "$2"; }

# fuzz TARGET: fuzzes it and adds its line to the table; false if an oracle was hurt.
fuzz() {
  local target=$1 log=$LOG_DIR/$1.log result=ok coverage
  cargo run --quiet --release --locked -p mobifs-fuzz-targets --bin fuzz-seeds -- \
    "$target" "test/fuzz/corpus/$target" || die "the seeds of $target cannot be written"
  # Inputs mean a sequence of steps mostly: short ones reach little.
  # What a scoped thread keeps for itself may be freed after the scope: no leak.
  cargo +nightly fuzz run --fuzz-dir test/fuzz "$target" -- -max_total_time="$SECONDS_EACH" -len_control=0 \
    -timeout="$INPUT_SECONDS_MAX" -rss_limit_mb="$MEMORY_MIB_MAX" -detect_leaks=0 -print_final_stats=1 \
    >"$log" 2>&1 || result=FAILED
  coverage=$(grep -oE 'cov: [0-9]+' "$log" | tail -n 1 | cut -d ' ' -f 2)
  table+=$(printf '%-22s %6s s %10s executions %6s edges   %s' "$target" "$SECONDS_EACH" \
    "$(figure number_of_executed_units "$log")" "$coverage" "$result")$'\n'
  [ "$result" = ok ] && return
  grep -E -A 2 'panicked at|^SUMMARY' "$log" | sed 's/^/    /'
  echo "    all of it: $log; the input: test/fuzz/artifacts/$target/"
  return 1
}

table=
failed=()
number=0
for target in "${TARGETS[@]}"; do
  number=$((number + 1))
  echo "fuzz: $number of ${#TARGETS[@]}: $target, $SECONDS_EACH s"
  fuzz "$target" || failed+=("$target")
done
printf '\n%s\n' "$table"
if [ "${#failed[@]}" -gt 0 ]; then
  echo "failed: ${failed[*]}. Each input that failed belongs into test/fuzz/regressions/TARGET/, under a" \
    "name that says what was wrong, where every \`cargo test\` tries it again." >&2
  exit 1
fi
echo "fuzz: nothing found"
