#!/usr/bin/env bash
# Runs tests with several threads under ThreadSanitizer: any two accesses of which one writes,
# that nothing orders, end the test. The standard library is built with it as well, so a nightly
# compiler with its sources is needed.
#
#   scripts/tsan.sh [CARGO-TEST-ARGUMENT...]     default: the volume, writers over a journal store,
#                                                and mounts (root)
set -euo pipefail
cd "$(dirname "$0")/.."

die() { printf 'tsan: %s\n' "$*" >&2; exit 1; }

TARGET=$(rustc -vV | sed -n 's/^host: //p')
cargo +nightly --version >/dev/null 2>&1 ||
  die "needs a nightly compiler: rustup toolchain install nightly --profile minimal"
[ -d "$(rustc +nightly --print sysroot)/lib/rustlib/src/rust/library" ] ||
  die "needs the sources of the standard library: rustup component add rust-src --toolchain nightly"

export RUSTFLAGS="-Zsanitizer=thread"
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}/tsan
# Line numbers are enough, and the programs are large.
export CARGO_PROFILE_TEST_DEBUG=1
export TSAN_OPTIONS=${TSAN_OPTIONS:-halt_on_error=1}

run() { cargo +nightly test -Zbuild-std --target "$TARGET" --locked "$@"; }

# One test after the other: memory is mapped by system calls that the sanitizer does not see, so
# what two tests have at the same address, one after the other, would count as shared by them.
# The skipped test measures the C library's heap, which is the sanitizer's here.
if [ "$#" != 0 ]; then
  run "$@"
else
  run -p mobifs-volume --lib -- --test-threads=1 \
    --skip heap::tests::free_pages_between_living_ones_are_given_back
  run -p mobifs-testkit --test it fault_limits -- --test-threads=1
  run -p mobifs-cli --test mounted -- --test-threads=1
fi
