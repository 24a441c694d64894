"""Several operations submitted together. The members after a fence wait for those before it, and are abandoned if one of those
failed."""

import sys

import telpher

LEN = 65536


def round_of(mover, seen, following, place):
    """Overwrites `place` if `seen` is as expected, and clears some scratch memory."""
    batch = mover.batch()
    batch.fill(bytearray(b"\x01") * LEN, 0)
    # A difference counts as a failure at the fence.
    differs = batch.compare_expecting(seen, bytes(LEN), difference=False)
    batch.fence()
    batch.copy(following, place)

    for member, result in enumerate(batch.submit().result()):
        if isinstance(result, Exception):
            print(f"member {member}: {result}")
        elif member == differs:
            print(f"member {member}:", "equal" if result is None else f"different from byte {result} on")
        else:
            print(f"member {member}: done")


with telpher.Mover(sys.argv[1] if len(sys.argv) > 1 else "model:spr", threshold="4k") as mover:
    place = bytearray(LEN)
    round_of(mover, bytes(LEN), b"\x07" * LEN, place)
    print("the place has", place[0])
    seen = bytearray(LEN)
    seen[1234] = 1
    round_of(mover, seen, b"\x08" * LEN, place)
    print("the place has", place[0])
