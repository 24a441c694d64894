#!/usr/bin/env bash
# the long runs, in their short form
. "$(dirname "$0")/lib.sh"
./soak --short
