# Taken in by ./test, ./soak and every check beside this file. Each check is a script of its own: `ci/fmt.sh` runs alone.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# With CI=true the committed Cargo.lock is law, and nothing is built for a next time that does not come.
locked=()
if [ "${CI:-}" = true ]; then
    locked=(--locked)
    export CARGO_INCREMENTAL=0
fi

target=${CARGO_TARGET_DIR:-target}

# skip CHECK REASON: a check that cannot run says so, and ./test counts it (tests do the same through ci/skip.rs).
skip() {
    printf 'SKIPPED: check %s: %s\n' "$1" "$2" | tee -a "${TELPHER_SKIP_LOG:-/dev/null}" >&2
}

# Packages with loom tests, as `-p NAME` words: those with a tests/loom_*.rs.
loom_packages() {
    local test
    for test in */*/tests/loom_*.rs; do
        [ -e "$test" ] && sed -n '/^name/{s/^name = "\(.*\)"$/-p \1/p;q}' "${test%/tests/*}/Cargo.toml"
    done | sort -u
}
