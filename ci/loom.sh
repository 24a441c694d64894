#!/usr/bin/env bash
# every interleaving of the protocols between threads, and lints under this cfg
. "$(dirname "$0")/lib.sh"
# Split into words on purpose: `-p NAME` pairs.
read -ra packages <<<"$(loom_packages | tr '\n' ' ')"
# The models run for seconds; optimising them would take a minute more than it saves.
export CARGO_PROFILE_DEV_OPT_LEVEL=0 CARGO_PROFILE_TEST_OPT_LEVEL=0
# Without optimisation, what Clippy compiles is slower: not for long runs.
[ $# -gt 0 ] || lint_while_building
# A separate target directory: the cfg would otherwise rebuild everything each time. Arguments are passed on to cargo: `--release` pays off
# with wide bounds.
RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=$target/loom \
    cargo test "${locked[@]}" "$@" --no-fail-fast "${packages[@]}" --test 'loom_*'
