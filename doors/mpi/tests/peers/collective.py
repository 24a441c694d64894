"""Collective operations of an MPI program, each compared with a plain computation. Rank 0 prints a line for each part."""

from array import array

from ranks import MPI, left, rank, right, run_parts, size, world

# In elements: below the lengths that telpher takes, and around those from which it proceeds otherwise.
COUNTS = [0, 1, 100, 1024, 2048, 4099, 8192, 20_000, 100_003]
INTEGERS = {
    "b": MPI.SIGNED_CHAR, "B": MPI.UNSIGNED_CHAR, "h": MPI.SHORT, "H": MPI.UNSIGNED_SHORT, "i": MPI.INT,
    "I": MPI.UNSIGNED, "l": MPI.LONG, "L": MPI.UNSIGNED_LONG, "q": MPI.LONG_LONG, "Q": MPI.UNSIGNED_LONG_LONG,
}
FLOATS = {"f": MPI.FLOAT, "d": MPI.DOUBLE}


def numbers(code, of, count):
    """The numbers of a rank: small, and halves for floats, so that no sum is rounded."""
    values = [(i * 5 + of * 3) % 4 for i in range(16)]
    if code in FLOATS:
        values = [value / 2 - 0.5 for value in values]
    return (array(code, values) * (count // 16 + 1))[:count]


def same(got, expected, what):
    assert got == expected, (rank, what, next((i, a, b) for i, (a, b) in enumerate(zip(got, expected)) if a != b))


def fold(code, op, count, ranks=None):
    """Reduces by rank. The numbers repeat after 16."""
    ranks = range(size) if ranks is None else ranks
    columns = zip(*(numbers(code, of, 16) for of in ranks))
    values = []
    for column in columns:
        value = column[0]
        for other in column[1:]:
            value = op(value, other)
        values.append(value)
    return (array(code, values) * (count // 16 + 1))[:count]


OPERATIONS = {
    "SUM": lambda a, b: a + b,
    "PROD": lambda a, b: a * b,
    "MIN": min,
    "MAX": max,
    "BAND": lambda a, b: a & b,
    "BOR": lambda a, b: a | b,
    "BXOR": lambda a, b: a ^ b,
    "LAND": lambda a, b: int(bool(a) and bool(b)),
    "LOR": lambda a, b: int(bool(a) or bool(b)),
    "LXOR": lambda a, b: int(bool(a) != bool(b)),
}


def types_and_operations():
    for code, kind in {**INTEGERS, **FLOATS}.items():
        operations = ["SUM", "PROD", "MIN", "MAX"] if code in FLOATS else OPERATIONS
        for name in operations:
            # A product of many ranks does not fit in a byte.
            if name == "PROD" and size > 4:
                continue
            op = getattr(MPI, name)
            for count in [3, 6000]:
                mine, got = numbers(code, rank, count), array(code, bytes(count * array(code).itemsize))
                world.Allreduce([mine, kind], [got, kind], op)
                same(got, fold(code, OPERATIONS[name], count), (code, name, count))


def lengths():
    for count in COUNTS:
        total = fold("d", OPERATIONS["SUM"], count)
        mine, got = numbers("d", rank, count), array("d", bytes(8 * count))
        world.Allreduce(mine, got)
        same(got, total, ("Allreduce", count))
        got = numbers("d", rank, count)
        world.Allreduce(MPI.IN_PLACE, got)
        same(got, total, ("Allreduce in place", count))
        for root in range(size):
            got = array("d", bytes(8 * count))
            world.Reduce(mine, got if rank == root else None, root=root)
            same(got, total if rank == root else array("d", bytes(8 * count)), ("Reduce", count))
            got = numbers("d", rank, count)
            world.Reduce(MPI.IN_PLACE if rank == root else got, got if rank == root else None, root=root)
            same(got, total if rank == root else mine, ("Reduce in place", count))
            got = numbers("d", rank, count)
            world.Bcast(got, root)
            same(got, numbers("d", root, count), ("Bcast", count))
        everything = array("d")
        for of in range(size):
            everything += numbers("d", of, count)
        got = array("d", bytes(8 * count * size))
        world.Allgather(mine, got)
        same(got, everything, ("Allgather", count))
        got = array("d", bytes(8 * count * size))
        got[rank * count:(rank + 1) * count] = mine
        world.Allgather(MPI.IN_PLACE, got)
        same(got, everything, ("Allgather in place", count))


def communicators():
    """Groups of parts of the ranks, in another order, that come and go."""
    for repetition in range(5):
        part = world.Split(rank % 2, -rank)
        members = sorted(range(rank % 2, size, 2), reverse=True)
        copy = part.Dup()
        for communicator in [part, copy, part]:
            count = 5000 + repetition
            got = array("d", bytes(8 * count))
            communicator.Allreduce(numbers("d", rank, count), got)
            same(got, fold("d", OPERATIONS["SUM"], count, members), repetition)
        copy.Free()
        part.Free()
    world.Barrier()


def derived_types():
    """A rank may describe the same bytes by another type than the others."""
    count = 3000
    column = MPI.DOUBLE.Create_vector(count, 1, 2).Commit()
    ten = MPI.DOUBLE.Create_contiguous(10).Commit()
    for root in range(size):
        wide = array("d", bytes(16 * count))
        if rank == root:
            for i, value in enumerate(numbers("d", root, count)):
                wide[2 * i] = value
            world.Bcast([wide, 1, column], root)
        elif rank % 2:
            world.Bcast([wide, 1, column], root)
            same(wide[::2], numbers("d", root, count), "column")
            same(wide[1::2], array("d", bytes(8 * count)), "between")
        else:
            got = array("d", bytes(8 * count))
            world.Bcast([got, count // 10, ten], root)
            same(got, numbers("d", root, count), "tens")
    everything = array("d")
    for of in range(size):
        everything += numbers("d", of, count)
    got = array("d", bytes(8 * count * size))
    mine = array("d", bytes(16 * count))
    for i, value in enumerate(numbers("d", rank, count)):
        mine[2 * i] = value
    world.Allgather([mine, 1, column], [got, count // 10, ten])
    same(got, everything, "gathered")
    got = array("d", bytes(8 * count * size))
    got[rank * count:(rank + 1) * count] = numbers("d", rank, count)
    world.Allgather(MPI.IN_PLACE, [got, count // 10, ten])
    same(got, everything, "gathered in place")
    column.Free()
    ten.Free()


def own_operations():
    """Operations and types that the MPI has to reduce."""
    count = 5000

    def first(a, b, _):
        b[:] = a[:]

    op = MPI.Op.Create(first, commute=False)
    got = array("d", bytes(8 * count))
    world.Allreduce(numbers("d", rank, count), got, op)
    same(got, numbers("d", 0, count), "first")
    op.Free()
    pairs = array("i", [value for i in range(count) for value in ((i + rank) % size, rank)])
    got = array("i", bytes(8 * count))
    world.Allreduce([pairs, count, MPI.INT_INT], [got, count, MPI.INT_INT], MPI.MINLOC)
    same(got, array("i", [value for i in range(count) for value in (0, -i % size)]), "MINLOC")


def messages_move_meanwhile():
    """A long message that one rank has started must arrive while that rank waits in an AllReduce."""
    length = 8 << 20
    got = array("d", bytes(8 * 5000))
    if rank == 0:
        requests = [world.Isend(bytes([to]) * length, to, 9) for to in range(1, size)]
    else:
        message = bytearray(length)
        world.Recv(message, 0, 9)
        assert message == bytes([rank]) * length
    world.Allreduce(numbers("d", rank, 5000), got)
    same(got, fold("d", OPERATIONS["SUM"], 5000), "sum")
    if rank == 0:
        MPI.Request.Waitall(requests)


def between_groups():
    """Collective operations of an intercommunicator."""
    part = world.Split(rank % 2, rank)
    both = part.Create_intercomm(0, world, 1 - rank % 2, 3)
    got = array("d", bytes(8 * 5000))
    both.Allreduce(numbers("d", rank, 5000), got)
    same(got, fold("d", OPERATIONS["SUM"], 5000, range(1 - rank % 2, size, 2)), "other group")
    both.Free()
    part.Free()


def errors():
    """The MPI still reports wrong arguments."""
    world.Set_errhandler(MPI.ERRORS_RETURN)
    data = array("d", bytes(80_000))
    for wrong in [lambda: world.Bcast(data, size + 3), lambda: world.Allreduce(data, array("d", data), MPI.OP_NULL)]:
        try:
            wrong()
            raise AssertionError("no error")
        except MPI.Exception:
            pass
    world.Set_errhandler(MPI.ERRORS_ARE_FATAL)


run_parts([
    types_and_operations, lengths, communicators, derived_types, own_operations, messages_move_meanwhile, between_groups,
    errors,
])
