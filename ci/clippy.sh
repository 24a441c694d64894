#!/usr/bin/env bash
# lints with the plain features and with all; ci/loom.sh does so under its cfg
. "$(dirname "$0")/lib.sh"
if ! cargo clippy --version >/dev/null 2>&1; then
    skip clippy "clippy is not installed"
    exit 0
fi
# The plain features differ in libraries and programs only, so tests and examples are linted once.
cargo clippy "${locked[@]}" --workspace -- -D warnings
cargo clippy "${locked[@]}" --workspace --all-targets --all-features -- -D warnings
# Cargo leaves these out of "all targets", because `cargo test` does not run them (`test = false`).
cargo clippy "${locked[@]}" --workspace --all-features --test programs --test peers --test guests -- -D warnings
