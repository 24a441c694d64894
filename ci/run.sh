#!/usr/bin/env bash
# whole programs, unmodified, under telpher run
#   ci/run.sh [TEST...]   all, or those of these names
. "$(dirname "$0")/lib.sh"
# Not among the tests of `cargo test`, nor so among the targets of `cargo clippy --all-targets`: they take minutes, and want a
# limit of their own. Of the whole workspace, though one package has them: with another choice of packages come other features, and
# everything would be built once more.
if cargo clippy --version >/dev/null 2>&1; then
    cargo clippy "${locked[@]}" --workspace --test programs -- -D warnings
fi
only=()
[ $# -eq 0 ] || only=(-- --exact "$@")
cargo test "${locked[@]}" --workspace --test programs "${only[@]}"
