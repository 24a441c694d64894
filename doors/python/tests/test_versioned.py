"""Bytes that change: readers and writers keep each other away, and blocks of fast memory are copied back."""

import asyncio
import gc
import threading
import time
import unittest
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import telpher

LEN = 100_000


def some(size=LEN):
    return bytearray(np.random.default_rng(9).integers(0, 256, size, np.uint8).tobytes())


class VersionedBytes(unittest.TestCase):
    def setUp(self):
        mover = self.enterContext(telpher.Mover("model:spr", threshold=0))
        self.cache = self.enterContext(telpher.Cache(mover, 2 * LEN))
        self.data = some()
        self.versioned = telpher.Versioned(self.cache, self.data)

    def test_a_reader_has_the_bytes_of_its_version_and_a_writer_changes_it(self):
        with self.versioned.read() as reading:
            self.assertEqual((reading.version, len(self.versioned)), (0, LEN))
            self.assertEqual(reading.access(10, 60_000).result(), self.data[10:60_000])
            with self.assertRaisesRegex(TimeoutError, "had the bytes"):
                self.versioned.write(timeout=0)
        with self.versioned.write() as view:
            self.assertEqual((len(view), view.readonly, view.format), (LEN, False, "B"))
            view[20] ^= 1
            with self.assertRaises(TimeoutError):
                self.versioned.read(timeout=0)
        with self.versioned.read() as reading:
            self.assertEqual((reading.version, self.versioned.version), (1, 1))
            self.assertEqual(reading.access(10, 60_000).result(), self.data[10:60_000])

    def test_blocks_and_their_bytes_end_with_the_reading(self):
        with self.versioned.read() as reading:
            block = reading.access(0, 1000)
            views = [block.result() for _ in range(100)]
            self.assertTrue(all(view == self.data[:1000] for view in views))
        for use in (block.location, block.result, lambda: reading.access(0, 1)):
            with self.assertRaisesRegex(ValueError, "ended"):
                use()
        with self.assertRaisesRegex(ValueError, "released"):
            bytes(views[0])
        reading.close()
        with self.versioned.write(timeout=0):
            pass

    def test_what_still_uses_the_bytes_keeps_others_away_and_is_an_error(self):
        reading = self.versioned.read()
        part = reading.access(0, 1000).result()[10:]
        with self.assertRaisesRegex(BufferError, "still use"):
            reading.close()
        with self.assertRaises(TimeoutError):
            self.versioned.write(timeout=0)
        part.release()
        writing = self.versioned.write(timeout=0)
        array = np.frombuffer(writing.__enter__(), np.uint8)
        with self.assertRaisesRegex(BufferError, "still use"):
            writing.close()
        with self.assertRaises(TimeoutError):
            self.versioned.read(timeout=0)
        array[5] = 77
        del array
        gc.collect()
        with self.assertRaisesRegex(ValueError, "ended"):
            writing.__enter__()
        with self.versioned.read(timeout=0) as reading:
            self.assertEqual((reading.version, reading.access(5, 6).result()[0]), (1, 77))

    def test_an_exception_in_a_with_statement_is_not_hidden(self):
        for begin in (self.versioned.read, self.versioned.write):
            with self.assertRaises(ZeroDivisionError), begin() as use:
                kept = use.access(0, 10).result()[:5] if begin == self.versioned.read else use[:5]
                raise ZeroDivisionError
            kept.release()
        self.assertEqual(self.versioned.version, 1)

    def test_a_dropped_reading_or_writing_ends(self):
        reading = self.versioned.read()
        self.assertEqual(reading.access(0, 10).result(), self.data[:10])
        del reading
        gc.collect()
        writing = self.versioned.write(timeout=0)
        del writing
        gc.collect()
        self.assertEqual(self.versioned.read(timeout=0).version, 1)

    def test_no_reader_has_bytes_of_another_version(self):
        words = np.zeros(8192, np.uint64)
        versioned, wrong = telpher.Versioned(self.cache, words), []

        def read():
            version = 0
            while version < 40:
                with versioned.read() as reading:
                    version = reading.version
                    seen = np.frombuffer(bytes(reading.access(0, words.nbytes).result()), np.uint64)
                    if not (seen == version).all():
                        wrong.append(version)
                if 0 < version < 40:
                    between.add(threading.get_ident())

        def write():
            with versioned.write() as view:
                numbers = np.frombuffer(view, np.uint64)
                numbers += 1
                del numbers

        between = set()
        with ThreadPoolExecutor(3) as pool:
            readers = [pool.submit(read) for _ in range(3)]
            for _ in range(39):
                write()
            # Writers may have kept readers away until now.
            end = time.monotonic() + 60
            while len(between) < 3 and time.monotonic() < end:
                time.sleep(0.001)
            write()
            for reader in readers:
                reader.result(60)
        self.assertEqual((wrong, versioned.version, len(between)), ([], 40, 3))

    def test_a_waiting_writer_keeps_new_readers_away(self):
        first = self.versioned.read()
        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(self.versioned.write)
            end = time.monotonic() + 60
            while time.monotonic() < end:
                try:
                    self.versioned.read(timeout=0).close()
                except TimeoutError:
                    break
            # Many times as long as the writer waits between two checks for signals.
            for _ in range(20):
                with self.assertRaises(TimeoutError):
                    self.versioned.read(timeout=0.01)
            first.close()
            writing.result(60).close()
        self.assertEqual(self.versioned.version, 1)

    def test_a_second_close_fails_too_while_bytes_are_in_use(self):
        for begin in (self.versioned.read, self.versioned.write):
            use = begin()
            part = use.access(0, 10).result()[:5] if begin == self.versioned.read else use.__enter__()[:5]
            for _ in range(2):
                with self.assertRaisesRegex(BufferError, "still use"):
                    use.close()
            part.release()
            use.close()

    def test_an_entry_that_is_created_beside_a_writer_is_not_found_by_readers(self):
        with self.versioned.write() as view:
            self.cache.access(memoryview(self.data)[:1000]).result()
            view[20] ^= 1
        with self.versioned.read() as reading:
            self.assertEqual(reading.access(0, 1000).result(), self.data[:1000])

    def test_tasks_await_blocks_of_a_reading(self):
        async def main():
            with self.versioned.read() as reading:
                parts = await asyncio.gather(*(self.awaited(reading.access(at, at + 10_000)) for at in range(0, LEN, 10_000)))
                self.assertEqual(b"".join(parts), self.data)

        asyncio.run(main())
        with self.versioned.write(timeout=0):
            pass

    @staticmethod
    async def awaited(block):
        return bytes(await block)

    def test_wrong_arguments_are_refused(self):
        for data, error in ((b"read-only", BufferError), (bytearray(), ValueError), (5, TypeError)):
            with self.assertRaises(error):
                telpher.Versioned(self.cache, data)
        with self.assertRaisesRegex(ValueError, "seconds"):
            self.versioned.read(timeout=-1)
        with self.versioned.read() as reading:
            for start, stop in ((0, LEN + 1), (10, 5)):
                with self.assertRaises(ValueError):
                    reading.access(start, stop)
        self.cache.close()
        with self.assertRaisesRegex(ValueError, "closed"):
            self.versioned.write()
        with self.versioned.read() as reading, self.assertRaisesRegex(ValueError, "closed"):
            reading.access(0, 1)


