"""Copies an array and its checksum in one pass, then checks the copy."""

import sys

import numpy as np
import telpher

with telpher.Mover(sys.argv[1] if len(sys.argv) > 1 else "model:spr", threshold="4k") as mover:
    src = np.random.default_rng(0).integers(0, 256, 1 << 20, dtype=np.uint8)
    dst = np.empty_like(src)
    checksum = mover.copy_crc(src, dst)
    assert mover.crc(dst) == checksum and mover.equal(src, dst)
    print(f"copied {src.nbytes} bytes on {mover.device}, CRC32C {checksum:#010x}")
