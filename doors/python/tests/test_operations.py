"""Every operation against an oracle in plain Python, on the CPU and on the model, over every kind of buffer."""

import array
import mmap
import random
import unittest
import zlib

import numpy as np
import telpher

DEVICES = [
    ("cpu", {}),
    ("model:spr", {"threshold": 0}),
    ("model:full", {"threshold": 0, "threaded": True}),
    ("model:spr", {"threshold": "64k"}),
    ("model:v3-full", {"threshold": 0}),
]


def movers():
    for device, settings in DEVICES:
        with telpher.Mover(device, **settings) as mover:
            yield mover


def noise(size, seed=1):
    return random.Random(seed).randbytes(size)


def crc32c(data, seed=0):
    crc = ~seed & 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 & -(crc & 1))
    return ~crc & 0xFFFFFFFF


class Operations(unittest.TestCase):
    def each(self):
        for mover in movers():
            with self.subTest(device=mover.device):
                yield mover

    def test_a_copy_arrives_whole_at_any_size(self):
        for mover in self.each():
            for size in [0, 1, 63, 4096, 70_001, 3 << 20]:
                src, dst = noise(size), bytearray(size)
                self.assertIsNone(mover.copy(src, dst))
                self.assertEqual(dst, src)

    def test_a_durable_copy_arrives_whole(self):
        for mover in self.each():
            for size in [0, 1, 4096, 70_001, 3 << 20]:
                src, dst = noise(size), bytearray(size)
                self.assertIsNone(mover.copy_durable(src, dst))
                self.assertEqual(dst, src)

    def test_crcs_of_64_bits_continue_from_a_seed(self):
        for mover in self.each():
            self.assertEqual(mover.crc64(b"123456789"), 0xAE8B14860A799888)
            src, dst = noise(70_001), bytearray(70_001)
            self.assertEqual(mover.copy_crc64(src, dst), mover.crc64(src[100:], mover.crc64(src[:100])))
            self.assertEqual(dst, src)

    def test_conversions_give_the_numbers_of_numpy(self):
        singles = np.random.default_rng(1).normal(0, 1e5, 10_000).astype(np.float32)
        with np.errstate(over="ignore"):
            expected = singles.astype(np.float16)
        for mover in self.each():
            halves = np.zeros(10_000, dtype=np.float16)
            seen = mover.convert(singles, halves, telpher.Arithmetic("fp32", "fp16"))
            np.testing.assert_array_equal(halves, expected)
            self.assertEqual(seen & {"overflow", "invalid"}, {"overflow"})

    def test_reductions_give_the_numbers_of_numpy(self):
        random_ = np.random.default_rng(2)
        a, b = (random_.integers(-(2**31), 2**31, 10_000).astype(np.int32) for _ in range(2))
        numbers = telpher.Arithmetic("int32", signed=True)
        for mover in self.each():
            for compute, oracle in [("add", np.add), ("min", np.minimum), ("max", np.maximum), ("xor", np.bitwise_xor)]:
                dst, dst2 = np.zeros(10_000, dtype=np.int32), np.zeros(10_000, dtype=np.int32)
                mover.reduce(a, b, dst, compute, numbers)
                np.testing.assert_array_equal(dst, oracle(a, b))
                mover.reduce_dualcast(a, b, dst, dst2, compute, numbers)
                np.testing.assert_array_equal(dst2, oracle(a, b))

    def test_lists_name_blocks_in_every_format(self):
        memory = np.frombuffer(noise(1000 * 24), dtype=np.uint8).reshape(1000, 24)
        index = np.random.default_rng(3).permutation(1000)[:700]
        lists = {"offset64": index.astype(np.uint64) * 24, "index32": index.astype(np.uint32), "index64": index.astype(np.uint64)}
        for mover in self.each():
            for form, entries in lists.items():
                part = np.zeros((700, 24), dtype=np.uint8)
                mover.gather(memory, entries, part, 24, form)
                np.testing.assert_array_equal(part, memory[index])
                expected, there = np.zeros_like(memory), np.zeros_like(memory)
                expected[index] = part
                mover.scatter(part, entries, there, 24, form)
                np.testing.assert_array_equal(there, expected)
                expected[index] = 7
                mover.scatter_fill(entries, there, 24, 7, form)
                np.testing.assert_array_equal(there, expected)
                total = np.zeros(24, dtype=np.uint8)
                mover.gather_reduce(memory, entries, total, 24, "xor", telpher.Arithmetic("int8"), form)
                np.testing.assert_array_equal(total, np.bitwise_xor.reduce(memory[index]))

    def test_a_list_cannot_name_bytes_outside_of_the_memory(self):
        for mover in self.each():
            for entry in [41, 2**64 - 1, 2**63]:
                entries = np.array([0, entry], dtype=np.uint64)
                with self.assertRaisesRegex(ValueError, "entry 1 of the list"):
                    mover.gather(bytes(64), entries, bytearray(48), 24)
                with self.assertRaisesRegex(ValueError, "entry 1 of the list"):
                    mover.scatter(bytes(48), entries, bytearray(64), 24)

    def test_overlapping_views_of_one_array_copy_like_memmove(self):
        for mover in self.each():
            for a, b in [(0, 5), (5, 0), (0, 4096), (8192, 0), (3, 3)]:
                data = np.frombuffer(noise(200_000), dtype=np.uint8).copy()
                expected = data.copy()
                expected[b : b + 150_000] = data[a : a + 150_000].copy()
                mover.copy(data[a : a + 150_000], data[b : b + 150_000])
                np.testing.assert_array_equal(data, expected)

    def test_copy_within_moves_a_part_of_one_buffer(self):
        for mover in self.each():
            data = bytearray(noise(100_000))
            expected = bytes(data)
            expected = expected[:1] + expected[:90_000] + expected[90_001:]
            mover.copy_within(data, 0, 90_000, 1)
            self.assertEqual(data, expected)

    def test_a_pattern_is_repeated_and_cut_off_at_the_end(self):
        for mover in self.each():
            for pattern in [0xA5, b"\x01", b"ab", b"abcd", b"12345678", b"0123456789abcdef"]:
                dst = bytearray(100_003)
                mover.fill(dst, pattern)
                unit = bytes([pattern]) if isinstance(pattern, int) else pattern
                self.assertEqual(dst, (unit * 100_003)[:100_003])
                if len(unit) <= 8:
                    self.assertIsNone(mover.compare_pattern(dst, pattern))
                    dst[99_999] ^= 1
                    self.assertEqual(mover.compare_pattern(dst, pattern), 99_999)

    def test_compare_returns_the_first_difference(self):
        for mover in self.each():
            a = noise(80_000)
            b = bytearray(a)
            self.assertIsNone(mover.compare(a, b))
            self.assertTrue(mover.equal(a, b))
            for at in [79_999, 40_001, 0]:
                b[at] ^= 0x80
                self.assertEqual(mover.compare(a, b), at)
                self.assertFalse(mover.equal(a, b))

    def test_a_checksum_is_crc32c_and_continues_from_a_seed(self):
        for mover in self.each():
            data = noise(9_000)
            self.assertEqual(mover.crc(b"123456789"), 0xE3069283)
            self.assertEqual(mover.crc(data), crc32c(data))
            self.assertEqual(mover.crc(data[5000:], mover.crc(data[:5000])), mover.crc(data))
            dst = bytearray(9_000)
            self.assertEqual(mover.copy_crc(data, dst), mover.crc(data))
            self.assertEqual(dst, data)

    def test_a_delta_turns_the_old_into_the_new(self):
        for mover in self.each():
            old = noise(64 << 10)
            new = bytearray(old)
            for at in [0, 8, 30_000, 65_535]:
                new[at] ^= 0xFF
            record = bytearray(400)
            try:
                delta = mover.create_delta(old, new, record)
            except telpher.JobFailed as error:
                self.fail(error)
            self.assertEqual((delta.kind, delta.size), ("complete", 40))
            patched = bytearray(old)
            mover.apply_delta(record, patched, delta.size)
            self.assertEqual(patched, new)
            self.assertEqual(mover.create_delta(old, old, record).kind, "identical")
            self.assertEqual(mover.create_delta(old, new, bytearray(20)).kind, "overflow")

    def test_one_source_reaches_two_destinations(self):
        for mover in self.each():
            buffer = mmap.mmap(-1, 1 << 18)
            with memoryview(buffer) as view:
                src = noise(70_000)
                a, b = view[: 70_000], view[131_072 : 131_072 + 70_000]
                mover.dualcast(src, a, b)
                self.assertEqual(a, src)
                self.assertEqual(b, src)
                a.release()
                b.release()
            buffer.close()

    def test_integrity_fields_are_inserted_checked_updated_and_stripped(self):
        for mover in self.each():
            for block in [512, 520, 4096, 4104]:
                config, tags = telpher.DifConfig(block), telpher.Tags(ref_tag=7, app_tag=3)
                data = noise(20 * block)
                protected = bytearray(20 * (block + 8))
                made = mover.dif_insert(data, protected, config, tags)
                self.assertEqual(made.dest.ref_tag, 27)
                for i in range(20):
                    field = protected[i * (block + 8) + block :][:8]
                    self.assertEqual(field[2:], bytes([0, 3, 0, 0, 0, 7 + i]))
                self.assertTrue(mover.dif_check(protected, config, tags))
                tuples = bytearray(20 * 8)
                self.assertTrue(mover.dix_generate(data, tuples, config, tags))
                self.assertEqual(tuples, b"".join(protected[i * (block + 8) + block :][:8] for i in range(20)))
                renewed = bytearray(len(protected))
                mover.dif_update(protected, renewed, config, tags, telpher.Tags(ref_tag=100))
                self.assertTrue(mover.dif_check(renewed, config, telpher.Tags(ref_tag=100)))
                plain = bytearray(len(data))
                self.assertTrue(mover.dif_strip(renewed, plain, config, telpher.Tags(ref_tag=100)))
                self.assertEqual(plain, data)
                protected[3 * (block + 8)] ^= 1
                found = mover.dif_check(protected, config, tags)
                self.assertEqual((found.ok, found.at, found.what), (False, 3 * (block + 8), ["guard"]))

    def test_flush_and_drain_end(self):
        for mover in self.each():
            mover.flush(bytearray(100_000))
            mover.drain()


