"""Runs every test beside it and the examples in the documentation; the last line is worded as Rust's test programs word theirs, so
that one script counts them all."""

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
