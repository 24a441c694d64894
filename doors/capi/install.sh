#!/usr/bin/env bash
# Builds and installs libtelpher for C and C++: shared and static library, headers, pkg-config file.
# Needs cargo and a C compiler, and nothing from the network beyond what cargo fetches.
set -euo pipefail

usage() {
    cat <<'USAGE'
usage: install.sh [--prefix DIR] [--libdir DIR] [--includedir DIR] [--destdir DIR] [--profile NAME] [--uninstall]

  --prefix DIR      where it will be used from            [/usr/local]
  --libdir DIR      for libraries and pkgconfig/           [PREFIX/lib]
  --includedir DIR  for telpher.h and telpher.hpp          [PREFIX/include]
  --destdir DIR     put in front of all these while installing, for packagers
  --profile NAME    cargo's profile                        [release]
  --uninstall       take away what the same words would install

CC is the compiler that links (cc), with LDFLAGS; CARGO the cargo that builds. Installed are
  PREFIX/lib/libtelpher.so.X.Y.Z, libtelpher.so.X, libtelpher.so, libtelpher.a, pkgconfig/telpher.pc
  PREFIX/include/telpher.h, telpher.hpp
USAGE
}

prefix=/usr/local libdir='' includedir='' destdir='' profile=release uninstall=''
while [ $# -gt 0 ]; do
    case $1 in
        --help | -h) usage; exit 0 ;;
        --uninstall) uninstall=yes; shift ;;
        --*=*) set -- "${1%%=*}" "${1#*=}" "${@:2}" ;;
        --prefix | --libdir | --includedir | --destdir | --profile)
            [ $# -ge 2 ] || { echo "install.sh: $1 needs a value" >&2; exit 2; }
            declare "${1#--}=$2"
            shift 2
            ;;
        *) echo "install.sh: unknown option $1" >&2; usage >&2; exit 2 ;;
    esac
done
libdir=${libdir:-$prefix/lib}
includedir=${includedir:-$prefix/include}
for folder in "$prefix" "$libdir" "$includedir"; do
    case $folder in
        /*) ;;
        # The pkg-config file contains this path, and is read from any directory.
        *) echo "install.sh: '$folder' is no absolute path" >&2; exit 2 ;;
    esac
done
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cc=${CC:-cc}
read -ra ldflags <<<"${LDFLAGS:-}"
version=$(sed -n 's/^#define TELPHER_VERSION_\(MAJOR\|MINOR\|PATCH\) //p' "$here/include/telpher.h" | paste -sd .)
major=${version%%.*}
lib=$destdir$libdir include=$destdir$includedir

if [ "$uninstall" ]; then
    rm -f "$lib"/libtelpher.{a,so,"so.$major","so.$version"} "$lib/pkgconfig/telpher.pc" "$include"/telpher.{h,hpp}
    echo "libtelpher $version is gone from $destdir$prefix"
    exit 0
fi

# Cargo's last message about this package names the archive.
messages=$("${CARGO:-cargo}" build --locked --manifest-path "$here/Cargo.toml" --profile "$profile" --lib \
    --message-format json-render-diagnostics)
archive=$(grep -o '"[^"]*/libtelpher_capi\.a"' <<<"$messages" | tail -n 1 | tr -d '"')
[ -f "$archive" ] || { echo "install.sh: cargo built no libtelpher_capi.a" >&2; exit 1; }

mkdir -p "$lib/pkgconfig" "$include"
work=$(mktemp -d "$lib/.telpher.XXXXXX")
trap 'rm -rf "$work"' EXIT

# The shared library is linked from the archive, so that the export map decides its contents: the linker includes the whole
# archive, then drops everything that no export needs. With nodelete, dlclose() does not unload the library: device threads and
# the page fault handler run its code until the process ends.
"$cc" -shared -o "$work/libtelpher.so" -Wl,-soname,"libtelpher.so.$major" -Wl,--version-script="$here/telpher.map" \
    -Wl,--whole-archive "$archive" -Wl,--no-whole-archive -Wl,--gc-sections -Wl,-z,defs,-z,relro,-z,now,-z,nodelete \
    "${ldflags[@]}" -lgcc_s -lutil -lrt -lpthread -lm -ldl -lc

# Replace the file by renaming: a program that has the old file open keeps it.
mv -f "$work/libtelpher.so" "$lib/libtelpher.so.$version"
ln -sf "libtelpher.so.$version" "$lib/libtelpher.so.$major"
ln -sf "libtelpher.so.$major" "$lib/libtelpher.so"
cp "$archive" "$work/libtelpher.a"
mv -f "$work/libtelpher.a" "$lib/libtelpher.a"
chmod 644 "$lib/libtelpher.a"
install -m 644 "$here/include/telpher.h" "$here/include/telpher.hpp" "$include"
# Libs.private lists the libraries that the archive needs. It omits the unwinder: the compiler adds its own, which differs in
# static programs.
cat >"$work/telpher.pc" <<PC
prefix=$prefix
libdir=${libdir/#"$prefix"/\${prefix\}}
includedir=${includedir/#"$prefix"/\${prefix\}}

Name: telpher
Description: Moves and transforms memory by DSA devices, by a model of them, or by the CPU
Version: $version
Cflags: -I\${includedir}
Libs: -L\${libdir} -ltelpher
Libs.private: -lutil -lrt -lpthread -lm -ldl -lc
PC
mv -f "$work/telpher.pc" "$lib/pkgconfig/telpher.pc"
chmod 644 "$lib/pkgconfig/telpher.pc"
echo "libtelpher $version in $destdir$prefix; compile with: cc PROGRAM.c \$(pkg-config --cflags --libs telpher)"
