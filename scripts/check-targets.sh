#!/bin/sh
# Compiles the product, as far as `cargo check` goes, for machines other than this one: 32-bit ARM,
# 64-bit ARM, musl, Android (there without the command).
# No cross compilers are needed: nothing is linked, so a program that does nothing stands in for
# them where crates build C. Standard libraries come from rustup.
set -eu
cd "$(dirname "$0")/.."

check() {
    target=$1
    shift
    rustup --quiet target add "$target"
    suffix=$(echo "$target" | tr - _)
    echo "--- $target: $*"
    env "CC_$suffix=true" "AR_$suffix=true" cargo check --locked --target "$target" "$@"
}

check armv7-unknown-linux-gnueabihf -p mobifs-cli -p mobifs-top -p mobifs-run-preload -p mobifs-sqlite
check aarch64-unknown-linux-gnu -p mobifs-cli -p mobifs-top -p mobifs-run-preload -p mobifs-sqlite
check x86_64-unknown-linux-musl -p mobifs-cli -p mobifs-top -p mobifs-sqlite
check aarch64-unknown-linux-musl -p mobifs-cli -p mobifs-top -p mobifs-sqlite
check armv7-unknown-linux-musleabihf -p mobifs-cli -p mobifs-top -p mobifs-sqlite
check aarch64-linux-android -p mobifs-fuse -p mobifs-sqlite
