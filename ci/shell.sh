#!/usr/bin/env bash
# syntax of the shell scripts
. "$(dirname "$0")/lib.sh"
for script in test soak .ci/run ci/*.sh; do
    bash -n "$script"
done
