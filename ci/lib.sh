# Sourced by ./test, ./soak and every check in this folder. Each check is a separate script: `ci/fmt.sh` runs alone.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# With CI=true cargo must use the committed Cargo.lock. Incremental builds are off, because no later build would use
# them. So is debug information, up to a fifth of the compiler's time: a failed test still names the file and line of
# its panic.
locked=()
if [ "${CI:-}" = true ]; then
    locked=(--locked)
    export CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_DEBUG=none CARGO_PROFILE_TEST_DEBUG=none
fi

# Property tests draw the same cases in every run, so that no check fails by chance. ./soak draws others.
export PROPTEST_RNG_SEED=${PROPTEST_RNG_SEED:-1}

target=${CARGO_TARGET_DIR:-target}

# skip CHECK REASON: prints that a check cannot run and logs it, so that ./test counts it (tests do the same through ci/skip.rs).
skip() {
    printf 'SKIPPED: check %s: %s\n' "$1" "$2" | tee -a "${TELPHER_SKIP_LOG:-/dev/null}" >&2
}

# Lets clippy compile the workspace in place of rustc, so that its warnings are errors of the build. Every check that builds
# with the tests' profile calls this: otherwise the crates would be built twice.
lint_while_building() {
    if cargo clippy --version >/dev/null 2>&1; then
        export RUSTC_WORKSPACE_WRAPPER=$PWD/ci/lint-rustc
    fi
}

# Prints the packages with loom tests (files tests/loom_*.rs), as `-p NAME` words.
loom_packages() {
    local test
    for test in */*/tests/loom_*.rs; do
        [ -e "$test" ] && sed -n '/^name/{s/^name = "\(.*\)"$/-p \1/p;q}' "${test%/tests/*}/Cargo.toml"
    done | sort -u
}

# test_programs CARGO-ARGUMENT...: builds test programs of the workspace, and prints for each the folder of its crate
# and its path, separated by a tab.
test_programs() {
    # Sorted, because cargo names them in the order in which it completes them.
    cargo test "${locked[@]}" --workspace --no-run --message-format json-render-diagnostics "$@" |
        sed -n '/"profile":{[^}]*"test":true}/s/.*"manifest_path":"\([^"]*\)\/Cargo.toml".*"executable":"\([^"]*\)".*/\1\t\2/p' |
        sort
}

# side_by_side ARGUMENT...: runs the programs that standard input lists as `test_programs` does, two at a time. Many
# tests wait for a process or for a time to pass, and cargo, which runs one program after the other, would leave a core
# idle. The output of a program follows when it has ended. Fails if a program fails.
side_by_side() {
    local logs status=0
    logs=$(mktemp -d)
    # A check that takes too long is terminated: then what the unfinished programs have printed shows which test hangs.
    trap 'cat "$logs"/*' TERM
    xargs --no-run-if-empty --max-procs 2 --delimiter '\n' --max-args 1 bash -c 'run_program "$@"' run_program "$logs" $# "$@" || status=1
    trap - TERM
    rm -r "$logs"
    return $status
}

# run_program LOGS COUNT ARGUMENT... LINE: runs one program that `test_programs` listed, with COUNT arguments.
run_program() {
    local logs=$1 count=$2 arguments folder program log status=0
    shift 2
    arguments=("${@:1:count}")
    IFS=$'\t' read -r folder program <<<"${!#}"
    log=$logs/${program##*/}
    echo "     Running $program (in ${folder#"$PWD"/})" >"$log"
    (cd "$folder" && "$program" "${arguments[@]}") >>"$log" 2>&1 </dev/null || status=$?
    [ "$status" -eq 0 ] || echo "error: $program ended with status $status" >>"$log"
    # One after the other, so that lines of two programs do not mix.
    flock "$logs" cat "$log"
    rm "$log"
    [ "$status" -eq 0 ]
}
export -f run_program
