#!/usr/bin/env bash
# every interleaving of the protocols between threads, and lints under this cfg
. "$(dirname "$0")/lib.sh"
# Split into words on purpose: `-p NAME` pairs.
read -ra packages <<<"$(loom_packages | tr '\n' ' ')"
# The models run for seconds; optimising them would take a minute more than it saves.
export CARGO_PROFILE_DEV_OPT_LEVEL=0 CARGO_PROFILE_TEST_OPT_LEVEL=0
# Clippy compiles them in place of rustc, so that nothing is checked once more for lints. Its code is slower: not for
# long runs.
if [ $# -eq 0 ] && cargo clippy --version >/dev/null 2>&1; then
    export RUSTC_WORKSPACE_WRAPPER=$PWD/ci/lint-rustc
fi
# A separate target directory: the cfg would otherwise rebuild everything each time. Arguments are passed on to cargo: `--release` pays off
# with wide bounds.
RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=$target/loom \
    cargo test "${locked[@]}" "$@" --no-fail-fast "${packages[@]}" --test 'loom_*'
