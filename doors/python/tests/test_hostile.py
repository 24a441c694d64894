"""Careless and hostile callers: unusual buffers, finalizers, subinterpreters; and that nothing leaks."""

import array
import asyncio
import collections
import ctypes
import gc
import inspect
import mmap
import os
import pickle
import sys
import threading
import unittest
import weakref

import numpy as np
import telpher
from telpher import _await
from test_jobs import mover, python


class OddBuffers(unittest.TestCase):
    def setUp(self):
        self.mover = telpher.Mover("cpu")
        self.addCleanup(self.mover.close)

    def test_scalars_and_structures_are_buffers_too(self):
        class Point(ctypes.Structure):
            _fields_ = [("x", ctypes.c_int32), ("y", ctypes.c_int32)]

        point = Point()
        self.mover.copy(np.array([3, 4], np.int32), point)
        self.assertEqual((point.x, point.y), (3, 4))
        zero_d = np.zeros(())
        self.mover.copy(np.float64(1.5), zero_d)
        self.assertEqual(zero_d, 1.5)

    def test_object_references_are_refused(self):
        # Overwriting them, or copying them without counting, crashes the interpreter.
        objects = np.array([object(), object()], dtype=object)
        record = np.zeros(2, dtype=[("name", object), ("size", "i8")])
        pointers = (ctypes.py_object * 2)()
        for references in [objects, record, pointers]:
            with self.assertRaisesRegex(TypeError, "references"):
                self.mover.fill(references, 0)
            with self.assertRaisesRegex(TypeError, "references"):
                self.mover.crc(references)
        prices = np.zeros(3, dtype=[("Open", "f8"), ("O", "f8")])
        self.mover.fill(prices, 0xFF)
        self.assertEqual(prices.tobytes(), b"\xff" * 48)

    def test_fortran_order_is_refused_and_its_transpose_works(self):
        fortran = np.asfortranarray(np.arange(12.0).reshape(3, 4))
        with self.assertRaisesRegex(BufferError, "C order.*ascontiguousarray.*transpose"):
            self.mover.crc(fortran)
        copy = np.empty((3, 4), order="F")
        self.mover.copy(fortran.T, copy.T)
        np.testing.assert_array_equal(copy, fortran)
        for view in [np.arange(10)[::2], np.arange(10)[::-1], np.broadcast_to(np.uint8(1), 1 << 40)]:
            with self.assertRaisesRegex(BufferError, "C order"):
                self.mover.crc(view)

    def test_read_only_destinations_are_refused(self):
        page = mmap.mmap(-1, mmap.PAGESIZE, access=mmap.ACCESS_READ)
        for frozen in [bytes(8), memoryview(bytearray(8)).toreadonly(), page, np.float64(0)]:
            with self.assertRaisesRegex(BufferError, "read-only"):
                self.mover.fill(frozen)
        released = memoryview(bytearray(8))
        released.release()
        with self.assertRaisesRegex(ValueError, "released"):
            self.mover.fill(released)

    def test_an_array_pattern_is_its_bytes(self):
        data = bytearray(8)
        for pattern, bytes_ in [
            (np.array([1, 2], np.uint16), b"\x01\0\x02\0" * 2),
            (array.array("I", [7]), b"\x07\0\0\0" * 2),
            (np.float64(1.5), np.float64(1.5).tobytes()),
            (np.uint32(9), b"\x09" * 8),
            (memoryview(b"ab"), b"ab" * 4),
        ]:
            self.mover.fill(data, pattern)
            self.assertEqual(data, bytes_)
        for pattern in [-1, 256, np.int64(256), b"", b"abc", bytes(32)]:
            with self.assertRaisesRegex(ValueError, "a pattern must be"):
                self.mover.fill(data, pattern)
        for pattern in ["a", None, 1.5, [1, 2]]:
            with self.assertRaisesRegex(TypeError, "a pattern must be"):
                self.mover.fill(data, pattern)

    @unittest.skipIf(sys.version_info < (3, 12), "classes of Python's own have no buffers before 3.12")
    def test_a_python_buffer_exporter_is_called_correctly_and_released(self):
        class Exporter:
            def __init__(self):
                self.buffer, self.released = bytearray(100_000), 0

            def __buffer__(self, flags):
                if not flags & inspect.BufferFlags.WRITABLE:
                    raise BufferError("for reading only")
                return memoryview(self.buffer)

            def __release_buffer__(self, view):
                # Any code may run here, even a poll of the job that is ending.
                self.released += 1
                job.done()

        with mover() as m:
            buffer = Exporter()
            job = m.crc_async(b"")
            job = m.fill_async(buffer, 7)
            job.result()
            self.assertEqual((buffer.buffer.count(7), buffer.released), (100_000, 1))
            with self.assertRaisesRegex(BufferError, "for reading only"):
                m.crc(buffer)

    def test_buffers_in_flight_cannot_be_resized_closed_or_released(self):
        with mover() as m:
            for buffer, ask in [
                (array.array("B", bytes(64 << 20)), lambda buffer: buffer.append(1)),
                (mmap.mmap(-1, 64 << 20), lambda buffer: buffer.close()),
                (memoryview(bytearray(64 << 20)), lambda buffer: buffer.release()),
            ]:
                job = m.fill_async(buffer, 1)
                if not job.done():
                    with self.assertRaises(BufferError):
                        ask(buffer)
                job.result()
                ask(buffer)

    def test_an_unreferenced_array_lives_as_long_as_its_job(self):
        with mover() as m:
            for i in range(50):
                job = m.copy_async(np.full(1 << 18, i, np.uint8), dst := np.zeros(1 << 18, np.uint8))
                gc.collect(0)
                job.result()
                self.assertTrue((dst == i).all())


