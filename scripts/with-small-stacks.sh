#!/usr/bin/env bash
# Runs what cargo has built with threads of 256 KiB of stack unless they ask for more, and so all
# daemons that it starts: whatever recurses over what users can make deep fails in the tests.
# RUST_MIN_STACK cannot be in [env] of .cargo/config.toml, where it would be the compiler's, too.
export RUST_MIN_STACK=${RUST_MIN_STACK:-262144}
exec "$@"
