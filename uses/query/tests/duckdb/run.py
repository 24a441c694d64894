"""Runs every test in this folder. The last line has the format of Rust's test programs, so that one script counts all tests."""

import pathlib
import sys
import unittest

suite = unittest.defaultTestLoader.discover(str(pathlib.Path(__file__).parent))
result = unittest.TextTestRunner(verbosity=2).run(suite)
failed = len({str(test) for test, _ in result.failures + result.errors})
for test, why in result.skipped:
    print(f"test {test.id()} ... ignored, {why}")
passed = result.testsRun - failed - len(result.skipped)
print(f"test result: {'FAILED' if failed else 'ok'}. {passed} passed; {failed} failed; {len(result.skipped)} ignored")
sys.exit(bool(failed) or passed == 0)
