#!/usr/bin/env bash
# lints under every cfg: all features, those of users, loom
. "$(dirname "$0")/lib.sh"
if ! cargo clippy --version >/dev/null 2>&1; then
    skip clippy "clippy is not installed"
    exit 0
fi
cargo clippy "${locked[@]}" --workspace --all-targets --all-features -- -D warnings
# Cargo leaves these out of "all targets", because `cargo test` does not run them (`test = false`).
cargo clippy "${locked[@]}" --workspace --all-features --test programs --test peers --test guests -- -D warnings
# What users build: the features that only tests need are off.
cargo clippy "${locked[@]}" --workspace -- -D warnings
# Split into words on purpose: `-p NAME` pairs.
read -ra packages <<<"$(loom_packages | tr '\n' ' ')"
if [ ${#packages[@]} -gt 0 ]; then
    RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=$target/loom \
        cargo clippy "${locked[@]}" "${packages[@]}" --lib --test 'loom_*' -- -D warnings
fi
