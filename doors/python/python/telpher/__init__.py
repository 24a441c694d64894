"""Move and transform memory without the CPU.

Uses Intel's Data Streaming Accelerator where the machine has one, a complete software model of it anywhere else, and the CPU for
operations too short for a descriptor:

>>> import telpher
>>> with telpher.Mover("model:spr") as mover:
...     src, dst = bytes(range(256)) * 256, bytearray(65536)
...     checksum = mover.copy_crc(src, dst)
>>> dst == src
True

Every operation takes any object with the buffer protocol and contiguous bytes: ``bytes``, ``bytearray``, ``memoryview``,
``array.array``, ``mmap``, NumPy arrays of any type. While an operation runs, other Python threads run too. Each operation has a
variant whose name ends in ``_async``; it returns a ``Job``, which can be awaited, or waited for with its ``result()``.
"""

from ._telpher import (
    SETTINGS,
    Arithmetic,
    Batch,
    Block,
    Cache,
    Delta,
    DifConfig,
    DifResult,
    DurableFile,
    Error,
    Grant,
    Job,
    JobFailed,
    Mover,
    OpenError,
    Pool,
    Prefetch,
    Reading,
    Tags,
    Versioned,
    Window,
    WriteBack,
    Writing,
    __version__,
)

__all__ = [
    "SETTINGS",
    "Arithmetic",
    "Batch",
    "Block",
    "Cache",
    "Delta",
    "DifConfig",
    "DifResult",
    "DurableFile",
    "Error",
    "Grant",
    "Job",
    "JobFailed",
    "Mover",
    "OpenError",
    "Pool",
    "Prefetch",
    "Reading",
    "Tags",
    "Versioned",
    "Window",
    "WriteBack",
    "Writing",
    "__version__",
]
