#!/usr/bin/env bash
# each libFuzzer target for a while, with AddressSanitizer, if a nightly toolchain is installed
#   ci/libfuzzer.sh [SECONDS]   seconds for each target; 60 by default
. "$(dirname "$0")/lib.sh"
seconds=${1:-60}
if ! cargo +nightly --version >/dev/null 2>&1; then
    skip libfuzzer "no nightly toolchain is installed"
    exit 0
fi
host=$(rustc -vV | sed -n 's/^host: //p')
# The compiler flags of cargo-fuzz, so that cargo-fuzz itself is not needed: coverage for libFuzzer, and AddressSanitizer.
coverage=(-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters
    -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares)
RUSTFLAGS="${coverage[*]} -Zsanitizer=address -Cdebug-assertions --cfg fuzzing" CARGO_TARGET_DIR=$target/libfuzzer \
    cargo +nightly build --manifest-path fuzz/Cargo.toml --release --bins --target "$host"
for source in fuzz/fuzz_targets/*.rs; do
    name=$(basename "$source" .rs)
    corpus=$target/libfuzzer/corpus/$name
    finds=$target/libfuzzer/finds/$name
    mkdir -p "$corpus" "$finds"
    # The seeds are inputs for `hostile`.
    seeds=()
    [ "$name" != hostile ] || seeds=(fuzz/seeds)
    echo "libfuzzer: $name for $seconds s; failing inputs are kept in $finds"
    "$target/libfuzzer/$host/release/$name" -max_total_time="$seconds" -artifact_prefix="$finds/" -print_final_stats=1 \
        "$corpus" "${seeds[@]}"
done
