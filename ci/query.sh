#!/usr/bin/env bash
# the query engine's answers compared with DuckDB's
. "$(dirname "$0")/lib.sh"
tests=uses/query/tests/duckdb
mkdir -p "$target/query"
here=$(cd "$target/query" && pwd)
if ! python3 -m venv "$here/venv" ||
    ! "$here/venv/bin/pip" install --quiet --disable-pip-version-check --requirement "$tests/requirements.txt"; then
    skip query "the packages in $tests/requirements.txt could not be installed in a venv"
    exit 0
fi
# Use the binary that the tests built: selecting other packages would rebuild everything.
lint_while_building
cargo test "${locked[@]}" --workspace --test cli --no-run
TELPHER=$(cd "$target" && pwd)/debug/telpher "$here/venv/bin/python" -B "$tests/run.py"
