# The first program of a guest. A line that begins with "test: " is for the test. The test puts settings in front of this
# file, and the parts to run behind it.
export PATH=/bin
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev
stty -echo -onlcr
# Functions can print for the test although their output is kept.
exec 3>&1
dsa=/sys/bus/dsa

say() { echo "test: $*" >&3; }
# Seconds since the boot.
now() { read -r seconds rest </proc/uptime; echo ${seconds%.*}; }
# What the kernel says about the device, and the stacks of tasks that wait, if a check takes too long.
diagnose() {
    sleep 120
    echo w >/proc/sysrq-trigger
    dmesg | tail -n 100 >&3
}
# check NAME COMMAND...: reports whether the command succeeded.
check() {
    local name=$1
    shift
    diagnose &
    watcher=$!
    "$@" >/tmp/said 2>&1
    result=$?
    kill $watcher
    if [ $result = 0 ]; then
        say "ok $name"
    else
        say "FAILED $name"
        cat /tmp/said
        dmesg | tail -n 30
    fi
}
# wait_for COMMAND...: until the command succeeds, for at most 300 seconds.
wait_for() {
    end=$(($(now) + 300))
    until "$@"; do
        [ $(now) -lt $end ] || return 1
        sleep 0.1
    done
}

load() { insmod /idxd_bus.ko && insmod /idxd.ko && [ -d $dsa/devices/dsa0 ]; }
unload() { rmmod idxd && rmmod idxd_bus && ! [ -d $dsa/devices/dsa0 ]; }
# The states of the device and its first queue.
is_enabled() {
    cat $dsa/devices/dsa0/state $dsa/devices/dsa0/wq0.0/state
    [ "$(cat $dsa/devices/dsa0/state) $(cat $dsa/devices/dsa0/wq0.0/state)" = "enabled enabled" ]
}
has_channel() { ls /sys/class/dma; [ -e /sys/class/dma/dma0chan0 ]; }
# A file for accel-config: one dedicated queue of SIZE entries for the kernel.
# configuration SIZE
configuration() {
    cat <<END
[{"dev":"dsa0","groups":[{"dev":"group0.0",
  "grouped_workqueues":[{"dev":"wq0.0","mode":"dedicated","size":$1,"group_id":0,"priority":10,"block_on_fault":0,
    "max_batch_size":32,"max_transfer_size":2097152,"type":"kernel","name":"dmanengine","driver_name":"dmaengine"}],
  "grouped_engines":[{"dev":"engine0.0","group_id":0}]}]}]
END
}
# configure SIZE: as an administrator does it.
configure() {
    configuration $1 >/tmp/wanted.conf
    accel-config load-config -c /tmp/wanted.conf -e && is_enabled && has_channel && [ "$(cat $dsa/devices/wq0.0/size)" = $1 ]
}
# disable: the opposite.
disable() { accel-config disable-wq dsa0/wq0.0 && accel-config disable-device dsa0; }
# A configuration that is saved, loaded and saved again is the same.
round_trip() {
    accel-config save-config -s /tmp/first.conf && disable && accel-config load-config -c /tmp/first.conf -e && is_enabled &&
        accel-config save-config -s /tmp/second.conf && cmp /tmp/first.conf /tmp/second.conf
}
# begin_copies BYTES ITERATIONS [THREADS [TIMEOUT]]: dmatest with buffers of that size and random places in them; it verifies
# them itself. The channel comes last, because it takes the parameters before it.
begin_copies() {
    insmod /dmatest.ko max_channels=1 threads_per_chan=${3:-1} iterations=$2 test_buf_size=$1 timeout=${4:-60000} polled=0 \
        channel=dma0chan0 run=1
}
end_copies() { [ "$(cat /sys/module/dmatest/parameters/wait)" = Y ] && rmmod dmatest; }
# copies BYTES ITERATIONS [THREADS]: all of them succeed.
copies() {
    dmesg -c >>/tmp/before
    begin_copies "$@" && end_copies || return 1
    dmesg | grep dmatest
    said=$(dmesg | grep -c "summary $2 tests, 0 failures")
    dmesg | sed -n 's/.*\(summary .*\)/\1/p' | while read -r line; do say "log $1 bytes: $line"; done
    [ "$said" = ${3:-1} ]
}
# counted_copies BYTES ITERATIONS: a perf counter of the device counts these copies of dmatest (operations, memory move).
counted_copies() {
    said=$(events 0x3 0x8 sh -c "insmod /dmatest.ko max_channels=1 threads_per_chan=1 iterations=$2 test_buf_size=$1 \
        timeout=60000 polled=0 channel=dma0chan0 run=1 && cat /sys/module/dmatest/parameters/wait && rmmod dmatest")
    echo "$said"
    [ "$said" = "Y
$2" ]
}
# The device's own reset, without a driver.
function_reset() {
    for function in /sys/bus/pci/devices/*; do
        case "$(cat $function/vendor) $(cat $function/device)" in
            "0x8086 0x0b25" | "0x8086 0x11fb" | "0x8086 0x1212") ;;
            *) continue ;;
        esac
        cat $function/reset_method
        [ "$(cat $function/reset_method)" = flr ] && echo 1 >$function/reset
        return
    done
    return 1
}
# The interrupts of completed descriptors, of all processors: one for each copy of dmatest.
completed() {
    sum=0
    while read -r vector counts; do
        case "$counts" in *idxd-portal*) ;; *) continue ;; esac
        for count in $counts; do
            # Behind the numbers are the names of the interrupt's controller and handler.
            case "$count" in *[!0-9]*) break ;; esac
            sum=$((sum + count))
        done
    done </proc/interrupts
    echo $sum
}
has_completed() { [ $(completed) -ge $1 ]; }
# Copies by four threads that do not end by themselves, of which the device has completed a hundred.
begin_load() {
    before=$(completed)
    begin_copies 4096 0 4 5000 && wait_for has_completed $((before + 100)) || return 1
    say "log under load: $(($(completed) - before)) copies"
    [ "$(cat /sys/module/dmatest/parameters/run)" = Y ]
}
# Takes the queue from its driver while copies run: they end, and the driver can be loaded again.
unbind_under_load() {
    begin_load || return 1
    echo wq0.0 >$dsa/drivers/dmaengine/unbind
    rmmod dmatest
    accel-config disable-device dsa0
    unload && load
}
# Resets the function below the driver while copies run: they fail, and the driver can be loaded again.
reset_under_load() {
    begin_load || return 1
    function_reset
    rmmod dmatest
    unload && function_reset && load
}
# What the kernel said about the device since the boot.
kernel_log() {
    { cat /tmp/before; dmesg; } 2>/dev/null | grep -e idxd -e dmatest | while read -r line; do say "dmesg $line"; done
}
