#!/usr/bin/env bash
# whole programs, unmodified, under telpher run
. "$(dirname "$0")/lib.sh"
# Not among the tests of `cargo test`: they take minutes, and want a limit of their own.
cargo test "${locked[@]}" -p telpher-cli --test programs
