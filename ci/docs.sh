#!/usr/bin/env bash
# documentation; warnings are errors
. "$(dirname "$0")/lib.sh"
RUSTDOCFLAGS="-D warnings" cargo doc "${locked[@]}" --workspace --no-deps --all-features
