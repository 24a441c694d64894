#!/usr/bin/env bash
# packages and toolchain components that the checks need
. "$(dirname "$0")/lib.sh"

# Each with its purpose:
packages=(
    gcc                 # links every Rust program, and compiles the probe of the kernel's header
    libc6-dev           # what gcc needs to link
    linux-libc-dev      # linux/idxd.h, against which telpher-abi is checked
    libisal2            # ISA-L, the competitor of the CRC in `telpher bench ops`
    accel-config        # configures the virtual device of `telpher run` in its tests
    accel-config-test   # dsa_test and the script with its 476 runs
    libaccel-config-dev # the library's unversioned name, under which some programs load it
    dpdk-dev            # dpdk-test, whose dmadev_autotest runs on the virtual device
    linux-perf          # perf stat counts events of the virtual device
    pciutils            # lspci and setpci look at the virtual device's PCI function
    python3             # writes attributes as DPDK's configuration script does
    python3-venv        # an environment for the Python package's tests
    g++                 # the C++ examples and tests of libtelpher
    pkg-config          # finds the staged libtelpher, as its users do
    groff-base          # renders the manual pages
    cmake               # builds a project that finds the staged libdml
    valgrind            # watches the C and C++ examples
    util-linux          # unshare, which shows whether this machine has mount namespaces; taskset and setpriv for programs in tests
    dpdk                # dpdk-testpmd, the guest's driver and the competitor of `telpher vhost` in its tests
    qemu-system-x86     # virtual machines: one whose network card is `telpher vhost`, one with three NUMA nodes
    busybox-static      # the guests' shell
    e2fsprogs           # makes and checks the file systems of guests, as do the next two with their disks
    nvme-cli            # discovers NVMe/TCP targets
    fio                 # writes and verifies
    xz-utils            # unpacks modules of the guests' kernels
    make                # builds dmatest for such a kernel
    redis-server        # runs under `telpher tier run` in a test
    memcached           # runs under `telpher offload` in a test, as do the next four
    sqlite3             # checks its own database
    zstd                # compresses
    nginx-light         # compresses its answers
    rsync               # copies a folder
    prometheus          # scrapes `telpher exporter`, and checks its samples and rules; a test starts its own, with its own port and storage
    python3-grpcio      # a server of gRPC, which stands for the kubelet in a test of `telpher exporter`
    libjemalloc2        # preloaded beside the library of `telpher offload` in a test, as are the next two
    libtcmalloc-minimal4 # another allocator
    libmimalloc2.0      # a third one
    redis-tools         # its benchmark and its client
    libmemcached-tools  # memcslap, a load generator for memcached
    libfabric-bin       # fi_info and fi_pingpong, with telpher's provider
    libfabric-dev       # its headers, against which the provider is checked
    openmpi-bin         # runs MPI programs over the provider
    python3-mpi4py      # MPI programs of tests
    netpipe-openmpi     # another MPI program: compares the bytes of messages of all lengths
    python3-numpy       # ranks train a small network with it
    scalapack-mpi-test  # ScaLAPACK's own tests, which check their results
    hpcc                # as does this benchmark
    mrbayes-mpi         # its likelihoods are the same over every transport
    libpython3-testsuite # Python's own tests, also run under `telpher tier run`
)
# For a client that makes its own system calls; any version of Go works.
command -v go >/dev/null || packages+=(golang-go)

missing=()
for package in "${packages[@]}"; do
    if ! dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed'; then
        missing+=("$package")
    fi
done
if [ ${#missing[@]} -gt 0 ]; then
    if ! command -v apt-get >/dev/null; then
        echo "not a Debian or Ubuntu system: tests that need ${missing[*]} will skip"
    else
        as_root=()
        if [ "$(id -u)" != 0 ]; then
            as_root=(sudo)
            [ -t 0 ] || as_root=(sudo -n)
        fi
        apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q)
        "${apt[@]}" update || echo "could not update the package lists; continuing with the present ones"
        apt+=(install -y --no-install-recommends)
        # Installing all at once is faster. If that fails, install them one by one, so that an unavailable package blocks no other.
        "${apt[@]}" "${missing[@]}" || for package in "${missing[@]}"; do
            "${apt[@]}" "$package" || echo "could not install $package: tests that need it will skip"
        done
    fi
fi

# The guests' kernels are downloaded, not installed: this machine keeps its own kernel. They are Debian's current one, and the newest 6.12,
# which has UFFDIO_MOVE.
guest=$target/guest
present=$(apt-cache depends linux-image-cloud-amd64 2>/dev/null | sed -n 's/.*Depends: \(linux-image-[0-9].*\)/\1/p') || present=
newest=$(apt-cache search --names-only '^linux-image-6\.12\.[^ ]*-cloud-amd64$' 2>/dev/null | sed 's/ .*//' | sort -V | tail -n 1) || newest=
# download FOLDER PACKAGE
download() {
    compgen -G "$1/linux-image-*.deb" >/dev/null && return
    mkdir -p "$1"
    (cd "$1" && [ -n "$2" ] && apt-get -q download "$2") || echo "could not download a kernel for guests: tests that boot it will skip"
}
download "$guest" "$present"
download "$guest/newest" "$newest"
# Those of `telpher vfio` have another QEMU, and a kernel with the driver.
ci/vm-parts.sh

for component in rustfmt clippy; do
    if ! cargo "${component/rustfmt/fmt}" --version >/dev/null 2>&1 && command -v rustup >/dev/null; then
        rustup component add "$component" || echo "could not add $component: its check will skip"
    fi
done
