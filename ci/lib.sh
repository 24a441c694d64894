# Sourced by ./test, ./soak and every check in this folder. Each check is a separate script: `ci/fmt.sh` runs alone.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# With CI=true cargo must use the committed Cargo.lock. Incremental builds are off, because no later build would use them.
locked=()
if [ "${CI:-}" = true ]; then
    locked=(--locked)
    export CARGO_INCREMENTAL=0
fi

target=${CARGO_TARGET_DIR:-target}

# skip CHECK REASON: prints that a check cannot run and logs it, so that ./test counts it (tests do the same through ci/skip.rs).
skip() {
    printf 'SKIPPED: check %s: %s\n' "$1" "$2" | tee -a "${TELPHER_SKIP_LOG:-/dev/null}" >&2
}

# Prints the packages with loom tests (files tests/loom_*.rs), as `-p NAME` words.
loom_packages() {
    local test
    for test in */*/tests/loom_*.rs; do
        [ -e "$test" ] && sed -n '/^name/{s/^name = "\(.*\)"$/-p \1/p;q}' "${test%/tests/*}/Cargo.toml"
    done | sort -u
}
