#!/bin/sh
# Runs a program in a container with one queue of the virtual device: container.sh QUEUE PROGRAM...
# Within `telpher run --view namespace`, as root or in a user namespace:
#   telpher run --view namespace --hardware two-queues.json -- sh container.sh wq0.1 PROGRAM
# The container has its own processes, network, host name, and file system. Of /dev/dsa it has this queue alone.
# docs/containers.md explains the parts.
set -e
if [ "$1" != inside ]; then
    exec unshare --mount --pid --fork --ipc --uts --net --mount-proc sh "$0" inside "$@"
fi
queue=$2
shift 2
root=$(mktemp -d)
mount -t tmpfs container "$root"
mkdir -p "$root/usr" "$root/proc" "$root/sys" "$root/dev/dsa" "$root/dev/char" "$root/dev/shm" "$root/tmp"
for folder in bin lib lib64 sbin; do ln -s "usr/$folder" "$root"; done
# give PATH: a file or folder is at the same place in the container.
give() {
    if [ -d "$1" ]; then
        mkdir -p "$root$1"
    else
        mkdir -p "$root${1%/*}"
        : >"$root$1"
    fi
    mount --rbind "$1" "$root$1"
}
give /usr
give /dev/null
# As a device plugin does it: the queue's node and the link to it. Sysfs shows all devices, as everywhere.
give /sys
give "/dev/dsa/$queue"
for link in /dev/char/*; do
    [ "$(readlink "$link")" != "../dsa/$queue" ] || cp -d "$link" "$root/dev/char"
done
# The library that is loaded into programs, and the run that it talks to.
give "${LD_PRELOAD%%:*}"
give "/${TELPHER_RUN#*/}"
mount -t proc container "$root/proc"
exec chroot "$root" "$@"
