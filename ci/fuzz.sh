#!/usr/bin/env bash
# hostile input for a few seconds; the libFuzzer targets must compile
. "$(dirname "$0")/lib.sh"
lint_while_building
programs=$(test_programs --test 'fuzz_*')
TELPHER_SOAK_SECONDS=3 side_by_side <<<"$programs"
if [ -e fuzz/Cargo.toml ]; then
    # Without the default feature, libFuzzer itself (C++) is not built.
    CARGO_TARGET_DIR=$target/fuzz cargo check --manifest-path fuzz/Cargo.toml --no-default-features --bins
fi
