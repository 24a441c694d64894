#!/usr/bin/env bash
# whole, unmodified programs under telpher run
#   ci/run.sh [TEST...]   all tests, or only these
. "$(dirname "$0")/lib.sh"
# Not part of `cargo test`, and so not of `cargo clippy --all-targets`: these tests take minutes and need their own time limit. Cargo gets
# the whole workspace, though only one package has such tests: selecting a package would select other features and rebuild everything.
if cargo clippy --version >/dev/null 2>&1; then
    cargo clippy "${locked[@]}" --workspace --test programs -- -D warnings
fi
only=()
[ $# -eq 0 ] || only=(-- --exact "$@")
cargo test "${locked[@]}" --workspace --test programs "${only[@]}"
