#!/usr/bin/env bash
# the guide: runs all of its commands, compares their outputs up to numbers, and builds its pages
#   ci/guide.sh [--pages]   --pages only builds the pages
# Not part of ./test, which runs the commands whose outputs the guide shows. The pages are written to target/guide, by mdbook. Without
# mdbook, `cargo install` builds it in target/mdbook, once.
. "$(dirname "$0")/lib.sh"

if [ "${1:-}" != --pages ]; then
    lint_while_building
    # The whole workspace, for the reason in run.sh.
    cargo test "${locked[@]}" --workspace --test guide -- --include-ignored --nocapture
fi

mkdir -p "$target"
here=$(cd "$target" && pwd)
mdbook=$(command -v mdbook || echo "$here/mdbook/bin/mdbook")
if ! [ -x "$mdbook" ] && ! cargo install --locked --quiet --no-default-features --root "$here/mdbook" mdbook; then
    skip guide "mdbook is not installed, and cargo install mdbook failed: no pages were built"
    exit 0
fi
rm -rf "$here/guide"
"$mdbook" build docs/guide --dest-dir "$here/guide"
# A page for each chapter, and the one that the summary begins with.
for chapter in docs/guide/src/*.md; do
    page=$here/guide/$(basename "${chapter%.md}").html
    [ "$(basename "$chapter")" = SUMMARY.md ] || grep -q '<main>' "$page"
done
[ -f "$here/guide/index.html" ]
echo "the guide: $here/guide/index.html"
