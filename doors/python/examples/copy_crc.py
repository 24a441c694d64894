"""Copies an array and computes its CRC32C in the same pass, while the program does other work."""

import sys

import numpy as np
import telpher

with telpher.Mover(sys.argv[1] if len(sys.argv) > 1 else "model:spr", threshold="16k") as mover:
    src = (7 * np.arange(1 << 20)).astype(np.uint8)
    dst = np.zeros_like(src)
    job = mover.copy_crc_async(src, dst)

    # The job holds both arrays until it has ended. The program can do other work meanwhile.
    while not job.done():
        pass

    equal = "equal" if (src == dst).all() else "different"
    print(f"{src.nbytes} bytes, CRC32C {job.result():08x}, {equal}")
