"""Runs all tests of this folder and the examples in the documentation. The last line has the format of Rust test programs, so
that one script can count both."""

import doctest
import pathlib
import sys
import unittest

import telpher

here = pathlib.Path(__file__).parent
suite = unittest.defaultTestLoader.discover(str(here))
suite.addTests(doctest.DocTestSuite(telpher))
suite.addTests(doctest.DocFileSuite(str(here.parent / "README.md"), module_relative=False))
result = unittest.TextTestRunner(verbosity=2).run(suite)
failed = len(result.failures) + len(result.errors) + len(result.unexpectedSuccesses)
for test, why in result.skipped:
    print(f"test {test.id()} ... ignored, {why}")
passed = result.testsRun - len({str(test) for test, _ in result.failures + result.errors}) - len(result.skipped)
print(f"test result: {'FAILED' if failed else 'ok'}. {passed} passed; {failed} failed; {len(result.skipped)} ignored")
sys.exit(bool(failed))
