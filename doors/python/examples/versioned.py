"""Prices that one thread changes while others add them up from copies in fast memory: each sum is of the version that its reader
holds. Then a block that is modified in fast memory, and copied back where it differs."""

import sys
import threading

import telpher

PRICES, BLOCK, CHANGES = 100_000, 20_000, 50


def add_up(versioned, wrong):
    version = 0
    while version < CHANGES:
        with versioned.read() as reading:
            version = reading.version
            total = sum(sum(reading.access(at, at + BLOCK).result()) for at in range(0, PRICES, BLOCK))
            if total != version * PRICES:
                wrong.append(version)


def change(versioned):
    # Every price is the number of the version.
    for version in range(1, CHANGES + 1):
        with versioned.write() as prices:
            prices[:] = bytes([version]) * PRICES


def main(device):
    prices, wrong = bytearray(PRICES), []
    with telpher.Mover(device, threshold="16k") as mover:
        with telpher.Cache(mover, 2 * PRICES) as cache:
            versioned = telpher.Versioned(cache, prices)
            readers = [threading.Thread(target=add_up, args=(versioned, wrong)) for _ in range(3)]
            for reader in readers:
                reader.start()
            change(versioned)
            for reader in readers:
                reader.join()
            print(f"{versioned.version} versions, {len(wrong)} sums of another one")
        with telpher.WriteBack(mover, telpher.Pool(2 * PRICES), prices) as block:
            with block.write(50_000, 70_000) as part:
                part[:10] = bytes([7]) * 10
            compared, copied = block.sync("differing")
            print(f"10 bytes written, {compared} compared, {copied} copied back; price 50000 is {prices[50_000]}")


main(sys.argv[1] if len(sys.argv) > 1 else "model:spr")