class LeftBehind(unittest.TestCase):
    def test_buffers_are_released_on_every_outcome(self):
        with mover() as m:
            src, dst = bytes(100_000), bytearray(100_000)
            counts = sys.getrefcount(src), sys.getrefcount(dst)
            m.copy(src, dst)
            m.copy_async(src, dst).result()
            with self.assertRaises(ValueError):
                m.copy(src, dst[:1])
            with self.assertRaises(BufferError):
                m.copy(dst, src)
            m.batch().copy(src, dst)
            batch = m.batch()
            batch.copy(src, dst)
            batch.submit().result()
            self.assertEqual((sys.getrefcount(src), sys.getrefcount(dst)), counts)
            dst.append(1)

    def test_memory_does_not_grow_over_a_hundred_thousand_operations(self):
        def resident():
            with open("/proc/self/statm") as statm:
                return int(statm.read().split()[1]) * mmap.PAGESIZE

        with telpher.Mover("cpu") as cpu, telpher.Mover("model:spr", threshold=0) as model:
            src, dst = bytes(64), bytearray(64)

            def operate(times):
                for at in range(times // 5):
                    cpu.copy(src, dst)
                    model.crc(src)
                    model.fill_async(dst, 1).result()
                    try:
                        cpu.copy(src, src)
                    except BufferError:
                        pass
                    batch = model.batch()
                    batch.copy(src, dst)
                    if at % 2:
                        batch.submit().result()

            operate(5_000)
            before = resident()
            operate(100_000)
            # 16 bytes lost each time would be 1.6 MB.
            self.assertLess(resident() - before, 1 << 20)

    def test_jobs_and_movers_support_weak_references(self):
        m = mover()
        job = m.crc_async(b"123456789")
        job.result()
        refs = weakref.ref(m), weakref.ref(job)
        del m, job
        self.assertEqual([ref() for ref in refs], [None, None])

    def test_objects_with_queues_cannot_be_pickled(self):
        with mover() as m:
            for value in [m, m.batch(), m.crc_async(b"")]:
                with self.assertRaisesRegex(TypeError, "cannot pickle 'telpher"):
                    pickle.dumps(value)


class Waiting(unittest.TestCase):
    def test_a_finalizer_may_use_the_job_whose_result_is_being_created(self):
        # The garbage collector runs while the result list is created; this was a deadlock.
        ended = python(
            """
            import gc, telpher
            batch = telpher.Mover("cpu").batch()
            batch.crc(b"123456789")
            job = batch.submit()
            gc.callbacks.append(lambda phase, info: job.done())
            gc.set_threshold(1)
            print(job.result())
            """
        )
        self.assertEqual((ended.returncode, ended.stdout), (0, f"[{0xE3069283}]\n"), ended.stderr)

    def test_done_works_while_another_thread_waits(self):
        with mover() as m:
            for _ in range(10):
                job = m.fill_async(bytearray(64 << 20), 1)
                thread = threading.Thread(target=job.result)
                thread.start()
                while not job.done():
                    self.assertIn(job.via, [None, "device", "both"])
                thread.join()
                self.assertEqual(repr(job), "<telpher.Job: done>")

    def lets_others_run(self, work):
        """True if another thread got the interpreter lock during `work`; nothing else makes this thread release it."""
        go, seen = threading.Lock(), []
        go.acquire()

        def other():
            with go:
                seen.append(True)

        thread = threading.Thread(target=other)
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1000)
        try:
            thread.start()
            go.release()
            work()
            return bool(seen)
        finally:
            sys.setswitchinterval(interval)
            thread.join()

    def test_other_threads_run_while_the_cpu_or_a_device_works(self):
        src, dst = np.ones(16 << 20, np.uint8), np.zeros(16 << 20, np.uint8)
        for device in ["cpu", "model:spr"]:
            with telpher.Mover(device, threaded=True) as m:
                # Retried until the other thread is scheduled in time: a released lock must also be taken.
                self.assertTrue(any(self.lets_others_run(lambda: m.copy(src, dst)) for _ in range(100)))

    def test_other_threads_run_while_a_short_list_names_a_long_block_often(self):
        # The list has 64 bytes and the memory is short, but 64 MiB are written.
        memory, offsets = bytearray(8 << 20), np.zeros(8, np.uint64)
        for device in ["cpu", "model:v3-full"]:
            with telpher.Mover(device, threaded=True) as m:
                work = lambda: m.scatter_fill(offsets, memory, 8 << 20, 1)
                self.assertTrue(any(self.lets_others_run(work) for _ in range(100)))

    def test_other_threads_run_while_a_closing_mover_waits_for_dropped_jobs(self):
        def goes():
            only = [mover()]
            for _ in range(4):
                only[0].crc_async(buffer)
            return self.lets_others_run(only.clear)

        buffer = np.zeros(64 << 20, np.uint8)
        self.assertTrue(any(goes() for _ in range(50)))


