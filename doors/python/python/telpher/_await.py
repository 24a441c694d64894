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
    """Polls the jobs that tasks of one event loop await; each job has the futures on which its tasks sleep."""

    def __init__(self, loop):
        self.loop = loop
        self.jobs = {}
        self.idle_polls = self.turn = 0
        self.next = self.pause = None
        # The tokens of watched jobs, and for each token a weak reference to the job and the futures. A job stays here until it has
        # ended, also if no task awaits it any more. While there is one, the loop's reader keeps this object alive.
        self.notifier = None
        self.numbers = count()
        self.tokens = weakref.WeakKeyDictionary()
        self.watched = {}

    def add(self, job):
        future = self.loop.create_future()
        if (token := self.token(job)) is not None:
            self.watched[token][1].add(future)
            return future
        self.jobs.setdefault(job, set()).add(future)
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
        ended = [job for job, _ in jobs if job.done()]
        for job in ended:
            self.wake(self.jobs.pop(job, ()))
        self.idle_polls = 0 if ended else self.idle_polls + 1
        self.next = None
        if self.idle_polls == _POLLS:
            self.watch()
        if self.jobs:
            self.schedule()

    @staticmethod
    def wake(futures):
        for future in futures:
            if not future.done():
                future.set_result(None)

    def watch(self):
        """Gives the jobs to the notifier, as far as it can watch them. Without a notifier, or in a loop without readers, they are polled."""
        if self.notifier is None:
            try:
                self.notifier = _Notifier()
            except OSError:
                return
        if not self.listen():
            return
        for job in list(self.jobs):
            token = next(self.numbers)
            if isinstance(job, Job) and self.notifier.watch(job, token):
                self.tokens[job] = token
                # The end of a job that was freed before is not reported.
                freed = weakref.ref(job, lambda _, token=token: self.watched.pop(token, None))
                self.watched[token] = freed, self.jobs.pop(job)
        self.rest()

    def listen(self):
        """Lets the loop read the notifier's descriptor. False if the loop has no readers."""
        if not self.watched:
            try:
                self.loop.add_reader(self.notifier.fileno(), self.ended)
            except NotImplementedError:
                return False
        return True

    def ended(self):
        """Called by the loop when the notifier's descriptor is readable."""
        for token in self.notifier.ended():
            _, futures = self.watched.pop(token, (None, ()))
            self.wake(futures)
        self.rest()

    def rest(self):
        """Ends the loop's reader if no job is watched."""
        if not self.watched and not self.loop.is_closed():
            self.loop.remove_reader(self.notifier.fileno())

    def token(self, job):
        """The token of a job that is watched and has not been reported."""
        token = self.tokens.get(job) if isinstance(job, Job) else None
        return token if token in self.watched else None

    def forget(self, job, future):
        """Called when a task does not wait any more."""
        if (token := self.token(job)) is not None:
            self.watched[token][1].discard(future)
        futures = self.jobs.get(job, set())
        futures.discard(future)
        if not futures:
            self.jobs.pop(job, None)


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
            poller.forget(job, future)
    return job.result()
