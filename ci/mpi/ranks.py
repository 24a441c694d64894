"""What the MPI programs of the tests have in common. The tests set PYTHONPATH to this folder."""

from mpi4py import MPI

world = MPI.COMM_WORLD
rank, size = world.rank, world.size
right, left = (rank + 1) % size, (rank - 1) % size


def filled(length, seed):
    """Returns bytes that differ between messages."""
    return (bytes((i * 7 + seed) & 255 for i in range(256)) * (length // 256 + 1))[:length]


def run_parts(parts):
    """Runs each part. Rank 0 prints its name after all ranks have finished it."""
    for part in parts:
        part()
        world.Barrier()
        if rank == 0:
            print(part.__name__, flush=True)
