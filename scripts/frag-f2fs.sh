#!/usr/bin/env bash
# `mobifs frag measure`, `advise` and `defrag` on f2fs, in a guest of QEMU: the tests of the defragmenter that want an
# f2fs.
#
#   scripts/frag-f2fs.sh [SECONDS]
#
# Without what `scripts/setup.sh --f2fs` installs it says so and ends.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib/f2fs-guest.sh

prepare_guest f2fs-frag mkfs.f2fs
tests=$(test_program mobifs-defragmenter it)
# A test that cannot run there is a failure.
run_in_guest "${1:-1800}" "MOBIFS_SCRATCH=/dev/shm $tests --ignored --nocapture --test-threads 1 f2fs::"
grep -q 'test result: ok. [1-9]' "$GUEST/console.log"
