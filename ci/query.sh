#!/usr/bin/env bash
# the query engine answers as an independent one, DuckDB, does
. "$(dirname "$0")/lib.sh"
tests=uses/cache/tests/duckdb
mkdir -p "$target/query"
here=$(cd "$target/query" && pwd)
if ! python3 -m venv "$here/venv" ||
    ! "$here/venv/bin/pip" install --quiet --disable-pip-version-check --requirement "$tests/requirements.txt"; then
    skip query "what $tests/requirements.txt names could not be installed in a venv"
    exit 0
fi
# The binary as the tests have built it: with another choice of packages everything would be built anew.
cargo test "${locked[@]}" --workspace --test cli --no-run
TELPHER=$(cd "$target" && pwd)/debug/telpher "$here/venv/bin/python" -B "$tests/run.py"
