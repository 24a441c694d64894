#!/usr/bin/env bash
# downloads parts of the guests that use a device of `telpher vfio`: a QEMU with vfio-user, and kernels with dmatest
#   ci/vm-parts.sh [KERNEL...]   of the kernels 6.1, 6.12 and 7; default: 6.1
. "$(dirname "$0")/lib.sh"
# Nothing is installed: packages are unpacked below the target folder, in guest/vm, and stay there.
mkdir -p "$target/guest/vm"
parts=$(cd "$target/guest/vm" && pwd)

# The suite whose QEMU has vfio-user-pci (10.1 or later), and the suite beneath it.
qemu_suites=(trixie trixie-backports)

fail() {
    echo "could not get $*: tests that need it will skip"
}

# unpack FOLDER PACKAGE...: the files of packages.
unpack() {
    local folder=$1 package
    shift
    for package in "$@"; do
        # The links of a merged /usr, if a package still has files in /lib.
        dpkg-deb --fsys-tarfile "$package" | tar -x --keep-directory-symlink -C "$folder" || return 1
    done
}

# later_apt COMMAND...: apt-get that knows only the later suites, of the server that this system uses, and no installed package.
later_apt() {
    apt-get -q -o Dir::State="$parts/apt/state" -o Dir::State::status="$parts/apt/status" -o Dir::Cache="$parts/apt/cache" \
        -o Dir::Etc::SourceList="$parts/apt/sources.list" -o Dir::Etc::SourceParts="$parts/apt/none" \
        -o Dir::Etc::Preferences=none -o Dir::Etc::PreferencesParts="$parts/apt/none" \
        -o APT::Sandbox::User= -o APT::Install-Recommends=false "$@"
}

# Prepares `later_apt`.
prepare_later_apt() {
    local server suite
    [ ! -e "$parts/apt/updated" ] || return 0
    # The server of this system's own release.
    server=$(apt-get indextargets --format '$(ORIGIN) $(LABEL) $(COMPONENT) $(RELEASE) $(CODENAME) $(REPO_URI)' 'Created-By: Packages' |
        awk '$1 == "Debian" && $2 == "Debian" && $3 == "main" && $4 !~ /-/ { print $6; exit }')
    [ -n "$server" ] || return 1
    mkdir -p "$parts"/apt/{none,state/lists/partial,cache/archives/partial}
    : >"$parts/apt/status"
    for suite in "${qemu_suites[@]}"; do
        echo "deb $server $suite main"
    done >"$parts/apt/sources.list"
    # With `Any`, a list that cannot be had is an error.
    later_apt -o APT::Update::Error-Mode=any update && touch "$parts/apt/updated"
}

