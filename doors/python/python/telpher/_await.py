"""Lets tasks wait for jobs. One poller per event loop polls new jobs for some turns, because most end that soon. The others go to a
notifier, whose thread makes a file descriptor readable when they end, so that the loop sleeps meanwhile."""

import asyncio
import threading
import weakref
from itertools import count, islice

from ._telpher import Job, _Notifier

# Polls in which no job has ended before jobs go to the notifier. Source: assumed; a turn of an idle loop takes some ten microseconds,
# and so does the way through the notifier's thread.
_POLLS = 16

# Pauses after further such polls, in seconds, for what a notifier cannot watch: blocks of a cache, and jobs that a thread waits for.
# Source: assumed; a loop's timer is not much finer than the first one, and the last costs a thousand polls per second.
_PAUSES = (50e-6, 100e-6, 200e-6, 400e-6, 800e-6, 1e-3)

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
        # The futures of watched jobs by their tokens, and the reverse. While there is one, the loop's reader keeps this object alive.
        self.notifier = None
        self.numbers = count()
        self.watched = {}
        self.tokens = {}

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
        idle = self.idle_polls - _POLLS
        self.pause = 0 if idle < 0 else _PAUSES[min(idle, len(_PAUSES) - 1)]
        self.next = self.loop.call_later(self.pause, self.poll) if self.pause else self.loop.call_soon(self.poll)

    def poll(self):
        self.turn += 1
        jobs = list(islice(self.jobs.items(), _OLDEST if self.turn % _ALL else None))
        ended = [future for future, job in jobs if job.done()]
        for future in ended:
            self.jobs.pop(future, None)
            self.wake(future)
        self.idle_polls = 0 if ended else self.idle_polls + 1
        self.next = None
        if self.idle_polls == _POLLS:
            self.watch()
        if self.jobs:
            self.schedule()

    @staticmethod
    def wake(future):
        if not future.done():
            future.set_result(None)

    def watch(self):
        """Gives the jobs to the notifier, as far as it can watch them. Without a notifier, or in a loop without readers, they are polled."""
        if self.notifier is None:
            try:
                self.notifier = _Notifier()
            except OSError:
                return
        if not self.watched:
            try:
                self.loop.add_reader(self.notifier.fileno(), self.ended)
            except NotImplementedError:
                return
        for future, job in list(self.jobs.items()):
            token = next(self.numbers)
            if isinstance(job, Job) and self.notifier.watch(job, token):
                self.watched[token] = future
                self.tokens[future] = token
                del self.jobs[future]
        self.rest()

    def ended(self):
        """Called by the loop when the notifier's descriptor is readable."""
        for token in self.notifier.ended():
            future = self.watched.pop(token, None)
            if future is not None:
                del self.tokens[future]
                self.wake(future)
        self.rest()

    def rest(self):
        """Ends the loop's reader if no job is watched."""
        if not self.watched and not self.loop.is_closed():
            self.loop.remove_reader(self.notifier.fileno())

    def forget(self, future):
        """Called when a task does not wait any more."""
        self.jobs.pop(future, None)
        token = self.tokens.pop(future, None)
        if token is not None:
            del self.watched[token]
            self.rest()


def _poller():
    """The poller of the running loop. Only its scheduled call or its reader keeps it alive, so a closed loop releases it and its jobs."""
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
            poller.forget(future)
    return job.result()
