#!/usr/bin/env bash
# Builds the packages of a release, and tries them in fresh systems: installs, uses, upgrades, uninstalls. Not part of ./test.
#
#   ci/packages.sh [--binary FILE] [--profile NAME] [--out DIR] [PART...]
#
# The parts, all by default: deb, rpm, wheel, musl, container. They are written to DIR (target/packages), with their checksums.
# --binary takes a telpher that exists instead of building one, and --profile is cargo's for everything that is built (dist): together
# they try the packaging without that build. As root, with dpkg-deb, debootstrap, rpmbuild, maturin; a part that lacks a tool is
# skipped and says so. The RPM is built and unpacked here; it was not installed on Fedora.
. "$(dirname "$0")/lib.sh"

binary='' profile=dist out=$target/packages parts=()
while [ $# -gt 0 ]; do
    case $1 in
        --binary) binary=$2; shift 2 ;;
        --profile) profile=$2; shift 2 ;;
        --out) out=$2; shift 2 ;;
        deb | rpm | wheel | musl | container) parts+=("$1"); shift ;;
        *) sed -n '2,/^$/s/^# \{0,1\}//p' "$0"; exit 2 ;;
    esac
done
[ ${#parts[@]} -gt 0 ] || parts=(deb rpm wheel musl container)
mkdir -p "$out"
out=$(cd "$out" && pwd)
rm -f "$out"/telpher* "$out"/SHA256SUMS
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"$/\1/p' Cargo.toml)
files=ci/packages
# A trial must not wait for the best compression.
compression=(-Zxz)
[ "$profile" = dist ] || compression=(-Zgzip -z1)
folder=$profile
[ "$profile" != dev ] || folder=debug

# lacks PART TOOL...: says that a part is skipped, if a tool is missing.
lacks() {
    local part=$1 tool
    shift
    for tool; do
        if ! command -v "$tool" >/dev/null; then
            skip "package $part" "no $tool"
            return 0
        fi
    done
    return 1
}

# ---- what is installed, as a tree

# The newest version of the C library whose symbols a program or library needs.
glibc_of() {
    local file
    for file; do
        objdump -T "$file" | grep -o 'GLIBC_2\.[0-9.]*'
        # Packed relocations name no symbol, but the dynamic linker of that version.
        [ "$(objdump -p "$file" | grep -c GLIBC_ABI_DT_RELR)" = 0 ] || echo GLIBC_2.36
    done | sort -Vu | tail -n 1 | cut -d_ -f2
}

make_stage() {
    stage=$work/stage
    if [ -z "$binary" ]; then
        # 116,000 relocations of 24 bytes become some 100 kB.
        cargo rustc --locked --profile "$profile" --package telpher-cli --bin telpher -- -C link-arg=-Wl,-z,pack-relative-relocs
        binary=$target/$folder/telpher
    fi
    install -D -m 755 "$binary" "$stage/usr/bin/telpher"
    strip --strip-unneeded "$stage/usr/bin/telpher"
    local telpher=$stage/usr/bin/telpher share=$stage/usr/share
    "$telpher" man --folder "$share/man/man1"
    gzip -9n "$share"/man/man1/*.1
    mkdir -p "$share/bash-completion/completions" "$share/zsh/vendor-completions" "$share/fish/vendor_completions.d"
    "$telpher" completions bash >"$share/bash-completion/completions/telpher"
    "$telpher" completions zsh >"$share/zsh/vendor-completions/_telpher"
    "$telpher" completions fish >"$share/fish/vendor_completions.d/telpher.fish"
    install -D -m 644 -t "$stage/usr/lib/systemd/system" "$files"/*.service
    install -d "$stage/etc/telpher"
    install -D -m 644 README.md "$share/doc/telpher/README.md"
    gzip -9nc CHANGELOG.md >"$share/doc/telpher/changelog.gz"
    { cat LICENSE-MIT; printf '\nor, at your option:\n\n'; cat LICENSE-APACHE; } >"$share/doc/telpher/copyright"
    doors/capi/install.sh --destdir "$stage" --prefix /usr --libdir /usr/lib/x86_64-linux-gnu --profile "$profile"
    # The static library is of use to few, and larger than all the rest.
    rm "$stage/usr/lib/x86_64-linux-gnu/libtelpher.a"
    strip --strip-unneeded "$stage"/usr/lib/x86_64-linux-gnu/libtelpher.so.*.*
    find "$stage" -type d -exec chmod 755 {} +
    glibc=$(glibc_of "$telpher" "$stage"/usr/lib/x86_64-linux-gnu/libtelpher.so)
    du -sk --apparent-size "$stage" | awk '{printf "installed: %.1f MiB\n", $1 / 1024}'
}

# filled FILE: prints a template with its words replaced.
filled() {
    sed -e "s|@version@|$package_version|g; s|@major@|${version%%.*}|g; s|@glibc@|$glibc|g; s|@stage@|$stage|g" \
        -e "s|@size@|$(du -sk --apparent-size "$stage" | cut -f1)|g; s|@list@|$work/list|g" "$1"
}

# ---- Debian

# make_deb VERSION
make_deb() {
    local package_version=$1 tree=$work/deb-$1
    cp -a "$stage" "$tree"
    mkdir "$tree/DEBIAN"
    filled "$files/control.in" >"$tree/DEBIAN/control"
    install -m 755 "$files/postinst" "$files/prerm" "$files/postrm" "$tree/DEBIAN"
    echo "activate-noawait ldconfig" >"$tree/DEBIAN/triggers"
    (cd "$tree" && find . -type f ! -path './DEBIAN/*' -printf '%P\0' | sort -z | xargs -0 md5sum) >"$tree/DEBIAN/md5sums"
    chmod 755 "$tree/DEBIAN"
    dpkg-deb --root-owner-group "${compression[@]}" --build "$tree" "$2" >/dev/null
    rm -rf "$tree"
}

# Makes a Debian system in target/packages-root.tar, once.
make_root() {
    mkdir -p "$target"
    root_tar=$(cd "$target" && pwd)/packages-root.tar
    [ ! -f "$root_tar" ] || return 0
    debootstrap --variant=minbase bookworm "$work/new-root" >"$work/debootstrap.log" 2>&1 ||
        { tail -n 20 "$work/debootstrap.log"; return 1; }
    tar cf "$root_tar" -C "$work/new-root" --exclude ./var/cache/apt --exclude './dev/*' .
    rm -rf "$work/new-root"
}

# fresh_root: unpacks that system into `root`.
fresh_root() {
    rm -rf "$work/root"
    mkdir "$work/root"
    root=$work/root
    tar xf "$root_tar" -C "$root"
}

# inside COMMAND...: runs a command in the fresh system, in namespaces of its own.
inside() {
    # shellcheck disable=SC2016
    unshare --mount --pid --fork --kill-child bash -euc '
        root=$1; shift
        mount --bind "$root" "$root"
        mount -t proc proc "$root/proc"
        mount -t tmpfs tmpfs "$root/dev"
        for node in null zero full random urandom; do touch "$root/dev/$node"; mount --bind "/dev/$node" "$root/dev/$node"; done
        mkdir "$root/dev/shm"
        mount -t tmpfs tmpfs "$root/dev/shm"
        # Not in place of this shell: the first process of a namespace gets the orphans of all others.
        chroot "$root" env -i PATH=/usr/bin:/usr/sbin:/bin:/sbin HOME=/root LANG=C.UTF-8 "$@"
    ' inside "$root" "$@"
}

# Installs, uses, upgrades and uninstalls a package in a fresh system.
try_deb() {
    local deb=$1 newer=$work/newer.deb begun took unit
    make_deb "$version+upgrade" "$newer"
    make_root
    fresh_root
    cp "$deb" "$root/tmp/telpher.deb"
    cp "$newer" "$root/tmp/newer.deb"
    (cd "$root" && find . -xdev ! -path './proc*' ! -path './dev*' ! -path './tmp*' | sort) >"$work/before"
    begun=$(date +%s%N)
    inside dpkg --install /tmp/telpher.deb >/dev/null
    inside telpher run --hardware spr-1 -- ls /dev/dsa | grep -q '^wq0.0$'
    took=$((($(date +%s%N) - begun) / 1000000))
    echo "from a fresh system to the first result: $took ms, two commands"
    [ $took -le 60000 ]
    [ "$(inside telpher --version | sed -n '1s/telpher //p')" = "$version" ]
    inside telpher sim run --op move --size 4k,1m >/dev/null
    inside telpher doctor --causes --format json >/dev/null
    inside telpher nvmf --memory 1m --print-config >"$root/etc/telpher/nvmf.json"
    inside telpher nvmf check /etc/telpher/nvmf.json >/dev/null
    inside ldconfig -p | grep -q "libtelpher.so.${version%%.*} "
    grep -q 'libdir=${prefix}/lib/x86_64-linux-gnu' "$root/usr/lib/x86_64-linux-gnu/pkgconfig/telpher.pc"
    [ "$(find "$root/usr/share/man/man1" -name 'telpher*.1.gz' | wc -l)" -gt 30 ]
    inside bash -c '. /usr/share/bash-completion/completions/telpher; complete -p telpher' >/dev/null
    if command -v systemd-analyze >/dev/null; then
        # With the program where it is now: the files are well-formed, and what they start exists.
        mkdir -p "$work/units"
        for unit in "$root"/usr/lib/systemd/system/telpher-*.service; do
            sed "s|/usr/bin/telpher|$stage/usr/bin/telpher|" "$unit" >"$work/units/${unit##*/}"
        done
        systemd-analyze verify --man=no "$work"/units/*.service
    fi
    inside dpkg --verify telpher
    inside dpkg --install /tmp/newer.deb >/dev/null
    [ "$(inside dpkg-query -W -f '${Version}' telpher)" = "$version+upgrade" ]
    inside telpher run -- true
    [ -f "$root/etc/telpher/nvmf.json" ]
    rm "$root/etc/telpher/nvmf.json"
    inside dpkg --purge telpher >/dev/null
    (cd "$root" && find . -xdev ! -path './proc*' ! -path './dev*' ! -path './tmp*' | sort) >"$work/after"
    # dpkg's own records, and the cache of the linker, may differ.
    if comm -13 "$work/before" "$work/after" | grep -vE '^\./var/(lib/dpkg|log|cache)|^\./run/' | grep .; then
        echo "these files are left after the package was removed"
        return 1
    fi
    echo "$deb: installed, used, upgraded and removed in a fresh Debian 12"
}

part_deb() {
    ! lacks deb dpkg-deb objdump || return 0
    local deb=$out/telpher_${version}_amd64.deb
    make_deb "$version" "$deb"
    if [ "$(id -u)" != 0 ]; then
        skip "package deb" "only root can make a fresh system; the package was built and not tried"
    elif ! lacks "deb in a fresh system" debootstrap unshare; then
        try_deb "$deb"
    fi
}

# ---- RPM

part_rpm() {
    ! lacks rpm rpmbuild rpm2cpio cpio || return 0
    local package_version=$version
    # The same files, in the places of Fedora.
    local tree=$work/rpm-stage
    cp -a "$stage" "$tree"
    mv "$tree/usr/lib/x86_64-linux-gnu" "$tree/usr/lib64"
    sed -i 's|lib/x86_64-linux-gnu|lib64|' "$tree/usr/lib64/pkgconfig/telpher.pc"
    mv "$tree/usr/share/zsh/vendor-completions" "$tree/usr/share/zsh/site-functions"
    (cd "$tree" && find . \( -type f -o -type l \) -printf '/%P\n') >"$work/list"
    echo "%dir /etc/telpher" >>"$work/list"
    local stage=$tree
    filled "$files/telpher.spec.in" >"$work/telpher.spec"
    rpmbuild -bb --quiet --define "_topdir $work/rpm" --define "_rpmdir $out" --define '_build_id_links none' \
        --define '_rpmfilename %%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm' --target x86_64-linux "$work/telpher.spec"
    mkdir "$work/unpacked"
    (cd "$work/unpacked" && rpm2cpio "$out"/telpher-*.rpm | cpio -idm --quiet)
    diff -r --no-dereference "$stage" "$work/unpacked"
    "$work/unpacked/usr/bin/telpher" run -- true
    echo "$(basename "$out"/telpher-*.rpm): built and unpacked; it was not installed on Fedora"
}

# ---- Python

part_wheel() {
    ! lacks wheel maturin python3 || return 0
    local options=(--profile "$profile")
    [ "$profile" = dev ] || options+=(--strip)
    maturin build "${locked[@]}" --quiet "${options[@]}" --manifest-path doors/python/Cargo.toml --out "$out"
    python3 -m venv "$work/venv"
    "$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-index "$out"/telpher-*.whl
    (cd "$work" && venv/bin/python -c '
import telpher
with telpher.Mover("model:spr", threshold=0) as mover:
    source, target = bytes(range(256)) * 256, bytearray(65536)
    mover.copy(source, target)
    assert source == target')
    "$work/venv/bin/pip" uninstall --quiet --yes telpher
    ! "$work/venv/bin/python" -c 'import telpher' 2>/dev/null
    echo "$(basename "$out"/telpher-*.whl): installed, used and removed in a fresh environment"
}

# ---- static

part_musl() {
    local triple=x86_64-unknown-linux-musl
    if ! [ -d "$(rustc --print sysroot)/lib/rustlib/$triple" ]; then
        skip "package musl" "no target $triple (rustup target add $triple)"
        return 0
    fi
    # The libraries that it preloads are still the host's: programs with glibc load them.
    if ! cargo build --locked --profile "$profile" --package telpher-cli --target $triple; then
        echo "the command does not build for $triple: no static package"
        return 0
    fi
    install -m 755 "$target/$triple/$folder/telpher" "$work/static"
    strip "$work/static"
    "$work/static" sim run --op move --size 4k >/dev/null
    tar cJf "$out/telpher-$version-x86_64-musl.tar.xz" -C "$work" --transform "s|static|telpher|" static
}

# ---- container

part_container() {
    ! lacks container dpkg-deb debootstrap || return 0
    local deb=$out/telpher_${version}_amd64.deb image
    [ "$(id -u)" = 0 ] || { skip "package container" "only root can make its root file system"; return 0; }
    make_root
    mkdir -p "$work/image"
    cp "$files/Containerfile" "$work/image"
    cp "$root_tar" "$work/image/root.tar"
    if [ -f "$deb" ]; then cp "$deb" "$work/image/telpher.deb"; else make_deb "$version" "$work/image/telpher.deb"; fi
    for image in podman docker; do
        if command -v $image >/dev/null && $image info >/dev/null 2>&1; then
            $image build --quiet --tag "telpher:$version" --file "$work/image/Containerfile" "$work/image"
            $image run --rm "telpher:$version" --version
            return 0
        fi
    done
    # Without a builder, what the Containerfile says is done by hand.
    fresh_root
    cp "$work/image/telpher.deb" "$root/tmp/telpher.deb"
    inside dpkg --install /tmp/telpher.deb >/dev/null
    inside /usr/bin/telpher --help >/dev/null
    skip "package container" "neither podman nor docker runs; the steps of the Containerfile were made by hand"
}

make_stage
for part in "${parts[@]}"; do
    "part_$part"
done
(cd "$out" && find . -maxdepth 1 -type f ! -name SHA256SUMS -printf '%P\0' | sort -z | xargs -0 --no-run-if-empty sha256sum >SHA256SUMS)
(cd "$out" && sha256sum --check --quiet SHA256SUMS && ls -l)
