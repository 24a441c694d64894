#!/usr/bin/env bash
# every interleaving of the protocols between threads
. "$(dirname "$0")/lib.sh"
# Words on purpose: `-p NAME` pairs.
read -ra packages <<<"$(loom_packages | tr '\n' ' ')"
# A directory of its own: another cfg would otherwise rebuild everything each time. Cargo is given what this is given: `--release` pays
# where the bounds are wide.
RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=$target/loom \
    cargo test "${locked[@]}" "$@" --no-fail-fast "${packages[@]}" --test 'loom_*'
