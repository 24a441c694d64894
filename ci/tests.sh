#!/usr/bin/env bash
# unit, integration, policy and documentation tests
#   ci/tests.sh [TEST...]   all tests, or only these
. "$(dirname "$0")/lib.sh"
# The policy tests read the licences of every dependency, including those that this system does not build.
cargo fetch "${locked[@]}" || echo "could not fetch dependencies; continuing with those already downloaded"
only=()
[ $# -eq 0 ] || only=(-- --exact "$@")
cargo test "${locked[@]}" --workspace --no-fail-fast "${only[@]}"
