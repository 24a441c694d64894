"""One-sided operations between the ranks of an MPI program, each checked. Rank 0 prints a line for each part.

Buffers have names, since MPI uses them until the next synchronisation.
"""

import sys
from array import array

from ranks import MPI, filled, left, rank, right, run_parts, size, world

# Around the lengths from which accesses travel differently.
LENGTHS = [0, 1, 8, 24, 25, 33, 4096, 8192, 8193, 16384, 16385, 100_001, 1 << 20]
LONGEST = 1 << 20


def put_own(window, *numbers):
    """Sets numbers of this rank's own memory."""
    words = array("q", numbers)
    window.Lock(rank)
    window.Put([words, MPI.INT64_T], rank, [0, len(words), MPI.INT64_T])
    window.Unlock(rank)


def word(window, at=0):
    """Returns a number of this rank's own memory, as the window has it."""
    got = array("q", [0])
    window.Lock(rank)
    window.Get([got, MPI.INT64_T], rank, [at, 1, MPI.INT64_T])
    window.Unlock(rank)
    return got[0]


def put_and_get_between_fences():
    window = MPI.Win.Allocate(LONGEST, 1, comm=world)
    memory = window.tomemory()
    for seed, length in enumerate(LENGTHS):
        memory[:] = bytes(LONGEST)
        sent = filled(length, rank + seed)
        window.Fence()
        window.Put([sent, MPI.BYTE], right, [0, length, MPI.BYTE])
        window.Fence()
        assert bytes(memory[:length]) == filled(length, left + seed), length
        got = bytearray(length)
        window.Fence()
        window.Get([got, MPI.BYTE], right, [0, length, MPI.BYTE])
        window.Fence()
        assert got == sent, length
    window.Free()


def put_and_get_under_locks():
    """The target makes no calls for the window meanwhile, except for the barrier."""
    memory = bytearray(LONGEST)
    window = MPI.Win.Create(memory, 1, comm=world)
    for seed, length in enumerate(LENGTHS):
        sent = filled(length, rank + seed)
        window.Lock(right, MPI.LOCK_EXCLUSIVE)
        window.Put([sent, MPI.BYTE], right, [0, length, MPI.BYTE])
        window.Flush(right)
        got = bytearray(length)
        window.Get([got, MPI.BYTE], right, [0, length, MPI.BYTE])
        window.Flush(right)
        assert got == sent, length
        window.Unlock(right)
        world.Barrier()
        assert memory[:length] == filled(length, left + seed), length
        world.Barrier()
    window.Free()


def requests_end_when_they_are_waited_for():
    window = MPI.Win.Allocate(64 * 1000, 1, comm=world)
    window.Lock_all()
    sent = [filled(1000, rank + i) for i in range(64)]
    requests = [window.Rput([sent[i], MPI.BYTE], right, [1000 * i, 1000, MPI.BYTE]) for i in range(64)]
    MPI.Request.Waitall(requests)
    window.Flush_all()
    got = [bytearray(1000) for _ in range(64)]
    requests = [window.Rget([got[i], MPI.BYTE], right, [1000 * i, 1000, MPI.BYTE]) for i in range(64)]
    MPI.Request.Waitall(requests)
    assert all(got[i] == sent[i] for i in range(64))
    window.Unlock_all()
    window.Free()


def every_rank_accumulates():
    for code, kind, count in [("q", MPI.INT64_T, 1), ("i", MPI.INT32_T, 100), ("d", MPI.DOUBLE, 2000)]:
        window = MPI.Win.Allocate(count * kind.Get_size(), kind.Get_size(), comm=world)
        window.Fence()
        ones, mine = array(code, [1] * count), array(code, [rank + i for i in range(count)])
        window.Put([ones, kind], rank, [0, count, kind])
        window.Fence()
        for target in range(size):
            window.Accumulate([mine, kind], target, [0, count, kind], MPI.SUM)
        window.Fence()
        got = array(code, [0] * count)
        window.Get([got, kind], rank, [0, count, kind])
        window.Fence()
        assert list(got) == [1 + size * (size - 1) // 2 + size * i for i in range(count)], kind
        before, fives = array(code, [0] * count), array(code, [5] * count)
        window.Fence()
        window.Get_accumulate([fives, kind], [before, kind], right, [0, count, kind], MPI.REPLACE)
        window.Fence()
        assert before == got
        window.Free()


def numbers_are_fetched_once():
    """All ranks draw numbers from rank 0."""
    turns = 200
    window = MPI.Win.Allocate(8 if rank == 0 else 0, 8, comm=world)
    if rank == 0:
        put_own(window, 0)
    world.Barrier()
    one, mine = array("q", [1]), []
    window.Lock_all()
    for _ in range(turns):
        got = array("q", [-1])
        window.Fetch_and_op([one, MPI.INT64_T], [got, MPI.INT64_T], 0, 0, MPI.SUM)
        window.Flush(0)
        mine.append(got[0])
    window.Unlock_all()
    assert mine == sorted(mine)
    drawn = sorted(number for of_rank in world.allgather(mine) for number in of_rank)
    assert drawn == list(range(size * turns))
    if rank == 0:
        assert word(window) == size * turns
    window.Free()


def one_rank_wins_each_comparison():
    """A lock by compare-and-swap, under which each rank changes a number by a read and a write."""
    turns = 20
    window = MPI.Win.Allocate(16 if rank == 0 else 0, 8, comm=world)
    if rank == 0:
        put_own(window, -1, 0)
    world.Barrier()
    window.Lock_all()
    free, me, seen = array("q", [-1]), array("q", [rank]), array("q", [0])
    for _ in range(turns):
        while True:
            window.Compare_and_swap([me, MPI.INT64_T], [free, MPI.INT64_T], [seen, MPI.INT64_T], 0, 0)
            window.Flush(0)
            if seen[0] == -1:
                break
        count = array("q", [0])
        window.Get([count, MPI.INT64_T], 0, [1, 1, MPI.INT64_T])
        window.Flush(0)
        count[0] += 1
        window.Put([count, MPI.INT64_T], 0, [1, 1, MPI.INT64_T])
        window.Flush(0)
        window.Compare_and_swap([free, MPI.INT64_T], [me, MPI.INT64_T], [seen, MPI.INT64_T], 0, 0)
        window.Flush(0)
        assert seen[0] == rank
    window.Unlock_all()
    world.Barrier()
    if rank == 0:
        assert word(window, 1) == size * turns
    window.Free()


PARTS = [
    put_and_get_between_fences, put_and_get_under_locks, requests_end_when_they_are_waited_for, every_rank_accumulates,
    numbers_are_fetched_once, one_rank_wins_each_comparison,
]

# The arguments are parts that are left out.
run_parts([part for part in PARTS if part.__name__ not in sys.argv])
