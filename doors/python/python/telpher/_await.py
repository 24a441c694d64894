"""How a task waits for a job: a device tells nobody that it is done, so somebody has to look."""

import asyncio

# Looks in turn with the loop's other tasks before the task sleeps at all: most jobs are done by then.
# Source: assumed; a turn of an idle loop takes some ten microseconds, longer than a small job.
_TURNS = 16
# The first sleep and the longest, in seconds. Source: assumed; a loop's timer is not much finer than the first, and the longest
# costs a thousand looks a second.
_FIRST, _LONGEST = 50e-6, 1e-3


async def drive(job):
    """Awaits the job and returns or raises its result. If the task is cancelled, the job goes on."""
    for _ in range(_TURNS):
        if job.done():
            return job.result()
        await asyncio.sleep(0)
    pause = _FIRST
    while not job.done():
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LONGEST)
    return job.result()
