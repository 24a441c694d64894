#!/usr/bin/env bash
# documentation of what users see, and lints of the libraries with their plain features; warnings are errors
. "$(dirname "$0")/lib.sh"
lint_while_building
RUSTDOCFLAGS="-D warnings" cargo doc "${locked[@]}" --workspace --no-deps
