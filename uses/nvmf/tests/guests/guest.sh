# The first program of the guest. A line that begins with "test: " is for the test: a result, or a request.
# The test puts the ports and names that it serves in front of this file, and the parts to run behind it.
# The shell prefers busybox's own commands, whatever PATH says: blkdiscard needs its whole path.
export PATH=/bin:/tools/bin LD_LIBRARY_PATH=/tools/lib
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev
stty -echo
# Functions can print for the test although their output is kept.
exec 3>&1
for module in $MODULES; do insmod /$module.ko; done
for device in lo eth0; do ip link set $device up; done
ip addr add 10.0.2.15/24 dev eth0
ip route add default via 10.0.2.2
ln -s tools/lib /lib64
mount -t ext4 -o ro /dev/vda /tools
mkdir /tmp/files /etc
dd if=/dev/urandom of=/tmp/data bs=64k count=32 2>/dev/null
nvme=/sys/class/nvme
asked=0
HOST_ID=11111111-2222-3333-4444-555555555555
HOST_NQN=nqn.2014-08.org.nvmexpress:uuid:$HOST_ID

say() { echo "test: $*" >&3; }
# Asks the test to do something, and waits until that has been done.
# The test repeats an answer that the serial line may have lost.
ask() {
    asked=$((asked + 1))
    say "ask $*"
    until [ "$answer" = $asked ]; do read -r answer; done
}
# What the kernel says, with the stacks of tasks that wait for I/O.
diagnose() {
    sleep 90
    echo w >/proc/sysrq-trigger
    dmesg | tail -n 100 >&3
}
# check NAME COMMAND...: reports whether the command succeeded. A command that hangs is diagnosed.
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
        dmesg | tail -n 20
    fi
}
# Seconds since the boot.
now() { read -r seconds rest </proc/uptime; echo ${seconds%.*}; }
# wait_for COMMAND...: until the command succeeds, for at most a minute.
wait_for() {
    end=$(($(now) + 60))
    until "$@"; do
        [ $(now) -lt $end ] || return 1
        sleep 0.1
    done
}
# A namespace of the only subsystem.
find_disk() { disk=$(ls /dev/nvme*n${1:-1} 2>/dev/null | head -n 1); [ -b "$disk" ]; }
no_disk() { ! find_disk "$@"; }
# attach NQN PORT OPTIONS: connects a controller.
attach() {
    echo "transport=tcp,traddr=10.0.2.2,trsvcid=$2,nqn=$1,hostnqn=$HOST_NQN,hostid=$HOST_ID,\
nr_io_queues=2,reconnect_delay=1,ctrl_loss_tmo=600$3" > /dev/nvme-fabrics
}
connect() { attach "$@" && wait_for find_disk; }
disconnect() {
    for controller in $nvme/nvme*; do echo 1 > $controller/delete_controller; done
    wait_for no_disk
}
# The test's data: 2 MiB in large commands, and 256 KiB in commands that fit into a capsule.
write_large() { dd if=/tmp/data of=$disk bs=1M oflag=direct conv=notrunc; }
read_large() { dd if=$disk bs=1M count=2 iflag=direct 2>/dev/null | cmp - /tmp/data; }
write_small() { dd if=/tmp/data of=$disk bs=4k count=64 seek=2000 oflag=direct conv=notrunc; }
read_small() { dd if=$disk bs=4k count=64 skip=2000 iflag=direct 2>/dev/null | cmp -n 262144 - /tmp/data; }
data() { write_large && read_large && write_small && read_small; }
is_zero() { dd if=$disk bs=1M count=2 iflag=direct 2>/dev/null | cmp -n 2097152 - /dev/zero; }
is_state() { read -r state <$1/state && [ "$state" = "$2" ]; }
is_size() { read -r size </sys/block/${disk#/dev/}/size && [ "$size" = $1 ]; }
complaints() { dmesg | grep -i nvme | grep -i -c "$1"; }
no_io_errors() { ! dmesg | grep 'I/O error'; }
no_complaints() { [ "$(complaints 'error\|reconnect\|timeout\|reset')" = 0 ]; }

# Parts: the test calls some of them, with the port to connect to and options.

discovers() {
    nvme discover -t tcp -a 10.0.2.2 -s $PORT -q $HOST_NQN -I $HOST_ID >/tmp/log || return 1
    cat /tmp/log
    grep -q "subnqn: *$NQN" /tmp/log && grep -q "trsvcid: *$PORT" /tmp/log
}
discover() { check discover discovers; }

# round NAME PORT OPTIONS: data over a new controller.
round() {
    check "$1: connect" connect $NQN $2 $3
    check "$1: data" data
    check "$1: disconnect" disconnect
}

makes_files() {
    mke2fs -q -F -b 4096 $disk && mount -t ext4 $disk /tmp/files || return 1
    cp /tmp/data /bin/busybox /tmp/files
    umount /tmp/files
}
same_files() {
    mount -t ext4 $disk /tmp/files || return 1
    cmp /tmp/files/data /tmp/data && cmp /tmp/files/busybox /bin/busybox
    result=$?
    umount /tmp/files
    return $result
}
discards() { write_large && /tools/bin/blkdiscard $disk && is_zero; }
zeroes() { write_large && /tools/bin/blkdiscard -z -l 2097152 $disk && is_zero; }
# use_disk NAME PORT OPTIONS: a file system, and commands without data.
use_disk() {
    check "$1: connect" connect $NQN $2 $3
    check "$1: data" data
    check "$1: discard" discards
    check "$1: write zeroes" zeroes
    check "$1: make files" makes_files
    check "$1: same files" same_files
    check "$1: fsck" e2fsck -f -n $disk
    check "$1: disconnect" disconnect
}

grows() { wait_for is_size 1048576 && cmp /tmp/files/data /tmp/data && touch /tmp/files/more; }
# change PORT OPTIONS: namespaces change under a mount.
change() {
    check "change: connect" connect $NQN $1 $2
    check "change: make files" makes_files
    check "change: mount" mount -t ext4 $disk /tmp/files
    ask grow
    check "change: grown" grows
    ask add
    check "change: added" wait_for find_disk 2
    [ -b "$disk" ] && check "change: data" data
    ask remove
    check "change: removed" wait_for no_disk 2
    check "change: unmount" umount /tmp/files
    find_disk
    check "change: fsck" e2fsck -f -n $disk
    check "change: disconnect" disconnect
}

# killed PORT OPTIONS: the server is killed, and started again while a write waits.
killed() {
    check "killed: connect" connect $NQN $1 $2
    controller=$(ls -d $nvme/nvme*)
    ask kill
    check "killed: noticed" wait_for is_state $controller connecting
    write_large 2>/dev/null &
    writer=$!
    ask start
    check "killed: written" wait $writer
    check "killed: live" is_state $controller live
    check "killed: read" read_large
    check "killed: disconnect" disconnect
}

# paths PORT PORT OPTIONS: two controllers of one subsystem, of which one loses its target.
paths() {
    check "paths: connect" connect $NQN $1 $3
    first=$(ls -d $nvme/nvme*)
    attach $NQN $2 $3
    second=$(ls -d $nvme/nvme* | grep -v "^$first\$")
    check "paths: second" wait_for is_state $second live
    write_large 2>/dev/null &
    writer=$!
    ask stop path
    check "paths: written" wait $writer
    check "paths: noticed" wait_for is_state $first connecting
    check "paths: data" data
    check "paths: second lives" is_state $second live
    ask start path
    check "paths: back" wait_for is_state $first live
    check "paths: disconnect" disconnect
}

# With data digests, the target refuses damaged writes, and Linux repeats them at once.
repairs_writes() {
    before=$(complaints reconnect)
    data && [ "$(complaints reconnect)" = "$before" ]
}
# Linux repeats a read whose digest is wrong.
repairs_reads() {
    write_large && ask damage data-to-host && read_large || return 1
    ask undamage
    [ "$(complaints 'data digest error')" -gt 0 ]
}
# Without digests, damage passes: this shows that the other checks can fail.
passes_damage() { write_large && ask undamage && ! read_large; }
reconnects() {
    before=$(complaints reconnect)
    write_large && [ "$(complaints reconnect)" -gt "$before" ] && read_large
}
# damage PORT: a proxy between the guest and the target damages PDUs.
damage() {
    check "damage: connect" connect $NQN $1 ,data_digest
    ask damage data-by-request
    check "damage: writes by request" repairs_writes
    ask undamage refused
    ask damage data-in-capsules
    check "damage: writes in capsules" repairs_writes
    ask undamage refused
    check "damage: reads" repairs_reads
    check "damage: disconnect" disconnect
    check "damage: connect without digests" connect $NQN $1
    ask damage data-by-request
    check "damage: passes without digests" passes_damage
    check "damage: disconnect" disconnect
}

# damage_header PORT: the target ends the connection with C2HTermReq, and the host connects again.
damage_header() {
    check "damage: connect with digests of headers" connect $NQN $1 ,hdr_digest
    ask damage one-header
    check "damage: header" reconnects
    ask undamage
    check "damage: disconnect" disconnect
}

# disturb PORT OPTIONS: the proxy delays, swaps and cuts.
disturb() {
    check "disturb: connect" connect $NQN $1 $2
    for fault in delay swap-data swap-responses cut-data cut-response; do
        ask disturb $fault
        check "disturb: $fault" data
        ask undisturb
    done
    check "disturb: disconnect" disconnect
}

# reset PORT OPTIONS: a controller is reset while a write is under way.
reset() {
    check "reset: connect" connect $NQN $1 $2
    controller=$(ls -d $nvme/nvme*)
    write_large 2>/dev/null &
    writer=$!
    echo 1 > $controller/reset_controller
    check "reset: written" wait $writer
    check "reset: live" wait_for is_state $controller live
    check "reset: read" read_large
    check "reset: disconnect" disconnect
}

# lose PORT OPTIONS: the target does not come back in time, and the host gives up.
lose() {
    check "lose: connect" connect $NQN $1 $2,ctrl_loss_tmo=3
    ask kill
    check "lose: removed" wait_for no_disk
    ask start
}

# idle PORT OPTIONS: a controller stays connected by keep alive alone. The target's time-out is 10 seconds.
idle() {
    check "idle: connect" connect $NQN $1 $2,keep_alive_tmo=5
    before=$(complaints reconnect)
    sleep 25
    check "idle: not reconnected" [ "$(complaints reconnect)" = "$before" ]
    check "idle: data" data
    check "idle: disconnect" disconnect
}

# Linux as the target, with a null_blk disk that keeps its data.
serves() {
    insmod /null_blk.ko memory_backed=1 gb=1 bs=4096 nr_devices=1 &&
        mount -t configfs none /sys/kernel/config || return 1
    nvmet=/sys/kernel/config/nvmet
    mkdir -p $nvmet/subsystems/$NQN/namespaces/1 $nvmet/ports/1 || return 1
    echo 1 > $nvmet/subsystems/$NQN/attr_allow_any_host
    echo /dev/nullb0 > $nvmet/subsystems/$NQN/namespaces/1/device_path
    echo 1 > $nvmet/subsystems/$NQN/namespaces/1/enable
    echo ipv4 > $nvmet/ports/1/addr_adrfam
    echo tcp > $nvmet/ports/1/addr_trtype
    echo 4420 > $nvmet/ports/1/addr_trsvcid
    echo 0.0.0.0 > $nvmet/ports/1/addr_traddr
    ln -s $nvmet/subsystems/$NQN $nvmet/ports/1/subsystems/
}
serve() {
    check "serve: configured" serves
    ask initiate
}

# verified NAME OPTION...: fio exits with an error if it cannot verify its data.
verified() {
    local name=$1
    shift
    check "fio: $name" fio --ioengine=libaio --direct=1 --minimal --thread --group_reporting "$@"
    # Fields of fio's terse output: operations a second.
    reads=$(cut -d ';' -f 8 /tmp/said | head -n 1)
    writes=$(cut -d ';' -f 49 /tmp/said | head -n 1)
    say "measured $name: $reads reads and $writes writes a second"
}
# Without digests, fio gets damaged data, and must notice: this shows that its verification works.
notices_damage() {
    ask damage data-to-host
    ! fio --ioengine=libaio --direct=1 --thread --name=1 --filename=$disk --bs=16k --size=1m --rw=write --verify=crc32c
}
# notice PORT: fio's verification of data that the proxy damages.
notice() {
    check "fio: connect without digests" connect $NQN $1
    check "fio: notices damage" notices_damage
    ask undamage
    check "fio: disconnect" disconnect
}
# load PORT SECONDS: fio over namespace 1, and then over 16 namespaces, with both digests.
load() {
    check "fio: connect" connect $MANY $1 ,hdr_digest,data_digest
    check "fio: 16 namespaces" wait_for find_disk 16
    one=${disk%16}1
    all=
    for number in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16; do
        all="$all --name=$number --filename=${disk%16}$number"
    done
    verify="--rw=randwrite --verify=crc32c --verify_fatal=1 --do_verify=1 --verify_backlog=64"
    timed="--time_based --runtime=$2"
    verified "write and verify" --name=1 --filename=$one --bs=16k --size=4m --iodepth=16 $verify
    verified "random read" --name=1 --filename=$one --bs=16k --size=4m --iodepth=16 --rw=randread $timed
    verified "sequential read" --name=1 --filename=$one --bs=128k --size=4m --iodepth=8 --rw=read $timed
    verified "write and verify 16 namespaces" --bs=16k --size=1m --iodepth=4 $verify $all
    verified "random read 16 namespaces" --bs=16k --size=1m --iodepth=4 --rw=randread $timed $all
    check "fio: disconnect" disconnect
}