# A QEMU with its libraries and firmware, which the tests start through its own dynamic loader.
get_qemu() {
    local root=$parts/qemu.part
    prepare_later_apt || return 1
    later_apt clean
    # If a package has gone from the server, the lists are too old: the next call fetches new ones.
    if ! later_apt install -y --download-only -t "${qemu_suites[-1]}" qemu-system-x86; then
        rm "$parts/apt/updated"
        return 1
    fi
    rm -rf "$root"
    mkdir -p "$root"/usr/{bin,lib,lib64,sbin}
    ln -s usr/bin usr/lib usr/lib64 usr/sbin "$root"
    unpack "$root" "$parts"/apt/cache/archives/*.deb || return 1
    later_apt clean
    # Documentation is not needed, and neither are other firmwares.
    rm -rf "$root"/usr/share/{doc,man,locale,OVMF,ovmf,AAVMF,icons}
    mv "$root" "$parts/qemu"
}

# get_kernel FOLDER IMAGE [HEADERS SOURCE]: a kernel, the modules idxd_bus and idxd, and dmatest, which Debian does not build: it
# is compiled from Debian's source for Debian's kernel.
get_kernel() {
    local folder=$1 image=$2 headers=${3:-} source=${4:-} work=$parts/$1.part version module
    [ -n "$image" ] || return 1
    rm -rf "$work"
    mkdir -p "$work"/{debs,root/usr/{lib,bin,sbin,lib64},kernel}
    ln -s usr/lib usr/bin usr/sbin usr/lib64 "$work/root"
    version=${image#linux-image-}
    if [ "$folder" = 7 ]; then
        get_later_image "$work/debs" "$image" || return 1
    else
        (cd "$work/debs" && apt-get -q download "$image") || return 1
    fi
    for package in "$work"/debs/*.deb; do
        dpkg-deb --fsys-tarfile "$package" |
            tar -x --keep-directory-symlink -C "$work/root" --wildcards '*/vmlinuz*' '*/idxd.ko*' '*/idxd_bus.ko*' 2>/dev/null || true
    done
    find "$work/root" -name '*.ko.xz' -exec xz -d {} +
    cp "$(find "$work/root" -name 'vmlinuz*' -type f | head -n 1)" "$work/kernel/vmlinuz" || return 1
    for module in idxd_bus idxd; do
        cp "$(find "$work/root" -name "$module.ko" | head -n 1)" "$work/kernel/$module.ko" || return 1
    done
    if [ -n "$headers" ]; then
        rm "$work"/debs/*
        build_dmatest "$work" "$version" "$headers" "$source" || return 1
    fi
    echo "$version" >"$work/kernel/version"
    rm -rf "${parts:?}/$folder"
    mv "$work/kernel" "$parts/$folder"
    rm -rf "$work"
}

# build_dmatest WORK VERSION HEADERS SOURCE: compiles dmatest in a folder of `get_kernel`.
build_dmatest() {
    local work=$1 version=$2 headers=$3 source=$4 needed root=$1/root
    mapfile -t needed < <(apt-cache depends "$headers" | sed -n 's/.*Depends: \(linux-\(headers-.*-common\|kbuild-.*\)\)$/\1/p')
    (cd "$work/debs" && apt-get -q download "$headers" "${needed[@]}" "$source") || return 1
    unpack "$root" "$work"/debs/linux-headers-*.deb "$work"/debs/linux-kbuild-*.deb || return 1
    mkdir "$work/dmatest"
    dpkg-deb --fsys-tarfile "$work"/debs/linux-source-*.deb | tar -xO --wildcards './usr/src/linux-source-*.tar.xz' |
        xz -dc | tar -x -C "$work/dmatest" --strip-components=3 --occurrence=1 --wildcards '*/drivers/dma/dmatest.c' || true
    [ -s "$work/dmatest/dmatest.c" ] || return 1
    echo 'obj-m := dmatest.o' >"$work/dmatest/Makefile"
    # The packages expect to lie in /usr.
    grep -rlI --include=Makefile --include=.kernelvariables '/usr/\(src\|lib\)/linux-' "$root/usr/src" | xargs -r sed -i "s#/usr/\(src\|lib\)/linux-#$root&#g"
    # Without type information for BPF: its tool, pahole, would be one more package.
    make -C "$root/usr/src/linux-headers-$version" M="$work/dmatest" CONFIG_DEBUG_INFO_BTF_MODULES= modules || return 1
    cp "$work/dmatest/dmatest.ko" "$work/kernel"
}

# get_later_image FOLDER PACKAGE: the packages of a kernel of a later suite: from 7.0 on, image and modules are separate.
get_later_image() {
    local package
    for package in $(apt_later_depends "$2"); do
        (cd "$1" && later_apt download "$package") || return 1
    done
}

# The image and what it depends on of the same kernel.
apt_later_depends() {
    echo "$1"
    later_cache depends "$1" | sed -n 's/.*Depends: \(linux-\(binary\|modules\|image\)-[^ ]*\)$/\1/p'
}

later_cache() {
    apt-cache -o Dir::State="$parts/apt/state" -o Dir::State::status="$parts/apt/status" -o Dir::Cache="$parts/apt/cache" \
        -o Dir::Etc::SourceList="$parts/apt/sources.list" -o Dir::Etc::SourceParts="$parts/apt/none" "$@"
}

# newest PATTERN: the newest package of that name.
newest() {
    apt-cache search --names-only "$1" 2>/dev/null | sed 's/ .*//' | grep -v -e cloud -e rt- | sort -V | tail -n 1
}

if ! command -v apt-get >/dev/null; then
    fail "packages of Debian, because this system has no apt-get"
    exit 0
fi
[ -d "$parts/qemu" ] || get_qemu || fail "a QEMU with vfio-user"
for kernel in "${@:-6.1}"; do
    [ ! -d "$parts/$kernel" ] || continue
    case "$kernel" in
        6.1) image=$(apt-cache depends linux-image-amd64 2>/dev/null | sed -n 's/.*Depends: \(linux-image-6\.1\.[^ ]*\)$/\1/p') || image= ;;
        6.12) image=$(newest '^linux-image-6\.12\.[^ ]*-amd64$') || image= ;;
        7) image=$(prepare_later_apt >&2 && later_cache search --names-only '^linux-image-7\.[^ ]*-amd64$' | sed 's/ .*//' |
            grep -v -e cloud -e rt- -e dbg -e unsigned | sort -V | tail -n 1) || image= ;;
        *) echo "unknown kernel $kernel; the kernels are 6.1, 6.12 and 7" >&2; exit 2 ;;
    esac
    if [ "$kernel" = 7 ]; then
        get_kernel 7 "$image" || fail "a kernel 7"
    else
        get_kernel "$kernel" "$image" "linux-headers-${image#linux-image-}" "linux-source-$kernel" || fail "a kernel $kernel with dmatest"
    fi
done
