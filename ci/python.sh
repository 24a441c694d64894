#!/usr/bin/env bash
# the Python package: a wheel is built, installed and tested
. "$(dirname "$0")/lib.sh"
# The stable ABI that the wheel uses starts with this version.
if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    skip python "Python 3.11 or later is not installed"
    exit 0
fi
mkdir -p "$target/python"
here=$(cd "$target/python" && pwd)
if ! python3 -m venv "$here/venv" || ! "$here/venv/bin/pip" install --quiet --disable-pip-version-check maturin numpy mypy; then
    skip python "maturin, numpy and mypy could not be installed in a venv"
    exit 0
fi
export PATH=$here/venv/bin:$PATH VIRTUAL_ENV=$here/venv
rm -rf "$here/wheels"
# A debug build, like the other tests; published wheels are built with --release.
lint_while_building
maturin build "${locked[@]}" --quiet --manifest-path doors/python/Cargo.toml --out "$here/wheels"
pip install --quiet --disable-pip-version-check --force-reinstall --no-deps "$here"/wheels/telpher-*.whl
# Change the directory, so that Python imports the installed package.
tests=$PWD/doors/python
cd "$here"
python -m mypy.stubtest telpher --ignore-missing-stub
python -m mypy --strict "$tests/tests/typed.py"
python "$tests/tests/typed.py" >/dev/null
python "$tests/tests/run.py"
