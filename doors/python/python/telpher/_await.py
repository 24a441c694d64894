"""How tasks wait for jobs: a device tells nobody that it is done, so somebody has to look, for all tasks of a loop at once."""

import asyncio
import threading
import weakref
from itertools import islice

# Pauses between looks that find nothing new, in seconds: in turn with the loop's other tasks at first, because most jobs are done
# by then. Source: assumed; a turn of an idle loop takes some ten microseconds, a loop's timer is not much finer than the first
# pause, and the last costs a thousand looks a second.
_PAUSES = (0,) * 16 + (50e-6, 100e-6, 200e-6, 400e-6, 800e-6, 1e-3)

# The oldest jobs are looked at every turn, all only every so many turns: jobs are begun in their order, so what devices have in hand
# is nearly always in front, and a look at ten thousand costs milliseconds. Source: assumed; more than most devices take.
_OLDEST, _ALL = 256, 16

_here = threading.local()


class _Watch:
    """The jobs that tasks of one loop await, each with the future its task sleeps on."""

    def __init__(self, loop):
        self.loop = loop
        self.jobs = {}
        self.futile = self.turn = 0
        self.next = self.pause = None

    def add(self, job):
        future = self.loop.create_future()
        self.jobs[future] = job
        self.futile = 0
        if self.next is not None and self.pause:
            self.next.cancel()
            self.next = None
        if self.next is None:
            self.plan()
        return future

    def plan(self):
        self.pause = _PAUSES[min(self.futile, len(_PAUSES) - 1)]
        self.next = self.loop.call_later(self.pause, self.look) if self.pause else self.loop.call_soon(self.look)

    def look(self):
        self.turn += 1
        jobs = list(islice(self.jobs.items(), _OLDEST if self.turn % _ALL else None))
        ended = [future for future, job in jobs if job.done()]
        for future in ended:
            self.jobs.pop(future, None)
            if not future.done():
                future.set_result(None)
        self.futile = 0 if ended else self.futile + 1
        self.next = None
        if self.jobs:
            self.plan()


def _watch():
    """The watch of the loop that runs here. Only what it has planned keeps it, so a closed loop lets go of it and its jobs."""
    loop = asyncio.get_running_loop()
    watch = getattr(_here, "watch", lambda: None)()
    if watch is None or watch.loop is not loop:
        watch = _Watch(loop)
        _here.watch = weakref.ref(watch)
    return watch


async def drive(job):
    """Awaits the job and returns or raises its result. If the task is cancelled, the job goes on."""
    if not job.done():
        watch = _watch()
        future = watch.add(job)
        try:
            await future
        finally:
            watch.jobs.pop(future, None)
    return job.result()
