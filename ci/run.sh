#!/usr/bin/env bash
# whole, unmodified programs under telpher run
#   ci/run.sh [TEST...]   all tests, or only these
. "$(dirname "$0")/lib.sh"
lint_while_building
# Not part of `cargo test`: these tests take minutes and need their own time limit. Cargo gets
# the whole workspace, though only one package has such tests: selecting a package would select other features and rebuild everything.
only=()
[ $# -eq 0 ] || only=(-- --exact "$@")
cargo test "${locked[@]}" --workspace --test programs "${only[@]}"
