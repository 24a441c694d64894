"""Jobs: awaited, waited for, dropped, in threads, across fork, at the interpreter's end."""

import asyncio
import gc
import os
import select
import signal
import subprocess
import sys
import textwrap
import threading
import time
import unittest
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import telpher
from telpher import _await, _telpher


def mover(**settings):
    return telpher.Mover("model:spr", threaded=True, threshold=0, **settings)


class Jobs(unittest.TestCase):
    def test_a_job_ends_and_reports_what_executed_it(self):
        with mover() as m:
            job = m.copy_async(bytes([7]) * 100_000, dst := bytearray(100_000))
            self.assertIsNone(job.result(timeout=10))
            self.assertTrue(job.done())
            self.assertEqual((dst, job.via), (b"\x07" * 100_000, "device"))
            self.assertEqual(repr(job), "<telpher.Job: done>")
        with telpher.Mover("cpu") as m:
            self.assertEqual(m.crc_async(b"1").via, "cpu")

    def test_a_result_can_be_fetched_again(self):
        with mover() as m:
            job = m.crc_async(b"123456789")
            self.assertEqual([job.result(), job.result()], [0xE3069283] * 2)

    def test_a_failure_is_raised_each_time(self):
        with mover() as m:
            job = m.copy_async(bytes(3), bytearray(4))
            for _ in range(2):
                with self.assertRaises(ValueError):
                    job.result()

    def test_a_buffer_in_flight_cannot_be_resized_and_afterwards_can(self):
        with mover() as m:
            dst = bytearray(64 << 20)
            job = m.fill_async(dst, 1)
            if not job.done():
                with self.assertRaises(BufferError):
                    dst.extend(b"more")
            job.result()
            dst.extend(b"more")
            self.assertEqual((dst[:64 << 20].count(1), dst[-4:]), (64 << 20, b"more"))

    def test_a_dropped_job_continues_and_its_buffer_is_released(self):
        with mover() as m:
            # One descriptor: further pieces of a longer operation would not start.
            dst = bytearray(60_000)
            m.fill_async(dst, 1)
            gc.collect()
            end = time.monotonic() + 30
            while m.kept and time.monotonic() < end:
                pass
            self.assertEqual(m.kept, 0)
            self.assertEqual(dst.count(1), len(dst))
            dst.clear()

    def test_many_tasks_await_their_jobs_at_once(self):
        async def main():
            with mover() as m:
                blocks = [np.full(50_000, i % 251, np.uint8) for i in range(200)]
                results = [np.zeros_like(block) for block in blocks]
                turns = 0

                async def beside():
                    nonlocal turns
                    while True:
                        turns += 1
                        await asyncio.sleep(0)

                other = asyncio.create_task(beside())
                await asyncio.gather(*(self.awaited(m.copy_async(a, b)) for a, b in zip(blocks, results)))
                checksums = await asyncio.gather(*(self.awaited(m.crc_async(a)) for a in blocks))
                other.cancel()
                self.assertTrue(all((a == b).all() for a, b in zip(blocks, results)))
                self.assertEqual(checksums, [m.crc(a) for a in blocks])
                self.assertGreater(turns, 0)

        asyncio.run(main())

    @staticmethod
    async def awaited(job):
        return await job

    def test_ten_thousand_jobs_through_one_loop_are_each_reported_once(self):
        async def main():
            loop, reported = asyncio.get_running_loop(), []
            notifier, ended = _telpher._Notifier(), asyncio.Event()

            def readable():
                reported.extend(notifier.ended())
                ended.set()

            loop.add_reader(notifier.fileno(), readable)
            with telpher.Mover("model:spr", threshold=0, threaded=True) as m:
                for first in range(0, 10_000, 100):
                    blocks = [os.urandom(4096) for _ in range(100)]
                    copies = [bytearray(4096) for _ in blocks]
                    jobs = [m.copy_async(a, b) for a, b in zip(blocks, copies)]
                    for number, job in enumerate(jobs, first):
                        self.assertTrue(notifier.watch(job, number))
                    while len(reported) < first + 100:
                        ended.clear()
                        await asyncio.wait_for(ended.wait(), 60)
                    self.assertEqual(blocks, copies)
            loop.remove_reader(notifier.fileno())
            self.assertEqual(sorted(reported), list(range(10_000)))

        asyncio.run(main())

    def test_a_loop_sleeps_until_watched_jobs_end(self):
        async def main():
            with mover() as m:
                poller = _await._poller()
                jobs = [m.fill_async(bytearray(60_000), 7) for _ in range(10)]
                futures = [poller.add(job) for job in jobs]
                # As after many turns without an end.
                poller.watch()
                self.assertEqual((len(poller.watched), poller.jobs), (10, {}))
                # Other code fetches a result; the task is woken nevertheless.
                self.assertIsNone(jobs[0].result())
                await asyncio.wait_for(asyncio.gather(*futures), 60)
                self.assertEqual([job.result() for job in jobs], [None] * 10)
                self.assertEqual(poller.watched, {})

        asyncio.run(main())

    def watched(self, m, notifier, token):
        """A job that the notifier watches. Started again until one was in flight long enough; other jobs keep the device busy."""
        end = time.monotonic() + 60
        while time.monotonic() < end:
            before = [m.fill_async(bytearray(1 << 20), 1) for _ in range(8)]
            job = m.fill_async(dst := bytearray(60_000), 7)
            if notifier.watch(job, token):
                return job, dst, before
        self.fail("no job was in flight for long enough")

    def test_a_watched_job_can_be_waited_for_and_dropped(self):
        with mover() as m:
            notifier = _telpher._Notifier()
            job, dst, _ = self.watched(m, notifier, 1)
            self.assertFalse(notifier.watch(job, 2))
            self.assertIsNone(job.result(60))
            self.assertEqual(select.select([notifier], [], [], 60)[0], [notifier])
            self.assertEqual(notifier.ended(), [1])
            self.assertEqual((dst.count(7), job.result(), job.via, repr(job)), (len(dst), None, "device", "<telpher.Job: done>"))
            job, *_ = self.watched(m, notifier, 3)
            del job
            gc.collect()
            m.drain()
            self.assertEqual(notifier.ended(), [])

    def test_threads_and_looks_do_not_disturb_each_other_at_a_watched_job(self):
        with mover() as m:
            notifier = _telpher._Notifier()
            job, dst, _ = self.watched(m, notifier, 1)
            with ThreadPoolExecutor(4) as pool:
                ends = [pool.submit(job.result, 60) for _ in range(4)]
                while not job.done():
                    self.assertIsNone(job.via)
                self.assertEqual([end.result(60) for end in ends], [None] * 4)
            self.assertEqual(dst.count(7), len(dst))

    def test_a_watched_job_is_awaited_by_several_tasks_and_again(self):
        polls = []

        class Notifier:
            """Reports the ends only when the test says so."""

            def __init__(self):
                self.inner = _telpher._Notifier()
                self.fileno, self.watch = self.inner.fileno, self.inner.watch

            def ended(self):
                return self.inner.ended() if polls else []

        async def main():
            with mover() as m:
                notifier = Notifier()
                job, dst, _ = self.watched(m, notifier, 1)
                poller = _await._poller()
                poller.notifier = notifier
                self.assertTrue(poller.listen())
                poller.tokens[job] = 1
                poller.watched[1] = None, set()
                futures = [poller.add(job) for _ in range(3)]
                poller.forget(job, futures[0])
                self.assertEqual((poller.jobs, poller.watched[1][1]), ({}, set(futures[1:])))
                # Looked at between its end and the report.
                self.assertIsNone(job.result(60))
                polls.append(True)
                await asyncio.wait_for(asyncio.gather(*futures[1:]), 60)
                self.assertEqual((dst.count(7), poller.watched), (len(dst), {}))

        asyncio.run(main())

    def test_a_cancelled_tasks_job_continues(self):
        async def main():
            with mover() as m:
                # Retried until a job was cancelled in time; others end before. The longest length of one descriptor. Jobs
                # in front of it keep the device busy while the task begins.
                for _ in range(300):
                    dst = bytearray(1_000_000)
                    before = [m.fill_async(bytearray(1_000_000), 1) for _ in range(8)]
                    task = asyncio.create_task(self.awaited(m.fill_async(dst, 5)))
                    await asyncio.sleep(0)
                    task.cancel()
                    ended = await asyncio.gather(task, return_exceptions=True)
                    del task, before
                    m.drain()
                    self.assertEqual(dst.count(5), len(dst))
                    if isinstance(ended[0], asyncio.CancelledError):
                        return
                self.fail("no job was cancelled under way")

        asyncio.run(main())

    def test_threads_share_one_mover(self):
        with mover() as m:
            failures = []

            def work(seed):
                rng = np.random.default_rng(seed)
                for _ in range(100):
                    src = rng.integers(0, 256, int(rng.integers(1, 30_000)), dtype=np.uint8)
                    dst = np.zeros_like(src)
                    m.copy(src, dst)
                    if not (src == dst).all():
                        failures.append(seed)

            threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
            [thread.start() for thread in threads]
            [thread.join() for thread in threads]
            self.assertEqual(failures, [])

    def test_a_batch_returns_results_in_order(self):
        with mover() as m:
            batch = m.batch()
            src, dst = bytes([9]) * 5000, bytearray(5000)
            self.assertEqual(batch.copy(src, dst), 0)
            batch.fence()
            self.assertEqual(batch.crc(dst), 1)
            batch.copy(bytes(3), bytearray(4))
            batch.fence()
            batch.fill(bytearray(8), 1)
            self.assertEqual(len(batch), 4)
            job = batch.submit()
            first, checksum, wrong, abandoned = job.result()
            self.assertIsNone(first)
            self.assertEqual(checksum, m.crc(src))
            self.assertIsInstance(wrong, ValueError)
            self.assertIsInstance(abandoned, telpher.JobFailed)
            self.assertIn("abandoned at a fence because member 2", str(abandoned))
            self.assertEqual(len(job.via), 4)
            with self.assertRaisesRegex(ValueError, "submitted"):
                batch.fence()

    def test_a_closed_mover_finishes_its_jobs_and_starts_none(self):
        m = mover()
        job = m.copy_async(bytes([1]) * (1 << 20), dst := bytearray(1 << 20))
        m.close()
        self.assertTrue(m.closed)
        job.result()
        self.assertEqual(dst.count(1), 1 << 20)
        with self.assertRaisesRegex(ValueError, "closed"):
            m.copy(b"", bytearray())
        m.close()

    def test_a_bad_timeout_is_refused(self):
        with mover() as m:
            with self.assertRaisesRegex(ValueError, "seconds"):
                m.crc_async(b"").result(timeout=-1)


