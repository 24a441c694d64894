#!/usr/bin/env bash
# lints, and the tests of the crates that differ from the last commit
. "$(dirname "$0")/lib.sh"
cargo clippy "${locked[@]}" --workspace --all-targets -- -D warnings
mapfile -t files < <({ git diff --name-only HEAD; git ls-files --others --exclude-standard; } | sort -u)
# After a commit: what it changed.
[ ${#files[@]} -gt 0 ] || mapfile -t files < <(git diff --name-only HEAD~1 HEAD)
packages=()
while read -r crate; do
    [ -f "$crate/Cargo.toml" ] && packages+=(-p "$(sed -n '/^name/{s/^name = "\(.*\)"$/\1/p;q}' "$crate/Cargo.toml")")
done < <(printf '%s\n' "${files[@]}" | cut -d/ -f1,2 | sort -u)
if [ ${#packages[@]} -eq 0 ]; then
    echo "no crate differs from the last commit"
    exit 0
fi
cargo test "${locked[@]}" "${packages[@]}"
