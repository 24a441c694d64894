#!/usr/bin/env bash
# unit, integration, policy and documentation tests
#   ci/tests.sh [TEST...]   all, or those of these names
. "$(dirname "$0")/lib.sh"
# The policy tests read the licences of every dependency, also of those that this system does not build.
cargo fetch "${locked[@]}" || echo "could not fetch; going on with what is here"
only=()
[ $# -eq 0 ] || only=(-- --exact "$@")
cargo test "${locked[@]}" --workspace --no-fail-fast "${only[@]}"
