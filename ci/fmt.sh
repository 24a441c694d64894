#!/usr/bin/env bash
# formatting
. "$(dirname "$0")/lib.sh"
if ! cargo fmt --version >/dev/null 2>&1; then
    skip fmt "rustfmt is not installed"
    exit 0
fi
cargo fmt --all --check
