"""Caches: shared, awaited, prefetched and invalidated blocks, and how long objects are held."""

import asyncio
import gc
import subprocess
import sys
import textwrap
import threading
import unittest
import weakref

import numpy as np
import telpher

BLOCK = 64 << 10


def some(blocks):
    return bytearray(np.random.default_rng(5).integers(0, 256, blocks * BLOCK, np.uint8).tobytes())


def part(source, number):
    return memoryview(source)[number * BLOCK : (number + 1) * BLOCK]


def movers():
    for device, threaded in (("cpu", False), ("model:spr", False), ("model:spr", True)):
        with telpher.Mover(device, threaded=threaded, threshold="4k") as mover:
            yield mover


class Caches(unittest.TestCase):
    def test_a_block_is_copied_once_and_shared(self):
        for mover in movers():
            source = some(2)
            with telpher.Cache(mover, 4 * BLOCK) as cache:
                block = cache.access(part(source, 0))
                self.assertEqual(block.location(), part(source, 0))
                copy = block.result()
                self.assertEqual((copy, len(block), block.fast, block.stale, block.done()), (part(source, 0), BLOCK, True, False, True))
                self.assertTrue(copy.readonly and copy.contiguous)
                self.assertEqual(cache.access(memoryview(source)[10:20]).result(), source[10:20])
                self.assertEqual((cache.stats["hits"], cache.stats["copies"], cache.stats["bytes"]), (1, 1, BLOCK))
                self.assertIsNone(cache.peek(part(source, 1)))
                self.assertEqual(cache.peek(part(source, 0)).location(), part(source, 0))
                self.assertEqual(cache.stats["weak_misses"], 1)
            self.assertTrue(cache.closed)
            # The bytes outlive the block, and the block outlives the cache.
            del block, cache
            gc.collect()
            self.assertEqual(copy, part(source, 0))
            with self.assertRaises(TypeError):
                copy[0] = 1

    def test_arrays_are_blocks_and_blocks_are_arrays(self):
        with telpher.Mover("model:spr") as mover, telpher.Cache(mover, 1 << 20) as cache:
            column = np.arange(50_000, dtype=np.int64)
            values = np.frombuffer(cache.access(column[1000:9000]).result(), np.int64)
            self.assertEqual(values.sum(), column[1000:9000].sum())
            self.assertFalse(values.flags.writeable or np.shares_memory(values, column))
            with self.assertRaises(ValueError):
                values[0] = 1
            with self.assertRaises(BufferError):
                cache.access(column[::2])

    def test_tasks_await_blocks(self):
        async def main(cache, source):
            async def read(number):
                return bytes(await cache.access(part(source, number))) == part(source, number)

            return await asyncio.gather(*(read(number % 8) for number in range(40)))

        for mover in movers():
            source = some(8)
            with telpher.Cache(mover, 3 * BLOCK, in_flight=2) as cache:
                self.assertTrue(all(asyncio.run(main(cache, source))))
                self.assertEqual(cache.stats["hits"] + cache.stats["misses"], 40)

    def test_prefetched_blocks_are_found_and_can_be_cancelled(self):
        for mover in movers():
            source = some(3)
            with telpher.Cache(mover, 2 * BLOCK) as cache:
                first, second, third = (cache.prefetch(part(source, number), 9 - number) for number in range(3))
                while not (first.done() and second.done()):
                    cache.drive()
                # There is memory for two blocks, and neither was used.
                self.assertFalse(third.done())
                self.assertTrue(third.cancel())
                self.assertFalse(third.cancel() or first.cancel() or third.done())
                block = cache.access(part(source, 1))
                self.assertEqual((block.location(), block.fast), (part(source, 1), True))
                self.assertEqual([cache.stats[name] for name in ("prefetches", "cancelled", "hits", "misses")], [3, 1, 1, 0])

    def test_blocks_are_invalidated_before_they_are_written(self):
        for mover in movers():
            source = some(2)
            with telpher.Cache(mover, 4 * BLOCK) as cache:
                old, other = cache.access(part(source, 0)), cache.access(part(source, 1))
                before = bytes(old.result())
                self.assertEqual(cache.invalidate(memoryview(source)[5:6]), 1)
                source[:BLOCK] = bytes(BLOCK)
                self.assertEqual((old.stale, other.stale, bytes(old.location())), (True, False, before))
                self.assertEqual(cache.access(part(source, 0)).result(), bytes(BLOCK))
                self.assertEqual((cache.flush() + cache.clear(), cache.stats["entries"]), (2, 0))

    def test_an_object_is_held_while_the_cache_needs_it(self):
        with telpher.Mover("model:spr", threshold=0) as mover, telpher.Cache(mover, 4 * BLOCK) as cache:
            source = some(1)
            block = cache.access(source)
            block.result()
            del block
            with self.assertRaises(BufferError):
                source.extend(b"more")
            self.assertEqual(cache.invalidate(source), 1)
            source.extend(b"more")
            array = np.zeros(BLOCK, np.uint8)
            gone = weakref.ref(array)
            cache.access(array).result()
            del array
            gc.collect()
            self.assertIsNotNone(gone())
            self.assertEqual(cache.flush(), 1)
            gc.collect()
            self.assertIsNone(gone())

    def test_lack_of_cache_memory_is_not_an_error(self):
        source = some(2)
        with telpher.Mover("model:spr") as mover, telpher.Cache(mover, BLOCK) as cache:
            whole = cache.access(source)
            self.assertEqual((whole.result(), whole.fast), (source, False))
            block, other = cache.access(part(source, 0)), cache.access(part(source, 1))
            self.assertEqual((block.result(), block.fast, other.result(), other.fast), (part(source, 0), True, part(source, 1), False))
            self.assertEqual(cache.stats["fallbacks"], 2)

    def test_threads_share_a_cache(self):
        for mover in movers():
            source, wrong, ended = some(8), [], []
            expected = bytes(source)
            with telpher.Cache(mover, 3 * BLOCK, in_flight=2) as cache:

                def work(seed):
                    random = np.random.default_rng(seed)
                    for _ in range(60):
                        start, end = sorted(random.integers(0, len(source), 2).tolist())
                        block = cache.access(memoryview(source)[start : end + 1])
                        if block.location() != expected[start : end + 1] or block.result() != expected[start : end + 1]:
                            wrong.append((start, end))
                        if seed == 1:
                            cache.invalidate(part(source, int(random.integers(8))))
                    ended.append(seed)

                threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                self.assertEqual((wrong, sorted(ended)), ([], [0, 1, 2, 3]))

    def test_invalid_arguments_raise_exceptions(self):
        with telpher.Mover("cpu") as mover:
            for words in ({"eviction": "lru"}, {"in_flight": 0}):
                with self.assertRaises(ValueError):
                    telpher.Cache(mover, BLOCK, **words)
            for size, node in ((1 << 62, None), (BLOCK, 999)):
                with self.assertRaises(MemoryError):
                    telpher.Cache(mover, size, node=node)
            with self.assertRaises(OverflowError):
                telpher.Cache(mover, -1)
            cache = telpher.Cache(mover, BLOCK)
            for act in (cache.access, cache.peek, cache.prefetch, cache.invalidate):
                with self.assertRaises(ValueError):
                    act(b"")
                with self.assertRaises(TypeError):
                    act("text")
            with self.assertRaises(OverflowError):
                cache.prefetch(b"1", 256)
            block = cache.access(bytes(100))
            for timeout in (-1, float("nan")):
                with self.assertRaises(ValueError):
                    block.result(timeout)
            cache.close()
            cache.close()
            with self.assertRaises(ValueError):
                cache.access(b"1")
            self.assertEqual(block.result(), bytes(100))
        with self.assertRaises(ValueError):
            telpher.Cache(mover, BLOCK)

    def test_the_interpreter_can_end_with_blocks_in_flight(self):
        program = """
            import telpher
            mover = telpher.Mover("model:spr", threaded=True, threshold=0)
            cache = telpher.Cache(mover, 64 << 20)
            source = bytearray(32 << 20)
            blocks = [cache.access(memoryview(source)[n << 20:(n + 1) << 20]) for n in range(32)]
            ahead = cache.prefetch(bytes(1 << 20))
            seen = blocks[0].location()
        """
        ended = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, timeout=300)
        self.assertEqual((ended.returncode, ended.stderr), (0, b""))


if __name__ == "__main__":
    unittest.main()
