"""A program that uses all types; checked by mypy --strict."""

import asyncio
import mmap
from typing import assert_type

import numpy as np
import telpher


def sync(mover: telpher.Mover) -> int:
    src, dst = np.arange(1000), np.zeros(1000, dtype=np.int64)
    mover.copy(src, dst)
    mover.fill(dst, b"ab")
    mover.fill(mmap.mmap(-1, 4096), 0xFF)
    at = mover.compare(src, dst)
    assert_type(at, int | None)
    found = mover.dif_check(bytes(520), telpher.DifConfig(512, source=["no_guard_check"]), telpher.Tags(ref_tag=1))
    if not found:
        print(found.at, found.what)
    return mover.crc(src, seed=1)


def blocks(mover: telpher.Mover) -> None:
    with telpher.Cache(mover, 1 << 20, eviction="largest", in_flight=2) as cache:
        column = np.arange(1000)
        ahead: telpher.Prefetch = cache.prefetch(column, 7)
        assert_type(ahead.cancel(), bool)
        found = cache.peek(column)
        assert_type(found, telpher.Block | None)
        assert_type(cache.access(column[10:20]).result(timeout=1.5), memoryview)
        assert_type(cache.stats["hits"] + cache.invalidate(column), int)


def versions(mover: telpher.Mover) -> None:
    data = bytearray(5000)
    with telpher.Cache(mover, 1 << 20) as cache:
        versioned = telpher.Versioned(cache, data)
        with versioned.write(timeout=1.5) as view:
            assert_type(view, memoryview)
            view[0] = 7
        with versioned.read() as reading:
            assert_type(reading.access(0, 10).result()[reading.version], int)
    with telpher.WriteBack(mover, telpher.Pool(1 << 20), data) as block:
        with block.write(0, 1) as part:
            part[0] = 8
        assert_type(block.sync("differing"), tuple[int, int])


def batches(mover: telpher.Mover) -> None:
    batch = mover.batch()
    index: int = batch.compare_expecting(b"1", b"2", difference=True)
    batch.fence()
    for result in batch.submit().result(timeout=1.5)[index:]:
        if isinstance(result, telpher.JobFailed):
            print(result)


async def tasks(mover: telpher.Mover) -> None:
    job = mover.copy_crc_async(b"abc", bytearray(3))
    assert_type(job, telpher.Job[int])
    assert_type(await job, int)
    first, second = await asyncio.gather(mover.crc_async(b"1"), mover.compare_async(b"1", b"2"))
    assert_type(second, int | None)
    await asyncio.wait_for(mover.copy_async(b"1", bytearray(1)), timeout=10)
    with telpher.Cache(mover, 4096) as cache:
        assert_type(await cache.access(bytes(100)), memoryview)
    if job.via == "device":
        print(first)


with telpher.Mover("cpu", threshold=4096, wait="yield") as mover:
    print(telpher.SETTINGS["threshold"], mover.queues, sync(mover))
    batches(mover)
    blocks(mover)
    versions(mover)
    asyncio.run(tasks(mover))
