#!/usr/bin/env bash
# each legality check of the model flipped once: the conformance cases must notice
. "$(dirname "$0")/lib.sh"
cargo test "${locked[@]}" -p telpher-conformance --features mutation --test mutation -- --nocapture
