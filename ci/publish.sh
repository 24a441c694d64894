#!/usr/bin/env bash
# Packages the crates in the order of their publication, and builds each package by itself. Publishes nothing unless told so. Not part of
# ./test: it builds every crate once more. All but --order and --sources take what is committed.
#
#   ci/publish.sh              packages all crates and builds each package, in target/package
#   ci/publish.sh --no-verify  packages all crates, and builds none
#   ci/publish.sh --order      prints the order
#   ci/publish.sh --sources    only writes hosts/launch/sources, the preloaded libraries that travel in the package of telpher-launch
#   ci/publish.sh --publish    publishes the packages
. "$(dirname "$0")/lib.sh"

# metadata EXPRESSION...: prints what a program in Python says about the workspace's packages: `own` by name, `needs(NAME, TESTS)`.
metadata() {
    cargo metadata --format-version 1 --no-deps --locked | python3 -c '
import json, os, sys
own = {one["name"]: one for one in json.load(sys.stdin)["packages"]}
def needs(name, tests):
    # A dependency without a version is left out of the package.
    found = (it for it in own[name]["dependencies"] if it["name"] in own and it["name"] != name and it["req"] != "*")
    return {it["name"] for it in found if tests or it["kind"] != "dev"}
'"$1"
}

# The crates that are published, each after those that it and its tests need.
order() {
    metadata '
left, done = {name for name, one in own.items() if one["publish"] is None}, []
while left:
    ready = sorted(name for name in left if not needs(name, True) & left)
    if not ready:
        sys.exit("these crates need each other: " + ", ".join(sorted(left)))
    done += ready
    left -= set(ready)
print("\n".join(done))'
}

# The folders of the crates that the preloaded libraries need.
preloaded_folders() {
    local crates
    crates=$(sed -n '/^\[dependencies\]/,$s/^\(telpher-[a-z-]*\) = .*/\1/p' hosts/libraries/*/Cargo.toml)
    [ -n "$crates" ]
    CRATES=$crates metadata '
root = os.getcwd()
waiting, found = os.environ["CRATES"].split(), set()
while waiting:
    name = waiting.pop()
    if name not in found:
        found.add(name)
        waiting += needs(name, False)
print("\n".join(sorted(os.path.relpath(os.path.dirname(own[name]["manifest_path"]), root) for name in found)))'
}

# Writes a workspace of the preloaded libraries alone: their tracked files without tests and benchmarks, and the lock file cut down to
# them. Manifests are called manifest.toml.
write_sources() {
    local work folder members=''
    work=$(mktemp -d)
    for folder in $(preloaded_folders); do
        members+="\"$folder\", "
        # Cargo wants the files of targets that a manifest names.
        if grep -q '^\[\[' "$folder/Cargo.toml"; then
            git ls-files "$folder"
        else
            git ls-files "$folder" | grep -vE "^$folder/(tests|benches|examples)/"
        fi | tar cf - -T - | tar xf - -C "$work"
        # Tests are left out, and with them what only they need.
        sed -i '/^\[dev-dependencies\]/,/^\[/{/^\[dev-dependencies\]/d;/^\[/!d}' "$work/$folder/Cargo.toml"
    done
    git ls-files hosts/libraries | tar cf - -T - | tar xf - -C "$work"
    {
        printf '[workspace]\nresolver = "3"\nmembers = [%s]\n\n' "$members\"hosts/libraries/*\""
        # The rest of the manifest, without the members.
        sed -n '/^\[workspace.package\]/,$p' Cargo.toml
    } >"$work/Cargo.toml"
    cp Cargo.lock "$work"
    cargo metadata --format-version 1 --manifest-path "$work/Cargo.toml" >/dev/null
    find "$work" -name Cargo.toml -execdir mv {} manifest.toml \;
    rm -rf hosts/launch/sources
    chmod 755 "$work"
    mv "$work" hosts/launch/sources
}

case ${1:-} in
    --order) order ;;
    --sources) write_sources ;;
    '' | --no-verify | --publish)
        # In a copy: the sources are no tracked file, and the manifest of telpher-launch is another one in a package. There, its build script
        # finds the preloaded libraries in `sources`, and not among its dependencies: a package has none of the workspace's profiles.
        mkdir -p "$target"
        CARGO_TARGET_DIR=$(cd "$target" && pwd)
        export CARGO_TARGET_DIR
        copy=$(mktemp -d)
        trap 'rm -rf "$copy"' EXIT
        git clone --quiet --shared . "$copy/telpher"
        cd "$copy/telpher"
        sed -i '/^\[build-dependencies\]/,${/^telpher-library-/d}' hosts/launch/Cargo.toml
        # The lock file must not list them either.
        cargo metadata --format-version 1 >/dev/null
        write_sources
        # The packages of one call may need each other, so that each is built as it will be found in the registry: by itself, from its
        # package and those of the others.
        words=()
        for name in $(order); do
            words+=(--package "$name")
        done
        if [ "${1:-}" = --publish ]; then
            cargo publish --locked --allow-dirty "${words[@]}"
        else
            cargo package --locked --allow-dirty ${1:+"$1"} "${words[@]}"
        fi
        ;;
    *)
        sed -n '2,/^$/s/^# \{0,1\}//p' "$0"
        exit 2
        ;;
esac
