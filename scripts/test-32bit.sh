#!/bin/sh
# Unit tests of what computes with sizes and offsets, on 32-bit ARM, emulated by qemu-user.
#
#   scripts/test-32bit.sh [TEST...]      arguments go to the tests
#
# Needs qemu-arm-static and the cross linker (scripts/setup.sh --32bit); the standard library comes
# from rustup.
set -eu
cd "$(dirname "$0")/.."

target=armv7-unknown-linux-gnueabihf
rustup --quiet target add "$target"
export CARGO_TARGET_ARMV7_UNKNOWN_LINUX_GNUEABIHF_LINKER=arm-linux-gnueabihf-gcc
export CARGO_TARGET_ARMV7_UNKNOWN_LINUX_GNUEABIHF_RUNNER="qemu-arm-static -L /usr/arm-linux-gnueabihf"
exec cargo test --locked --target "$target" -p mobifs-base -p mobifs-engine -p mobifs-store --lib -- "$@"
