"""Lets tasks wait for jobs. A device does not notify a loop, so one poller per event loop polls the jobs of all its tasks."""

import asyncio
import threading
import weakref
from itertools import islice

# Pauses after polls that found no ended job, in seconds. At first the poller only yields to the loop's other tasks, because most
# jobs end that soon. Source: assumed; a turn of an idle loop takes some ten microseconds, a loop's timer is not much finer than the first
# non-zero pause, and the last pause costs a thousand polls per second.
_PAUSES = (0,) * 16 + (50e-6, 100e-6, 200e-6, 400e-6, 800e-6, 1e-3)

# The oldest jobs are polled every turn, all jobs only every `_ALL` turns. Jobs start in order, so those in the devices are nearly
# always the oldest, and polling ten thousand costs milliseconds. Source: assumed; more than most devices hold.
_OLDEST, _ALL = 256, 16

_here = threading.local()


class _Poller:
    """Polls the jobs that tasks of one event loop await; each job has the future on which its task sleeps."""

    def __init__(self, loop):
        self.loop = loop
        self.jobs = {}
        self.idle_polls = self.turn = 0
        self.next = self.pause = None

    def add(self, job):
        future = self.loop.create_future()
        self.jobs[future] = job
        self.idle_polls = 0
        if self.next is not None and self.pause:
            self.next.cancel()
            self.next = None
        if self.next is None:
            self.schedule()
        return future

    def schedule(self):
        self.pause = _PAUSES[min(self.idle_polls, len(_PAUSES) - 1)]
        self.next = self.loop.call_later(self.pause, self.poll) if self.pause else self.loop.call_soon(self.poll)

    def poll(self):
        self.turn += 1
        jobs = list(islice(self.jobs.items(), _OLDEST if self.turn % _ALL else None))
        ended = [future for future, job in jobs if job.done()]
        for future in ended:
            self.jobs.pop(future, None)
            if not future.done():
                future.set_result(None)
        self.idle_polls = 0 if ended else self.idle_polls + 1
        self.next = None
        if self.jobs:
            self.schedule()


def _poller():
    """The poller of the running loop. Only its scheduled call keeps it alive, so a closed loop releases it and its jobs."""
    loop = asyncio.get_running_loop()
    poller = getattr(_here, "poller", lambda: None)()
    if poller is None or poller.loop is not loop:
        poller = _Poller(loop)
        _here.poller = weakref.ref(poller)
    return poller


async def drive(job):
    """Awaits the job and returns or raises its result. If the task is cancelled, the job continues."""
    if not job.done():
        poller = _poller()
        future = poller.add(job)
        try:
            await future
        finally:
            poller.jobs.pop(future, None)
    return job.result()
