#!/usr/bin/env bash
# The engine has no clock, thread, file or random number of its own. The compiler enforces it:
# its whole dependency tree is built without the standard library. Where a target that has no
# standard library at all is installed, that one is used; otherwise the crates' `#![no_std]` is
# read from what rustc itself reports as linked.
set -euo pipefail
cd "$(dirname "$0")/.."

BARE_TARGET=$(rustup target list --installed 2>/dev/null | grep -E -- '-none|-unknown-none' | head -n 1 || true)
if [ -n "$BARE_TARGET" ]; then
  cargo check --quiet --locked -p mobifs-engine --target "$BARE_TARGET"
  echo "mobifs-engine builds for $BARE_TARGET"
  exit 0
fi

# Without such a target: ask rustc which crates the library of mobifs-engine was compiled against. It is
# compiled by itself, so that no other package adds features to what it uses, and into a directory of its own,
# which keeps what has not changed.
built=$(cargo check --quiet --locked -p mobifs-engine --message-format=json-render-diagnostics \
  --target-dir "${CARGO_TARGET_DIR:-target}/purity")
library=$(sed -nE 's/.*"name":"mobifs_engine".*"filenames":\["([^"]+)"\].*/\1/p' <<<"$built")
linked=$(RUSTC_BOOTSTRAP=1 rustc -Z ls=root "$library")
if ! grep -q '=External Dependencies=' <<<"$linked"; then
  echo "cannot read the dependencies of $library" >&2
  exit 1
fi
if grep -Eq '^[0-9]+ std(-[0-9a-f]+)? ' <<<"$linked"; then
  echo "mobifs-engine links the standard library:" >&2
  echo "$linked" >&2
  exit 1
fi
echo "mobifs-engine links core and alloc only"
