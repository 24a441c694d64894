"""Several operations submitted together: a fence holds back what must come later, and abandons it if something before it went
wrong."""

import sys

import telpher

LEN = 65536


def round_of(mover, seen, following, place):
    """Overwrites a place if what was seen is what was expected, and clears some scratch memory beside it."""
    batch = mover.batch()
    batch.fill(bytearray(b"\x01") * LEN, 0)
    # A difference is a failure for the fence.
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
