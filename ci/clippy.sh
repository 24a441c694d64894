#!/usr/bin/env bash
# lints under every cfg: plain, all features, loom
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
# Split into words on purpose: `-p NAME` pairs.
read -ra packages <<<"$(loom_packages | tr '\n' ' ')"
if [ ${#packages[@]} -gt 0 ]; then
    RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=$target/loom \
        cargo clippy "${locked[@]}" "${packages[@]}" --lib --test 'loom_*' -- -D warnings
fi
