#!/usr/bin/env bash
# inverts each legality check of the model once; the conformance cases must fail
. "$(dirname "$0")/lib.sh"
lint_while_building
# The whole workspace is selected, though only one package has such a test: what does not depend on the model is then
# not rebuilt.
cargo test "${locked[@]}" --workspace --features telpher-conformance/mutation --test mutation -- --nocapture
