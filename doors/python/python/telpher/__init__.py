"""Move and transform memory without the CPU.

Intel's Data Streaming Accelerator where there is one, a complete software model of it anywhere, and the CPU for what is not worth
a descriptor:

>>> import telpher
>>> with telpher.Mover("model:spr") as mover:
...     src, dst = bytes(range(256)) * 256, bytearray(65536)
...     checksum = mover.copy_crc(src, dst)
>>> dst == src
True

Every operation takes anything with the buffer protocol whose bytes lie in one piece: ``bytes``, ``bytearray``, ``memoryview``,
``array.array``, ``mmap``, NumPy arrays of any type. While an operation runs, other Python threads do too. Each has a twin whose
name ends in ``_async``; it returns a ``Job``, which can be awaited, or asked for its ``result()``.
"""

from ._telpher import (
    SETTINGS,
    Batch,
    Block,
    Cache,
    Delta,
    DifConfig,
    DifResult,
    Error,
    Job,
    JobFailed,
    Mover,
    OpenError,
    Prefetch,
    Tags,
    __version__,
)

__all__ = [
    "SETTINGS",
    "Batch",
    "Block",
    "Cache",
    "Delta",
    "DifConfig",
    "DifResult",
    "Error",
    "Job",
    "JobFailed",
    "Mover",
    "OpenError",
    "Prefetch",
    "Tags",
    "__version__",
]
