"""Messages from a file in memory that each rank maps. Rank 0 prints which ranks have mapped the file of another one.

The receiver maps the sender's file, and reads messages there where it measures that this is faster. Which messages these
are depends on time; that it tries does not.
"""

import mmap
import os

from ranks import filled, left, rank, right, run_parts, world

# The shorter ones are never read from the file.
LENGTHS = [8, 100_000, 256 << 10, 300_000, 1_000_000]
LONGEST = 1_000_000

# The descriptor stays open: by it the provider opens the file again.
file = os.memfd_create(f"buffers-of-rank-{rank}")
os.ftruncate(file, LONGEST + 4096)
buffer = memoryview(mmap.mmap(file, LONGEST + 4096))
got = bytearray(LONGEST)


def exchange(length, seed):
    """Sends bytes that were just written, from one of several places, and checks what comes."""
    at = seed % 5 * 512
    buffer[at:at + length] = filled(length, rank + seed)
    world.Sendrecv(buffer[at:at + length], right, 1, memoryview(got)[:length], left, 1)
    assert got[:length] == filled(length, left + seed), (length, seed)


def written_before_each_send():
    for length in LENGTHS:
        for seed in range(24):
            exchange(length, seed)


def into_a_shared_buffer():
    place = memoryview(mmap.mmap(-1, LONGEST))
    for seed in range(24):
        buffer[:LONGEST] = filled(LONGEST, rank + seed)
        world.Sendrecv(buffer[:LONGEST], right, 2, place, left, 2)
        assert place == filled(LONGEST, left + seed), seed


def mapped_by_the_receiver():
    with open("/proc/self/maps") as maps:
        is_mapped = f"memfd:buffers-of-rank-{left}" in maps.read()
    ranks = [number for number, has in enumerate(world.allgather(is_mapped)) if has]
    if rank == 0:
        print("mapped by", *ranks, flush=True)


run_parts([written_before_each_send, into_a_shared_buffer, mapped_by_the_receiver])
