#!/bin/sh
# Builds `mobifs` as one static program, for machines with any C library or none (initramfs,
# Alpine, OpenWrt, NAS): target/TARGET/release/mobifs.
#
#   scripts/build-static.sh [TARGET...]      default: x86_64 and aarch64, with musl
#
# No C compiler and no cross linker are needed: the program has no C in it, the C library comes
# with Rust's target, and so does the linker.
set -eu
cd "$(dirname "$0")/.."

[ $# -gt 0 ] || set -- x86_64-unknown-linux-musl aarch64-unknown-linux-musl
for target in "$@"; do
  rustup --quiet target add "$target"
  name=$(echo "$target" | tr 'a-z-' 'A-Z_')
  env "CARGO_TARGET_${name}_LINKER=rust-lld" \
    "CARGO_TARGET_${name}_RUSTFLAGS=-C linker-flavor=ld.lld -C link-self-contained=yes -C target-feature=+crt-static" \
    cargo build --locked --profile "${PROFILE:-release}" --target "$target" -p mobifs-cli -p mobifs-top --bin mobifs --bin mobifs-top
done
