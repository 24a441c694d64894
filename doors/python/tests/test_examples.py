"""The examples print the same on every device; all but the tasks match their Rust, C and C++ counterparts (doors/capi/examples)."""

import pathlib
import subprocess
import sys
import unittest

EXAMPLES = pathlib.Path(__file__).parent.parent / "examples"


class Examples(unittest.TestCase):
    def says(self, example, expected):
        for device in ["model:spr", "model:full", "cpu"]:
            with self.subTest(device=device):
                words = [sys.executable, EXAMPLES / f"{example}.py", device]
                ended = subprocess.run(words, capture_output=True, text=True, timeout=60)
                self.assertEqual((ended.returncode, ended.stdout), (0, expected.format(device=device)), ended.stderr)

    def test_copy_crc_example(self):
        self.says("copy_crc", "1048576 bytes, CRC32C 871701bf, equal\n")

    def test_batch_fence_example(self):
        self.says(
            "batch_fence",
            "member 0: done\nmember 1: equal\nmember 2: done\nthe place has 7\n"
            "member 0: done\nmember 1: different from byte 1234 on\n"
            "member 2: abandoned at a fence because member 1 did not succeed\nthe place has 7\n",
        )

    def test_versioned_example(self):
        self.says(
            "versioned",
            "50 versions, 0 sums of another one\n10 bytes written, 24576 compared, 4096 copied back; price 50000 is 7\n",
        )

    def test_tasks_example(self):
        self.says("tasks", "64 tasks copied 6400000 bytes on {device}\n")


if __name__ == "__main__":
    unittest.main()