class Buffers(unittest.TestCase):
    def setUp(self):
        self.mover = telpher.Mover("model:spr", threshold=0)
        self.addCleanup(self.mover.close)

    def test_arrays_of_any_type_and_shape_work(self):
        src = np.random.default_rng(1).standard_normal((300, 70))
        dst = np.empty_like(src)
        self.mover.copy(src, dst)
        np.testing.assert_array_equal(src, dst)
        structured = np.zeros(1000, dtype=[("a", "<i4"), ("b", "<f8")])
        self.mover.fill(structured, 1)
        self.assertEqual(structured.tobytes(), b"\x01" * structured.nbytes)
        self.mover.copy(array.array("d", [1.5] * 100), memoryview(bytearray(800)))

    def test_unsuitable_buffers_are_refused_with_the_reason(self):
        wide = np.zeros((100, 100), dtype=np.uint8)
        with self.assertRaisesRegex(BufferError, "ascontiguousarray"):
            self.mover.copy(wide[:, :50], bytearray(5000))
        with self.assertRaisesRegex(BufferError, "read-only"):
            self.mover.copy(bytes(10), bytes(10))
        frozen = np.zeros(10)
        frozen.flags.writeable = False
        with self.assertRaisesRegex(BufferError, "read-only"):
            self.mover.fill(frozen)
        with self.assertRaisesRegex(TypeError, "not str"):
            self.mover.crc("text")

    def test_invalid_lengths_units_and_overlaps_are_value_errors(self):
        data = bytearray(100_000)
        view = memoryview(data)
        for call in [
            lambda: self.mover.copy(bytes(10), bytearray(11)),
            lambda: self.mover.compare(bytes(10), bytes(11)),
            lambda: self.mover.create_delta(bytes(12), bytes(12), bytearray(80)),
            lambda: self.mover.create_delta(bytes(1 << 20), bytes(1 << 20), bytearray(80)),
            lambda: self.mover.apply_delta(bytes(15), bytearray(8)),
            lambda: self.mover.dif_check(bytes(100), telpher.DifConfig(), telpher.Tags()),
            lambda: self.mover.copy_within(data, 50_000, 50_001, 0),
            lambda: self.mover.copy_within(data, 2**63, 2**63, 0),
            lambda: self.mover.copy_crc(view[:5000], view[4999:9999]),
            lambda: self.mover.dualcast(bytes(5000), view[:5000], view[100:5100]),
            lambda: self.mover.fill(data, 256),
            lambda: self.mover.fill(data, b"abc"),
            lambda: self.mover.compare_pattern(data, bytes(16)),
            lambda: telpher.DifConfig(513),
            lambda: telpher.DifConfig(512, source=["nonsense"]),
        ]:
            with self.assertRaises(ValueError) as caught:
                call()
            self.assertGreater(len(str(caught.exception)), 20)
        self.assertFalse(any(data))

    def test_an_invalid_delta_fails_and_says_where(self):
        with self.assertRaisesRegex(telpher.JobFailed, "not valid from byte"):
            self.mover.apply_delta(b"\xff\xff" + bytes(8), bytearray(64))

    def test_numbers_out_of_range_are_overflow_errors(self):
        for seed in [-1, 1 << 32]:
            with self.assertRaises(OverflowError):
                self.mover.crc(b"", seed)

    def test_the_checksum_differs_from_zlibs(self):
        # zlib's CRC32 has another polynomial; a test that only compares telpher with itself would not notice a mix-up.
        self.assertNotEqual(self.mover.crc(b"123456789"), zlib.crc32(b"123456789"))


if __name__ == "__main__":
    unittest.main()