class Tasks(unittest.TestCase):
    def test_ten_thousand_jobs_are_gathered(self):
        async def main(m):
            blocks = [i.to_bytes(4, "little") * 64 for i in range(10_000)]
            rooms = [bytearray(256) for _ in blocks]
            await asyncio.gather(*(m.copy_async(a, b) for a, b in zip(blocks, rooms)))
            self.assertEqual(blocks, rooms)

        for threaded in [False, True]:
            with telpher.Mover("model:spr", threshold=0, threaded=threaded) as m:
                asyncio.run(main(m))

    def test_polls_do_not_grow_quadratically_with_jobs(self):
        looks, in_hand = 0, collections.deque()

        class Job:
            """A job of a device that takes 16 at a time and has finished them at the next poll."""

            begun = False

            def done(self):
                nonlocal looks
                looks += 1
                if self.begun:
                    in_hand.remove(self)
                    return True
                if len(in_hand) < 16:
                    in_hand.append(self)
                    self.begun = True
                return False

            def result(self):
                return 1

        async def main():
            return sum(await asyncio.gather(*(_await.drive(Job()) for _ in range(5_000))))

        self.assertEqual(asyncio.run(main()), 5_000)
        # Polling all jobs in every turn would be 200 to 800 polls per job.
        self.assertLess(looks, 100 * 5_000)

    def test_a_job_behind_many_unfinished_ones_is_noticed(self):
        class Job:
            def __init__(self, end):
                self.done = lambda: end
                self.result = lambda: "ended"

        async def main():
            stuck = [asyncio.create_task(_await.drive(Job(False))) for _ in range(1_000)]
            await asyncio.sleep(0)
            job = Job(False)
            task = asyncio.create_task(_await.drive(job))
            await asyncio.sleep(0)
            job.done = lambda: True
            self.assertEqual(await task, "ended")
            [task.cancel() for task in stuck]

        asyncio.run(main())

    def test_a_timeout_ends_the_wait_and_releases_the_job(self):
        async def main():
            with mover() as m:
                job = m.fill_async(bytearray(64 << 20), 1)
                ref = weakref.ref(job)
                if not job.done():
                    with self.assertRaises(asyncio.TimeoutError):
                        await asyncio.wait_for(job, 0)
                del job
                self.assertIsNone(ref())

        asyncio.run(main())

    def test_a_closed_loop_releases_its_jobs(self):
        with mover() as m:
            loop = asyncio.new_event_loop()
            job = m.fill_async(bytearray(64 << 20), 1)
            ref = weakref.ref(job)
            coroutine = _await.drive(job)
            # Not a task, which would print that it was destroyed.
            loop.run_until_complete(self.begin(coroutine))
            loop.close()
            del coroutine, job, loop
            gc.collect()
            self.assertIsNone(ref())

    @staticmethod
    async def begin(coroutine):
        try:
            coroutine.send(None)
        except StopIteration:
            pass

    def test_loops_in_two_threads_share_a_mover(self):
        async def main(m):
            for _ in range(50):
                src, dst = os.urandom(50_000), bytearray(50_000)
                await m.copy_async(src, dst)
                if src != dst:
                    failures.append(dst)

        failures = []
        with mover() as m:
            threads = [threading.Thread(target=lambda: asyncio.run(main(m))) for _ in range(2)]
            [thread.start() for thread in threads]
            [thread.join() for thread in threads]
        self.assertEqual(failures, [])

    def test_tasks_and_a_thread_may_await_one_job(self):
        async def main():
            with mover() as m:
                job = m.crc_async(bytes(8 << 20))
                return await asyncio.gather(job, job, asyncio.wait_for(job, 60))

        self.assertEqual(len(set(asyncio.run(main()))), 1)


