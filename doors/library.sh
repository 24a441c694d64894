# What doors/capi/install.sh and doors/dml/install.sh have in common: reading options, and building and installing a library for C.
# Sourced by them; it is no program. They set `here` (the crate's folder), `name` (of libNAME) and `prefix` (the default), and define usage().

# Reads the words of the command line into prefix, libdir, includedir, destdir, profile and uninstall. A word without an option is the
# prefix if positional=yes.
read_options() {
    libdir='' includedir='' destdir='' profile=release uninstall=''
    local taken=''
    while [ $# -gt 0 ]; do
        case $1 in
            --help | -h) usage; exit 0 ;;
            --uninstall) uninstall=yes; shift ;;
            --*=*) set -- "${1%%=*}" "${1#*=}" "${@:2}" ;;
            --prefix | --libdir | --includedir | --destdir | --profile)
                [ $# -ge 2 ] || { echo "install.sh: $1 needs a value" >&2; exit 2; }
                printf -v "${1#--}" %s "$2"
                shift 2
                ;;
            *)
                if [ "${positional:-}" != yes ] || [[ $1 = -* ]]; then
                    echo "install.sh: unknown option $1" >&2
                    usage >&2
                    exit 2
                fi
                [ -z "$taken" ] || { echo "install.sh: two prefixes, '$taken' and '$1'" >&2; exit 2; }
                prefix=$1 taken=$1
                shift
                ;;
        esac
    done
    libdir=${libdir:-$prefix/lib}
    includedir=${includedir:-$prefix/include}
    local folder
    for folder in "$prefix" "$libdir" "$includedir"; do
        case $folder in
            /*) ;;
            # The pkg-config file contains this path, and is read from any directory.
            *) echo "install.sh: '$folder' is no absolute path" >&2; exit 2 ;;
        esac
    done
    lib=$destdir$libdir
}

# Builds the archive of a package and sets `archive`.
build_archive() {
    local messages
    messages=$("${CARGO:-cargo}" build --locked --manifest-path "$here/Cargo.toml" --profile "$profile" --lib \
        --message-format json-render-diagnostics)
    # Cargo's last message about this package names the archive.
    archive=$(grep -o "\"[^\"]*/$1\\.a\"" <<<"$messages" | tail -n 1 | tr -d '"')
    [ -f "$archive" ] || { echo "install.sh: cargo built no $1.a" >&2; exit 1; }
}

# Makes a folder for files that are not finished, beside their place so that they can be renamed.
make_work() {
    mkdir -p "$lib/pkgconfig"
    work=$(mktemp -d "$lib/.$name.XXXXXX")
    trap 'rm -rf "$work"' EXIT
}

# Links and installs the shared library with the export map $1, and the archive. The linker includes the whole archive, then drops
# everything that no export needs. With nodelete, dlclose() does not unload the library: threads and the page fault handler run its code
# until the process ends.
install_library() {
    local ldflags
    read -ra ldflags <<<"${LDFLAGS:-}"
    "${CC:-cc}" -shared -o "$work/lib$name.so" -Wl,-soname,"lib$name.so.$major" -Wl,--version-script="$1" \
        -Wl,--whole-archive "$archive" -Wl,--no-whole-archive -Wl,--gc-sections -Wl,-z,defs,-z,relro,-z,now,-z,nodelete \
        "${ldflags[@]}" -lgcc_s -lutil -lrt -lpthread -lm -ldl -lc
    # Files are replaced by renaming: a program that has the old file open keeps it.
    mv -f "$work/lib$name.so" "$lib/lib$name.so.$version"
    ln -sf "lib$name.so.$version" "$lib/lib$name.so.$major"
    ln -sf "lib$name.so.$major" "$lib/lib$name.so"
    cp "$archive" "$work/lib$name.a"
    mv -f "$work/lib$name.a" "$lib/lib$name.a"
    chmod 644 "$lib/lib$name.a"
}

# Writes the pkg-config file with the description $1. Libs.private lists the libraries that the archive needs. It omits the unwinder:
# the compiler adds its own, which differs in static programs.
install_pkg_config() {
    cat >"$work/$name.pc" <<PC
prefix=$prefix
libdir=${libdir/#"$prefix"/\${prefix\}}
includedir=${includedir/#"$prefix"/\${prefix\}}

Name: $name
Description: $1
Version: $version
Cflags: -I\${includedir}
Libs: -L\${libdir} -l$name
Libs.private: -lutil -lrt -lpthread -lm -ldl -lc
PC
    mv -f "$work/$name.pc" "$lib/pkgconfig/$name.pc"
    chmod 644 "$lib/pkgconfig/$name.pc"
}

# Removes what install_library and install_pkg_config have installed.
remove_library() {
    rm -f "$lib/lib$name".{a,so,"so.$major","so.$version"} "$lib/pkgconfig/$name.pc"
}
