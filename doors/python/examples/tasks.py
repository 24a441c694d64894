"""Many tasks, each awaiting its own copy, while the event loop keeps running."""

import asyncio
import sys

import telpher


async def move(mover, block):
    copy = bytearray(len(block))
    await mover.copy_async(block, copy)
    return copy == block


async def main(device):
    with telpher.Mover(device, threaded=True, threshold="4k") as mover:
        blocks = [bytes([i]) * 100_000 for i in range(64)]
        assert all(await asyncio.gather(*(move(mover, block) for block in blocks)))
        print(f"{len(blocks)} tasks copied {sum(map(len, blocks))} bytes on {device}")


asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "model:spr"))
