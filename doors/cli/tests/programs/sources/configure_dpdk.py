"""Gives each of two groups two engines and one dedicated queue by writing the attributes. The queues' names are those
that DPDK's driver accepts. With the argument `undo` it reverts all of this."""

import os
import sys

DEVICES = "/sys/bus/dsa/devices"
DRIVERS = "/sys/bus/dsa/drivers"


def put(path, value):
    with open(path, "w") as file:
        file.write(str(value))


def get(path):
    with open(path) as file:
        return file.read().strip()


if sys.argv[1:] == ["undo"]:
    for queue in ("wq0.0", "wq0.1"):
        put(f"{DRIVERS}/user/unbind", queue)
    put(f"{DRIVERS}/idxd/unbind", "dsa0")
    assert get(f"{DEVICES}/dsa0/state") == "disabled"
    sys.exit()

assert os.path.exists(f"{DRIVERS}/idxd") and get(f"{DEVICES}/dsa0/state") == "disabled"
for engine in range(int(get(f"{DEVICES}/dsa0/max_engines"))):
    put(f"{DEVICES}/dsa0/engine0.{engine}/group_id", engine % 2)
for number in range(2):
    queue = f"{DEVICES}/dsa0/wq0.{number}"
    put(f"{queue}/group_id", number)
    put(f"{queue}/type", "user")
    put(f"{queue}/mode", "dedicated")
    put(f"{queue}/name", f"dpdk_wq0.{number}")
    put(f"{queue}/priority", 1)
    put(f"{queue}/max_batch_size", 1024)
    put(f"{queue}/size", 64)
    if os.path.exists(f"{queue}/driver_name"):
        put(f"{queue}/driver_name", "user")
put(f"{DRIVERS}/idxd/bind", "dsa0")
for number in range(2):
    put(f"{DRIVERS}/user/bind", f"wq0.{number}")
    assert get(f"{DEVICES}/wq0.{number}/state") == "enabled"
assert sorted(os.listdir("/dev/dsa")) == ["wq0.0", "wq0.1"]
