#!/usr/bin/env bash
# hostile input for a few seconds; the libFuzzer targets must compile
. "$(dirname "$0")/lib.sh"
TELPHER_SOAK_SECONDS=3 cargo test "${locked[@]}" --workspace --no-fail-fast --test 'fuzz_*'
if [ -e fuzz/Cargo.toml ]; then
    # Without the default feature, libFuzzer itself (C++) is not built.
    CARGO_TARGET_DIR=$target/fuzz cargo check --manifest-path fuzz/Cargo.toml --no-default-features --bins
fi
