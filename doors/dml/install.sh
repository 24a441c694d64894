#!/usr/bin/env bash
# Builds and installs libdml for programs written for Intel's Data Mover Library: libraries, headers, CMake package, pkg-config file.
# Needs cargo, a C and a C++ compiler, and nothing from the network beyond what cargo fetches.
set -euo pipefail

usage() {
    cat <<'USAGE'
usage: install.sh [PREFIX] [--prefix DIR] [--libdir DIR] [--includedir DIR] [--destdir DIR] [--profile NAME] [--uninstall]

  PREFIX, --prefix DIR  where it will be used from        [/usr/local/lib/telpher/dml]
  --libdir DIR          for libraries, cmake/, pkgconfig/ [PREFIX/lib]
  --includedir DIR      for dml/                          [PREFIX/include]
  --destdir DIR         put in front of all these while installing, for packagers
  --profile NAME        cargo's profile                   [release]
  --uninstall           take away what the same words would install

The prefix is one of its own, so that an installed original is not replaced: a program chooses by CMAKE_PREFIX_PATH,
PKG_CONFIG_PATH or -L. CC is the compiler that links (cc), with LDFLAGS; CXX compiles libdmlhl.a (c++); CARGO builds. Installed are
  PREFIX/lib/libdml.so.1.2.0, libdml.so.1, libdml.so, libdml.a, libdmlhl.a
  PREFIX/lib/cmake/DML/DMLConfig.cmake, DMLConfigVersion.cmake, pkgconfig/dml.pc
  PREFIX/include/dml/dml.h, dmldefs.h, dml.hpp, hl/, detail/
USAGE
}

prefix=/usr/local/lib/telpher/dml libdir='' includedir='' destdir='' profile=release uninstall='' positional=''
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
        -*) echo "install.sh: unknown option $1" >&2; usage >&2; exit 2 ;;
        *)
            [ -z "$positional" ] || { echo "install.sh: two prefixes, '$positional' and '$1'" >&2; exit 2; }
            prefix=$1 positional=$1
            shift
            ;;
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
# The version of the interface, not of telpher: programs ask for DML 1.1 or 1.2.
version=1.2.0
major=${version%%.*}
lib=$destdir$libdir include=$destdir$includedir/dml

if [ "$uninstall" ]; then
    rm -f "$lib"/libdml.{a,so,"so.$major","so.$version"} "$lib/libdmlhl.a" "$lib/pkgconfig/dml.pc"
    rm -f "$lib"/cmake/DML/DMLConfig{,Version}.cmake
    (cd "$here/include/dml" && find . -name '*.h' -o -name '*.hpp') | while read -r header; do
        rm -f "$include/$header"
    done
    echo "libdml $version is gone from $destdir$prefix"
    exit 0
fi

# Cargo's last message about this package names the archive.
messages=$("${CARGO:-cargo}" build --locked --manifest-path "$here/Cargo.toml" --profile "$profile" --lib \
    --message-format json-render-diagnostics)
archive=$(grep -o '"[^"]*/libtelpher_dml\.a"' <<<"$messages" | tail -n 1 | tr -d '"')
[ -f "$archive" ] || { echo "install.sh: cargo built no libtelpher_dml.a" >&2; exit 1; }

mkdir -p "$lib/pkgconfig" "$lib/cmake/DML" "$include"
work=$(mktemp -d "$lib/.dml.XXXXXX")
trap 'rm -rf "$work"' EXIT

# The shared library is linked from the archive, so that the export map decides its contents: the linker includes the whole archive,
# then drops everything that no export needs. With nodelete, dlclose() does not unload the library: threads and the page fault handler
# run its code until the process ends.
"$cc" -shared -o "$work/libdml.so" -Wl,-soname,"libdml.so.$major" -Wl,--version-script="$here/dml.map" \
    -Wl,--whole-archive "$archive" -Wl,--no-whole-archive -Wl,--gc-sections -Wl,-z,defs,-z,relro,-z,now,-z,nodelete \
    "${ldflags[@]}" -lgcc_s -lutil -lrt -lpthread -lm -ldl -lc
"${CXX:-c++}" -std=c++17 -O2 -fPIC -I "$here/include" -c "$here/hl/dmlhl.cpp" -o "$work/dmlhl.o"
ar rcs "$work/libdmlhl.a" "$work/dmlhl.o"

# Replace files by renaming: a program that has the old file open keeps it.
mv -f "$work/libdml.so" "$lib/libdml.so.$version"
ln -sf "libdml.so.$version" "$lib/libdml.so.$major"
ln -sf "libdml.so.$major" "$lib/libdml.so"
cp "$archive" "$work/libdml.a"
mv -f "$work/libdml.a" "$work/libdmlhl.a" "$lib"
chmod 644 "$lib"/libdml{,hl}.a
(cd "$here/include/dml" && find . -name '*.h' -o -name '*.hpp') | while read -r header; do
    install -D -m 644 "$here/include/dml/$header" "$include/$header"
done

# The folder of the headers, seen from cmake/DML, so that the whole prefix can be moved.
relative=$(realpath -m --relative-to "$libdir/cmake/DML" "$includedir")
for file in DMLConfig DMLConfigVersion; do
    sed -e "s|@include@|$relative|g; s|@major@|$major|g; s|@version@|$version|g" "$here/cmake/$file.cmake.in" \
        >"$work/$file.cmake"
    mv -f "$work/$file.cmake" "$lib/cmake/DML/$file.cmake"
    chmod 644 "$lib/cmake/DML/$file.cmake"
done
# Libs.private lists the libraries that the archive needs. It omits the unwinder: the compiler adds its own, which differs in
# static programs.
cat >"$work/dml.pc" <<PC
prefix=$prefix
libdir=${libdir/#"$prefix"/\${prefix\}}
includedir=${includedir/#"$prefix"/\${prefix\}}

Name: dml
Description: Memory operations by DSA devices, by a model of them, or by the CPU, with the interface of Intel's Data Mover Library
Version: $version
Cflags: -I\${includedir}
Libs: -L\${libdir} -ldml
Libs.private: -lutil -lrt -lpthread -lm -ldl -lc
PC
mv -f "$work/dml.pc" "$lib/pkgconfig/dml.pc"
chmod 644 "$lib/pkgconfig/dml.pc"
echo "libdml $version in $destdir$prefix; compile with: cc PROGRAM.c \$(pkg-config --cflags --libs dml), or CMAKE_PREFIX_PATH=$prefix"
