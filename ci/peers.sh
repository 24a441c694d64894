#!/usr/bin/env bash
# unmodified peers of the vhost-user backend: DPDK's testpmd, Linux in QEMU
#   ci/peers.sh [TEST...]   all, or those of these names
. "$(dirname "$0")/lib.sh"
# Not among the tests of `cargo test`, as in run.sh, and for its reasons. One at a time: they take the two cores in turn, and a test that
# waits for them would be reported as slow.
if cargo clippy --version >/dev/null 2>&1; then
    cargo clippy "${locked[@]}" --workspace --test peers -- -D warnings
fi
# DPDK's own backend is of the long run: it tests the tests.
only=()
[ $# -eq 0 ] || only=(--exact "$@")
cargo test "${locked[@]}" --workspace --no-fail-fast --test peers -- --test-threads=1 --skip dpdk:: "${only[@]}"
