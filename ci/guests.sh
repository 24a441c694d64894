#!/usr/bin/env bash
# Linux guests in QEMU, with two kernels: the tier's tests on three NUMA nodes, peers of the NVMe/TCP target, users of vfio-user devices
#   ci/guests.sh [TEST...]   all tests, or only these
. "$(dirname "$0")/lib.sh"
lint_while_building
# Not part of `cargo test`, for the reasons in run.sh. One at a time: a guest has two emulated processors.
# The crate's unit tests on the guest's kernel belong to the long run, ./soak.
only=()
[ $# -eq 0 ] || only=(--exact "$@")
# The tests in `inside::` run within guests only.
cargo test "${locked[@]}" --workspace --test guests -- --test-threads=1 --skip inside:: "${only[@]}"
