"""Windows between processes, and files whose bytes survive."""

import os
import socket
import subprocess
import sys
import tempfile
import unittest

import telpher

LEN = 20_000
BYTES = bytes(at * 7 % 251 for at in range(LEN))

OWNER = """
import os, socket, sys, telpher
peer = socket.socket(fileno=int(sys.argv[1]))
memory = bytearray(at * 7 % 251 for at in range(20_000))
with telpher.Mover("cpu") as mover, mover.grant(memory, writable=sys.argv[2] == "write") as grant:
    socket.send_fds(peer, [b"x"], grant.files)
    if peer.recv(1):
        grant.revoke(60)
        peer.sendall(memory)
        peer.recv(1)
"""


class Owner:
    """A process that grants a buffer."""

    def __init__(self, access):
        self.peer, theirs = socket.socketpair()
        with theirs:
            words = [sys.executable, "-c", OWNER, str(theirs.fileno()), access]
            self.process = subprocess.Popen(words, pass_fds=[theirs.fileno()])
        _, self.files, _, _ = socket.recv_fds(self.peer, 1, 2)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.peer.close()
        self.process.wait()
        for file in self.files:
            os.close(file)

    def revoke(self):
        """Has the owner revoke the grant, and returns its buffer."""
        self.peer.sendall(b"x")
        whole = b""
        while len(whole) < LEN:
            whole += self.peer.recv(LEN)
        return whole


class Windows(unittest.TestCase):
    def test_another_process_is_read_written_filled_and_compared(self):
        for device, via in [("cpu", "cpu"), ("model:spr", "cpu"), ("model:v2-full", "device")]:
            with telpher.Mover(device) as mover, Owner("write") as owner:
                window = mover.open_window(owner.files)
                self.assertEqual((len(window), window.writable, window.has_device), (LEN, True, via == "device"))
                here = bytearray(LEN)
                self.assertEqual(window.read(0, here), via)
                self.assertEqual(here, BYTES)
                self.assertEqual(window.write(3, b"hello"), "cpu")
                here[3:8] = b"hello"
                self.assertEqual(window.fill(100, 5001, b"ab"), via)
                here[100:5101] = b"ab" * 2500 + b"a"
                self.assertIsNone(window.compare(0, here))
                self.assertIsNone(window.compare_pattern(100, 5001, b"ab"))
                self.assertEqual(window.compare_pattern(99, 5001, b"ab"), 0)
                here[9999] ^= 1
                self.assertEqual(window.compare(0, here), 9999)
                self.assertRaises(ValueError, window.read, LEN - 1, bytearray(2))
                self.assertRaises(OverflowError, window.read, -1, bytearray(2))
                here[9999] ^= 1
                self.assertEqual(owner.revoke(), here)
                self.assertRaises(PermissionError, window.read, 0, bytearray(1))

    def test_what_was_granted_for_reading_is_not_written(self):
        with telpher.Mover("model:v2-full") as mover, Owner("read") as owner:
            window = mover.open_window(owner.files)
            self.assertFalse(window.writable)
            self.assertRaises(PermissionError, window.write, 0, b"x")
            self.assertRaises(PermissionError, window.fill, 0, LEN)
            self.assertEqual(owner.revoke(), BYTES)

    def test_a_policy_that_wants_a_device_refuses_movers_without_one(self):
        with telpher.Mover("cpu", windows="device") as mover, Owner("write") as owner:
            with self.assertRaisesRegex(telpher.Error, "windows=device-or-cpu"):
                mover.open_window(owner.files)

    def test_a_granted_buffer_is_held_until_it_is_revoked(self):
        memory = bytearray(100)
        mover = telpher.Mover("cpu")
        with mover.grant(memory) as grant:
            self.assertEqual((len(grant), len(grant.files), grant.revoked), (100, 1, False))
            self.assertRaises(BufferError, memory.extend, b"x")
            mover.open_window(grant.files).write(0, b"abc")
        self.assertTrue(grant.revoked)
        self.assertRaises(ValueError, lambda: grant.files)
        grant.revoke()
        memory.extend(b"x")
        self.assertEqual(memory[:4], b"abc\0")

    def test_other_files_and_buffers_are_refused(self):
        mover = telpher.Mover("cpu")
        with open(os.devnull) as file:
            self.assertRaises(ValueError, mover.open_window, [file.fileno()])
        self.assertRaises(ValueError, mover.open_window, [])
        self.assertRaises(ValueError, mover.open_window, [-1])
        self.assertRaises(OSError, mover.open_window, [999_999])
        self.assertRaises(ValueError, mover.grant, bytearray())
        self.assertRaises(BufferError, mover.grant, b"read-only")
        self.assertRaises(TypeError, mover.grant, 7)
        self.assertEqual(len(mover.grant(b"read-only", writable=False)), 9)


class DurableFiles(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(dir="/var/tmp")
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "file")
        try:
            telpher.DurableFile.create(self.path, 1).close()
        except telpher.Error as error:
            self.assertIn("file system in memory", str(error))
            self.skipTest("/var/tmp is in memory")
        os.unlink(self.path)

    def test_stored_bytes_are_there_when_the_file_is_opened_again(self):
        mover = telpher.Mover("model:v2-full", threshold=0)
        with telpher.DurableFile.create(self.path, 10_000) as file:
            self.assertEqual(mover.store(b"survives", file, 4090), "device")
            self.assertEqual((len(file), file.read(4089, 10)), (10_000, b"\0survives\0"))
            self.assertIn(file.persistence, ["lines", "pages"])
            self.assertRaises(ValueError, mover.store, b"survives", file, 9999)
            self.assertRaises(ValueError, file.read, 9999, 2)
            self.assertRaises(telpher.Error, telpher.DurableFile.open, self.path)
        self.assertTrue(file.closed)
        self.assertRaises(ValueError, file.read, 0, 1)
        self.assertRaises(ValueError, mover.store, b"x", file)
        with telpher.DurableFile.open(self.path) as file:
            self.assertEqual(file.read(4090, 8), b"survives")

    def test_errors_of_the_system_are_os_errors(self):
        self.assertRaises(FileNotFoundError, telpher.DurableFile.open, self.path)
        telpher.DurableFile.create(self.path, 1).close()
        self.assertRaises(FileExistsError, telpher.DurableFile.create, self.path, 1)


if __name__ == "__main__":
    unittest.main()
