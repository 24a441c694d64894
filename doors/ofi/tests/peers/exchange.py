"""Messages between the ranks of an MPI program, each checked. Rank 0 prints a line for each part."""

from array import array

from ranks import MPI, filled, left, rank, right, run_parts, size, world

# Around the lengths from which messages travel differently.
LENGTHS = [0, 1, 8, 31, 32, 33, 100, 4096, 8191, 8192, 8193, 16384, 65536, 100_001, 1 << 20, 5_000_000]


def in_rings():
    for length in LENGTHS:
        got = bytearray(length)
        world.Sendrecv(filled(length, rank), right, 5, got, left, 5)
        assert got == filled(length, left), length


def storms():
    """All sends first: nothing may wait for a receive."""
    for length in [8, 5000, 9000, 65536]:
        for count in [1, 2, 64]:
            sent = [filled(length, rank + i) for i in range(count)]
            requests = [world.Isend(sent[i], right, i) for i in range(count)]
            got = [bytearray(length) for _ in range(count)]
            order = list(range(count))
            if count == 64:
                order.reverse()
            requests += [world.Irecv(got[i], left, i) for i in order]
            MPI.Request.Waitall(requests)
            assert all(got[i] == filled(length, left + i) for i in range(count)), (length, count)


def probes():
    status = MPI.Status()
    for tag, length in enumerate(LENGTHS):
        request = world.Isend(filled(length, rank), right, tag)
        world.Probe(MPI.ANY_SOURCE, MPI.ANY_TAG, status)
        assert (status.Get_source(), status.Get_tag(), status.Get_count()) == (left, tag, length)
        message = world.Mprobe(left, tag, status)
        # A claimed message is found by no other probe.
        assert not world.Iprobe(left, tag)
        got = bytearray(length)
        message.Recv(got)
        assert got == filled(length, left), length
        request.Wait()


def synchronous():
    for length in [0, 100, 100_000]:
        got = bytearray(length)
        request = world.Irecv(got, left, 3)
        world.Ssend(filled(length, rank), right, 3)
        request.Wait()
        assert got == filled(length, left)


def from_any_source():
    if rank == 0:
        seen = set()
        for _ in range(size - 1):
            got, status = bytearray(20_000), MPI.Status()
            world.Recv(got, MPI.ANY_SOURCE, 4, status)
            assert got == filled(20_000, status.Get_source())
            seen.add(status.Get_source())
        assert seen == set(range(1, size))
    else:
        world.Send(filled(20_000, rank), 0, 4)


def to_itself():
    for length in LENGTHS:
        got = bytearray(length)
        request = world.Irecv(got, rank, 6)
        world.Send(filled(length, 1), rank, 6)
        request.Wait()
        assert got == filled(length, 1), length


def truncated():
    """A message that is too long is an error of the receive, and later messages arrive."""
    world.Set_errhandler(MPI.ERRORS_RETURN)
    for length in [100, 8192, 100_000]:
        got = bytearray(length // 2)
        request = world.Irecv(got, left, 8)
        sent = world.Isend(filled(length, rank), right, 8)
        try:
            request.Wait()
            raise AssertionError("no error")
        except MPI.Exception as error:
            assert error.Get_error_class() == MPI.ERR_TRUNCATE, error
        sent.Wait()
        in_rings()
    world.Set_errhandler(MPI.ERRORS_ARE_FATAL)


def canceled():
    request = world.Irecv(bytearray(8), left, 77)
    request.Cancel()
    status = MPI.Status()
    request.Wait(status)
    assert status.Is_cancelled()


def collective():
    for count in [1, 100, 5000, 200_000]:
        mine, total = array("d", range(rank, rank + count)), array("d", bytes(8 * count))
        world.Allreduce(mine, total)
        assert all(total[i] == size * i + size * (size - 1) / 2 for i in range(0, count, max(1, count // 50)))
        sent = array("i", [rank * size + to for to in range(size) for _ in range(count)])
        got = array("i", bytes(4 * count * size))
        world.Alltoall(sent, got)
        assert all(got[of * count] == of * size + rank for of in range(size))
        all_of_them = array("d", bytes(8 * count * size))
        world.Allgather(mine, all_of_them)
        assert all(all_of_them[of * count] == of for of in range(size))
        data = array("d", range(count)) if rank == 0 else array("d", bytes(8 * count))
        world.Bcast(data)
        assert data[-1] == count - 1
    for _ in range(200):
        world.Barrier()


def split_communicators():
    for _ in range(5):
        part = world.Split(rank % 2, -rank)
        assert part.allreduce(1) == len(range(rank % 2, size, 2))
        assert part.allgather(rank) == sorted(range(rank % 2, size, 2), reverse=True)
        copy = world.Dup()
        # The same tag in two communicators.
        requests = [world.isend("world", right, 1), copy.isend("copy", right, 1)]
        assert copy.recv(source=left, tag=1) == "copy"
        assert world.recv(source=left, tag=1) == "world"
        MPI.Request.Waitall(requests)
        copy.Free()
        part.Free()


run_parts([
    in_rings, storms, probes, synchronous, from_any_source, to_itself, canceled, collective, split_communicators,
    truncated,
])
