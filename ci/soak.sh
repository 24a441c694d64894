#!/usr/bin/env bash
# the short form of the long runs
. "$(dirname "$0")/lib.sh"
lint_while_building
./soak --short