class Blocks(unittest.TestCase):
    def setUp(self):
        self.mover = self.enterContext(telpher.Mover("model:spr", threshold=0))
        self.home = some()

    def test_written_and_differing_pages_are_copied_back(self):
        block = telpher.WriteBack(self.mover, telpher.Pool(LEN + 4096), self.home)
        self.assertEqual((block.data, block.data.readonly, block.unsynced, len(block)), (self.home, True, 0, LEN))
        with block.write(50_000, 50_010) as part:
            part[:] = bytes(10)
            self.assertEqual((part.readonly, block.unsynced), (False, 4096))
            with self.assertRaisesRegex(BufferError, "release it"):
                block.sync()
        self.assertNotEqual(self.home[50_000:50_010], bytes(10))
        self.assertEqual((block.sync(), self.home[50_000:50_010], block.unsynced), ((0, 4096), bytes(10), 0))
        with block.write(0, 3 * 4096) as part:
            part[4096] ^= 1
        self.assertEqual(block.sync("differing"), (3 * 4096, 4096))
        self.home[90_000] ^= 1
        self.assertEqual(block.sync("anywhere"), (LEN, 4096))
        view = block.data
        block.close()
        # The memoryview keeps the memory, and the home can be resized.
        self.assertEqual((view, block.closed), (self.home, True))
        self.home.append(1)
        for use in (block.sync, lambda: block.write(0, 1), lambda: block.data):
            with self.assertRaisesRegex(ValueError, "closed"):
                use()

    def test_a_with_statement_syncs_unless_an_exception_was_raised(self):
        pool, old = telpher.Pool(2 * LEN), self.home[0]
        with self.assertRaises(ZeroDivisionError), telpher.WriteBack(self.mover, pool, self.home) as block:
            with block.write(0, 1) as part:
                part[0] = old ^ 1
            raise ZeroDivisionError
        self.assertEqual((self.home[0], block.closed), (old, True))
        with telpher.WriteBack(self.mover, pool, self.home) as block, block.write(0, 1) as part:
            part[0] = old ^ 1
        self.assertEqual((self.home[0], block.closed), (old ^ 1, True))

    def test_a_sync_that_would_lose_bytes_leaves_the_block_open(self):
        block = telpher.WriteBack(self.mover, telpher.Pool(2 * LEN), self.home)
        with self.assertRaises(BufferError), block:
            part = block.write(0, 1)
        part[0] ^= 1
        part.release()
        self.assertEqual((block.closed, block.sync()), (False, (0, 4096)))

    def test_threads_may_write_the_home_meanwhile(self):
        # Each page of the home has the number of its last writer: a thread, or the block, which writes even pages.
        home, end, beside = np.zeros((64, 4096), np.uint8), threading.Event(), threading.Event()

        def write():
            number = 0
            while not end.is_set():
                number = number % 200 + 1
                home[1::2] = number
                beside.set()

        pool = telpher.Pool(2 * home.nbytes)
        with ThreadPoolExecutor(1) as threads:
            writing = threads.submit(write)
            try:
                self.assertTrue(beside.wait(60))
                for number in range(201, 251):
                    block = telpher.WriteBack(self.mover, pool, home)
                    for page in range(0, 64, 2):
                        with block.write(page * 4096, (page + 1) * 4096) as part:
                            part[:] = bytes([number]) * 4096
                    self.assertEqual(block.sync(), (0, 32 * 4096))
                    block.close()
                    self.assertTrue((home[::2] == number).all())
            finally:
                end.set()
            writing.result(60)
        # A sync that writes other pages sets them to what they were at the fetch.
        block = telpher.WriteBack(self.mover, pool, home)
        home[1::2] = 251
        with block.write(0, 4096) as part:
            part[:] = bytes(4096)
        self.assertEqual(block.sync(), (0, 4096))
        self.assertTrue((home[0] == 0).all() and (home[1::2] == 251).all())
        block.close()

    def test_wrong_arguments_are_refused(self):
        pool = telpher.Pool(LEN + 4096)
        for home, error in ((b"read-only", BufferError), (bytearray(), ValueError), (bytearray(2 * LEN), MemoryError)):
            with self.assertRaises(error):
                telpher.WriteBack(self.mover, pool, home)
        block = telpher.WriteBack(self.mover, pool, self.home)
        for start, stop in ((0, LEN + 1), (10, 5)):
            with self.assertRaisesRegex(ValueError, "not inside"):
                block.write(start, stop)
        with self.assertRaisesRegex(ValueError, "find must be"):
            block.sync("all")


if __name__ == "__main__":
    unittest.main()
