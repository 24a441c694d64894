#!/usr/bin/env bash
# every interleaving of the protocols between threads
. "$(dirname "$0")/lib.sh"
# Words on purpose: `-p NAME` pairs.
read -ra packages <<<"$(loom_packages | tr '\n' ' ')"
# Models run for seconds; to optimise them takes a minute longer than that saves.
export CARGO_PROFILE_DEV_OPT_LEVEL=0 CARGO_PROFILE_TEST_OPT_LEVEL=0
# A directory of its own: another cfg would otherwise rebuild everything each time. Cargo is given what this is given: `--release` pays
# where the bounds are wide.
RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=$target/loom \
    cargo test "${locked[@]}" "$@" --no-fail-fast "${packages[@]}" --test 'loom_*'
