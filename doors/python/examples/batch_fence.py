"""Saves a page only if it has changed, as one batch: the fence lets the copy through only behind a finished fill."""

import sys

import telpher

with telpher.Mover(sys.argv[1] if len(sys.argv) > 1 else "model:spr", threshold=0) as mover:
    page, shadow, header = bytearray(b"new" * 1366), bytearray(4098), bytearray(64)
    batch = mover.batch()
    batch.fill(header, 0xFF)
    batch.copy(page, shadow)
    batch.fence()
    batch.crc(shadow)
    _, _, checksum = batch.submit().result()
    assert shadow == page and header == b"\xff" * 64
    print(f"saved {len(page)} bytes, CRC32C {checksum:#010x}")