class Processes(unittest.TestCase):
    def test_a_second_interpreter_is_refused_and_closes_nothing(self):
        ended = python(
            """
            import sys, telpher
            m = telpher.Mover("cpu")
            if sys.version_info >= (3, 13):
                import _interpreters as interpreters
                other = interpreters.create("legacy")
                print(interpreters.exec(other, "import telpher").formatted)
            else:
                import _xxsubinterpreters as interpreters
                other = interpreters.create(isolated=False)
                try:
                    interpreters.run_string(other, "import telpher")
                except interpreters.RunFailedError as error:
                    print(error)
            interpreters.destroy(other)
            m.crc(b"")
            """
        )
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertRegex(ended.stdout, "ImportError.*one interpreter per process")

    def test_a_pool_of_forked_processes_works_while_jobs_are_in_flight(self):
        ended = python(
            """
            import multiprocessing, telpher
            m = telpher.Mover("model:spr", threaded=True, threshold=0)
            def move(i):
                src, dst = bytes([i]) * 100_000, bytearray(100_000)
                m.copy(src, dst)
                with telpher.Mover("model:spr", threaded=True, threshold=0) as fresh:
                    return fresh.equal(src, dst)
            jobs = [m.fill_async(bytearray(1 << 20), 1) for _ in range(100)]
            with multiprocessing.get_context("fork").Pool(2) as pool:
                print(all(pool.map(move, range(8))))
            [job.result() for job in jobs]
            """
        )
        self.assertEqual((ended.returncode, ended.stdout), (0, "True\n"), ended.stderr)

    def test_after_ctrl_c_the_buffer_is_held_until_the_device_is_done(self):
        ended = python(
            """
            import os, signal, telpher, threading
            m = telpher.Mover("model:spr", threaded=True, threshold=0)
            buffer = bytearray(256 << 20)
            held = False
            while not held:
                begun = threading.Event()
                def interrupt():
                    begun.wait()
                    os.kill(os.getpid(), signal.SIGINT)
                thread = threading.Thread(target=interrupt)
                thread.start()
                try:
                    begun.set()
                    while True:
                        m.fill(buffer, 1)
                except KeyboardInterrupt:
                    # No job is kept if the signal came between two.
                    if m.kept:
                        try:
                            buffer.append(1)
                        except BufferError:
                            held = True
                thread.join()
            m.close()
            buffer.append(1)
            print("given back")
            """
        )
        self.assertEqual((ended.returncode, ended.stdout), (0, "given back\n"), ended.stderr)


if __name__ == "__main__":
    unittest.main()
