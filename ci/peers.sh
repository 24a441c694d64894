#!/usr/bin/env bash
# unmodified peers: DPDK's testpmd and Linux in QEMU for the vhost-user backend, MPI programs for libfabric's provider and for collective operations
#   ci/peers.sh [TEST...]   all tests, or only these
. "$(dirname "$0")/lib.sh"
lint_while_building
# Not part of `cargo test`, for the reasons in run.sh. One at a time: each test needs two cores, and a test that waited for them would be
# reported as slow.
# The tests of DPDK's own backend check the tests themselves; they and long programs belong to the long run.
only=()
[ $# -eq 0 ] || only=(--exact "$@")
cargo test "${locked[@]}" --workspace --no-fail-fast --test peers -- --test-threads=1 --skip dpdk:: --skip long:: "${only[@]}"
