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

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=../library.sh
. "$here/../library.sh"
name=dml prefix=/usr/local/lib/telpher/dml positional=yes
read_options "$@"
# The version of the interface, not of telpher: programs ask for DML 1.1 or 1.2.
version=1.2.0
major=${version%%.*}
include=$destdir$includedir/dml

# The installed headers, one a line.
headers() {
    (cd "$here/include/dml" && find . -name '*.h' -o -name '*.hpp')
}

if [ "$uninstall" ]; then
    remove_library
    rm -f "$lib/libdmlhl.a" "$lib"/cmake/DML/DMLConfig{,Version}.cmake
    headers | while read -r header; do rm -f "$include/$header"; done
    echo "libdml $version is gone from $destdir$prefix"
    exit 0
fi

build_archive libtelpher_dml
make_work
"${CXX:-c++}" -std=c++17 -O2 -fPIC -I "$here/include" -c "$here/hl/dmlhl.cpp" -o "$work/dmlhl.o"
ar rcs "$work/libdmlhl.a" "$work/dmlhl.o"
install_library "$here/dml.map"
mv -f "$work/libdmlhl.a" "$lib"
chmod 644 "$lib/libdmlhl.a"
headers | while read -r header; do install -D -m 644 "$here/include/dml/$header" "$include/$header"; done

# The folder of the headers, seen from cmake/DML, so that the whole prefix can be moved.
relative=$(realpath -m --relative-to "$libdir/cmake/DML" "$includedir")
mkdir -p "$lib/cmake/DML"
for file in DMLConfig DMLConfigVersion; do
    sed -e "s|@include@|$relative|g; s|@major@|$major|g; s|@version@|$version|g" "$here/cmake/$file.cmake.in" \
        >"$work/$file.cmake"
    mv -f "$work/$file.cmake" "$lib/cmake/DML/$file.cmake"
    chmod 644 "$lib/cmake/DML/$file.cmake"
done
install_pkg_config "Memory operations by DSA devices, by a model of them, or by the CPU, with the interface of Intel's Data Mover Library"
echo "libdml $version in $destdir$prefix; compile with: cc PROGRAM.c \$(pkg-config --cflags --libs dml), or CMAKE_PREFIX_PATH=$prefix"
