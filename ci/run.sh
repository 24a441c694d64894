#!/usr/bin/env bash
# whole programs, unmodified, under telpher run
. "$(dirname "$0")/lib.sh"
# Not among the tests of `cargo test`, nor so among the targets of `cargo clippy --all-targets`: they take minutes, and want a
# limit of their own.
if cargo clippy --version >/dev/null 2>&1; then
    cargo clippy "${locked[@]}" -p telpher-cli --test programs -- -D warnings
fi
cargo test "${locked[@]}" -p telpher-cli --test programs
