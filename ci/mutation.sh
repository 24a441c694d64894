#!/usr/bin/env bash
# inverts each legality check of the model once; the conformance cases must fail
. "$(dirname "$0")/lib.sh"
cargo test "${locked[@]}" -p telpher-conformance --features mutation --test mutation -- --nocapture
