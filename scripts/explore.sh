#!/usr/bin/env bash
# Random tests with a seed that was never tried: property tests, crash points, histories.
#
#   scripts/explore.sh [SECONDS [SEED]]     SECONDS for each stage of the crash search (60)
#
# Prints the seed first, and again where something fails; the same seed does the same again.
set -uo pipefail
cd "$(dirname "$0")/.."

seconds=${1:-60}
seed=${2:-$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')}
echo "seed $seed"
failed=()

# stage NAME COMMAND...
stage() {
  local name=$1
  shift
  printf '\n== %s (seed %s)\n' "$name" "$seed"
  "$@" || failed+=("$name")
}

export PROPTEST_RNG_SEED=$seed MOBIFS_SEED=$seed MOBIFS_HISTORY_SEED=$seed
stage "property tests" cargo test --quiet --locked --workspace --lib --bins
stage "engine and store" cargo test --quiet --locked -p mobifs-testkit --tests
stage "flash device" cargo test --quiet --locked -p mobifs-device-model --tests
stage "SQLite" cargo test --quiet --locked -p mobifs-sqlite --test stateful
for name in cuts faults lives limits kills; do
  stage "crash search: $name" cargo run --quiet --release --locked -p mobifs-testkit \
    --bin crash-campaign -- --stage "$name" --seconds "$seconds" --seed "$seed"
done

if [ "${#failed[@]}" -gt 0 ]; then
  printf '\nfailed with seed %s: %s\n' "$seed" "$(IFS=,; echo "${failed[*]}")" >&2
  exit 1
fi
printf '\nnothing found with seed %s\n' "$seed"
