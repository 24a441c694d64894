#!/usr/bin/env bash
# the tier's tests in QEMU's machines of three NUMA nodes, on two kernels
#   ci/guests.sh [TEST...]   all, or those of these names
. "$(dirname "$0")/lib.sh"
# Not among the tests of `cargo test`, as in run.sh, and for its reasons. One at a time: a guest has two processors, emulated.
if cargo clippy --version >/dev/null 2>&1; then
    cargo clippy "${locked[@]}" --workspace --test guests -- -D warnings
fi
# The crate's unit tests, on the guest's kernel, are of the long run: see ./soak.
only=()
[ $# -eq 0 ] || only=(--exact "$@")
# What is inside is for guests.
cargo test "${locked[@]}" --workspace --test guests -- --test-threads=1 --skip inside:: "${only[@]}"