class Opening(unittest.TestCase):
    def test_an_unknown_device_lists_the_accepted_ones(self):
        with self.assertRaisesRegex(ValueError, "accepted: cpu, model:spr"):
            telpher.Mover("gpu")

    def test_a_missing_device_is_an_open_error(self):
        with self.assertRaises(telpher.OpenError) as caught:
            telpher.Mover("hw:wq97.3")
        self.assertGreater(len(str(caught.exception)), 20)

    def test_all_works_without_a_device(self):
        with telpher.Mover() as m:
            self.assertEqual(m.crc(b"123456789"), 0xE3069283)

    def test_an_unknown_setting_lists_the_accepted_ones(self):
        with self.assertRaisesRegex(ValueError, "threshold"):
            telpher.Mover("cpu", treshold=1)
        with self.assertRaises(ValueError):
            telpher.Mover("cpu", threshold="much")
        self.assertIn("threshold", telpher.SETTINGS)

    def test_the_queues_of_a_device_are_listed(self):
        with telpher.Mover("model:spr") as m:
            queue = m.queues[0]
            self.assertEqual(queue["name"], "wq0.0")
            self.assertIn("memory-move", queue["operations"])


def python(program, **options):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60, **options
    )


class Ends(unittest.TestCase):
    def test_the_interpreter_can_end_with_jobs_in_flight(self):
        for _ in range(5):
            ended = python(
                """
                import telpher
                m = telpher.Mover("model:spr", threaded=True, threshold=0)
                keep = [m.fill_async(bytearray(4 << 20), 1) for _ in range(8)]
                m.fill_async(bytearray(4 << 20), 1)
                print("end")
                """
            )
            self.assertEqual((ended.returncode, ended.stdout), (0, "end\n"), ended.stderr)

    def test_the_interpreter_can_end_with_watched_jobs_in_flight(self):
        for _ in range(5):
            ended = python(
                """
                import telpher
                from telpher import _telpher
                m = telpher.Mover("model:spr", threaded=True, threshold=0)
                notifier = _telpher._Notifier()
                keep = [m.fill_async(bytearray(4 << 20), 1) for _ in range(8)]
                for token, job in enumerate(keep):
                    notifier.watch(job, token)
                print("end")
                """
            )
            self.assertEqual((ended.returncode, ended.stdout), (0, "end\n"), ended.stderr)

    def test_the_interpreter_stops_its_notifiers_before_it_ends(self):
        # A handler that was registered before telpher's runs after it.
        ended = python(
            """
            import atexit, os, time
            def threads():
                names = []
                for task in os.listdir("/proc/self/task"):
                    try:
                        names.append(open(f"/proc/self/task/{task}/comm").read().strip())
                    except (FileNotFoundError, ProcessLookupError):
                        pass  # it has ended meanwhile
                return names.count("telpher-notify")
            def last():
                from telpher import _telpher
                try:
                    _telpher._Notifier()
                except OSError:
                    print("refused")
                # The kernel lists a thread for a moment after its end.
                limit = time.monotonic() + 60
                while threads() and time.monotonic() < limit:
                    pass
                print(threads(), job.result(50), len(dst) == dst.count(7))
            atexit.register(last)
            import telpher
            from telpher import _telpher
            m = telpher.Mover("model:spr", threaded=True, threshold=0)
            def first():
                # The thread gives itself its name after it has started.
                limit = time.monotonic() + 60
                while not threads() and time.monotonic() < limit:
                    pass
                print(threads())
            atexit.register(first)
            jobs, notifier = [], _telpher._Notifier()
            while not jobs or not notifier.watch(jobs[-1][0], 1):
                jobs.append((m.fill_async(dst := bytearray(8 << 20), 7), dst))
            job, dst = jobs[-1]
            """
        )
        self.assertEqual((ended.returncode, ended.stderr), (0, ""))
        self.assertEqual(ended.stdout, "1\nrefused\n0 None True\n")

    def test_a_waiting_thread_does_not_block_the_interpreters_end(self):
        ended = python(
            """
            import telpher, threading
            m = telpher.Mover("model:spr", threaded=True, threshold=0)
            def work():
                while True:
                    m.copy(bytes(100_000), bytearray(100_000))
            threading.Thread(target=work, daemon=True).start()
            m.copy(bytes(100_000), bytearray(100_000))
            """
        )
        self.assertEqual(ended.returncode, 0, ended.stderr)

    def test_a_forked_child_can_move_bytes(self):
        ended = python(
            """
            import os, telpher
            m = telpher.Mover("model:spr", threaded=True, threshold=0)
            job = m.fill_async(inherited := bytearray(1 << 20), 3)
            if (child := os.fork()) == 0:
                job.result(timeout=20)
                m.copy(bytes([7]) * 100_000, dst := bytearray(100_000))
                fresh = telpher.Mover("model:spr", threshold=0)
                same = fresh.equal(dst, bytes([7]) * 100_000)
                os._exit(0 if same and inherited.count(3) == 1 << 20 else 1)
            _, status = os.waitpid(child, 0)
            job.result()
            assert inherited.count(3) == 1 << 20
            print(os.waitstatus_to_exitcode(status))
            """
        )
        self.assertEqual((ended.returncode, ended.stdout), (0, "0\n"), ended.stderr)

    def test_a_forked_child_ends_watched_jobs(self):
        ended = python(
            """
            import asyncio, os, telpher
            from telpher import _telpher
            m = telpher.Mover("model:spr", threaded=True, threshold=0)
            notifier = _telpher._Notifier()
            jobs = []
            while not jobs or not notifier.watch(jobs[-1][0], 1):
                jobs.append((m.fill_async(dst := bytearray(60_000), 3), dst))
            job, dst = jobs[-1]
            if (child := os.fork()) == 0:
                async def main():
                    await asyncio.wait_for(asyncio.gather(awaited(job), awaited(job)), 20)
                    fresh = m.fill_async(other := bytearray(60_000), 4)
                    assert not notifier.watch(fresh, 2) and notifier.ended() == []
                    await fresh
                    assert (dst.count(3), other.count(4)) == (60_000, 60_000)
                async def awaited(job):
                    return await job
                asyncio.run(main())
                os._exit(0)
            _, status = os.waitpid(child, 0)
            job.result()
            ended = notifier.ended()
            while not ended:
                ended = notifier.ended()
            print(os.waitstatus_to_exitcode(status), ended)
            """
        )
        self.assertEqual((ended.returncode, ended.stdout), (0, "0 [1]\n"), ended.stderr)

    def test_ctrl_c_is_handled_while_a_thread_waits(self):
        ended = python(
            """
            import os, signal, telpher, threading
            m = telpher.Mover("model:spr", threaded=True, threshold=0)
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
            buffer = bytearray(64 << 20)
            try:
                while True:
                    m.fill(buffer, 1)
            except KeyboardInterrupt:
                print("heard")
            """
        )
        self.assertEqual((ended.returncode, ended.stdout), (0, "heard\n"), ended.stderr)


if __name__ == "__main__":
    unittest.main()
