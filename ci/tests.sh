#!/usr/bin/env bash
# unit, integration, policy and documentation tests, and lints of all that they build
#   ci/tests.sh [TEST...]   all tests, or only these
. "$(dirname "$0")/lib.sh"
cargo clippy --version >/dev/null 2>&1 || skip lints "clippy is not installed"
lint_while_building
# The policy tests read the licences of every dependency, including those that this system does not build.
cargo fetch "${locked[@]}" || echo "could not fetch dependencies; continuing with those already downloaded"
only=()
[ $# -eq 0 ] || only=(--exact "$@")
programs=$(test_programs)
status=0
side_by_side "${only[@]}" <<<"$programs" || status=1
cargo test "${locked[@]}" --workspace --doc --no-fail-fast -- "${only[@]}" || status=1
exit $status
