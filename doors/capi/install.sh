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

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=../library.sh
. "$here/../library.sh"
name=telpher prefix=/usr/local
read_options "$@"
version=$(sed -n 's/^#define TELPHER_VERSION_\(MAJOR\|MINOR\|PATCH\) //p' "$here/include/telpher.h" | paste -sd .)
major=${version%%.*}
include=$destdir$includedir

if [ "$uninstall" ]; then
    remove_library
    rm -f "$include"/telpher.{h,hpp}
    echo "libtelpher $version is gone from $destdir$prefix"
    exit 0
fi

build_archive libtelpher_capi
make_work
install_library "$here/telpher.map"
mkdir -p "$include"
install -m 644 "$here/include/telpher.h" "$here/include/telpher.hpp" "$include"
install_pkg_config "Moves and transforms memory by DSA devices, by a model of them, or by the CPU"
echo "libtelpher $version in $destdir$prefix; compile with: cc PROGRAM.c \$(pkg-config --cflags --libs telpher)"
