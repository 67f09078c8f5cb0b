#!/usr/bin/env bash
# `make room` over f2fs, in a guest of QEMU: fills disks there.
#
#   scripts/room-f2fs.sh [SHAPE,SHAPE...] [SECONDS]
#
# Without what `scripts/setup.sh --f2fs` installs it says so and ends.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib/f2fs-guest.sh

SHAPES=${1:-}
prepare_guest f2fs-room mkfs.f2fs
tests=$(test_program mobifs-cli mounted)
run_in_guest "${2:-7200}" "export TMPDIR=/dev/shm MOBIFS_FILESYSTEMS=f2fs ${SHAPES:+MOBIFS_SHAPES=$SHAPES}
$tests --ignored --nocapture disks_full_of_every_shape"
