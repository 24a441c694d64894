"""Compares the answers of `telpher qdp` and DuckDB to the same queries over the same files."""

import decimal
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

import numpy
import pyarrow
import pyarrow.parquet

import tables
from engines import TELPHER, Refused, duck, telpher

SEED = 20261122
# Tables, and queries over each.
TABLES, QUERIES = 16, 6


class Files(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def same(self, query, path, *options, hint=""):
        """Both have the same answer."""
        self.assertEqual(telpher(query, path, *options), duck(query, path), f"{hint}{query}")


class RandomQueries(Files):
    def test_random_queries_over_random_tables_have_equal_answers(self):
        for number in range(TABLES):
            chance = numpy.random.default_rng([SEED, number])
            rows = int(chance.choice([0, 1, 2, 63, 64, 65, 1000, 4096, 30_000, 100_001]))
            columns = tables.table(chance, rows)
            path = self.folder / f"{number}{chance.choice(['.parquet', '.arrow'])}"
            tables.write(path, columns, chance)
            for _ in range(QUERIES):
                query = tables.query(chance, columns)
                options = ["--threads", str(chance.integers(1, 5)), "--chunk", str(chance.choice([1000, 4096, 65536]))]
                options += ["--device", "cpu", "--repeat", "1"]
                with self.subTest(table=number):
                    self.same(query, path, *options, hint=f"seed {SEED}, table {number}, {rows} rows, {options}: ")

    def test_a_sum_beyond_64_bits_is_exact(self):
        values = numpy.full(1000, 2**63 - 1)
        tables.write(self.folder / "t.parquet", {"a": values, "b": -values - 1}, numpy.random.default_rng(SEED))
        query = "select sum(a), sum(b), min(cast(a as hugeint) * cast(b as hugeint)) from t"
        expected = [(1000 * (2**63 - 1), -1000 * 2**63, -(2**63 - 1) * 2**63)]
        self.assertEqual(telpher(query, self.folder / "t.parquet"), expected)
        self.same(query, self.folder / "t.parquet")

    def test_a_possible_overflow_of_128_bits_is_refused_before_the_run(self):
        tables.write(self.folder / "t.parquet", {"a": numpy.full(10, 2**62)}, numpy.random.default_rng(SEED))
        with self.assertRaisesRegex(Refused, "128"):
            telpher("select sum(a * a * a) from t", self.folder / "t.parquet")


class Controls(Files):
    """The comparison itself: the differences that it must notice."""

    def setUp(self):
        super().setUp()
        chance = numpy.random.default_rng(SEED)
        self.columns = {"a": chance.integers(0, 100, 10_000), "b": chance.integers(-(2**40), 2**40, 10_000)}
        self.path = self.folder / "t.parquet"
        pyarrow.parquet.write_table(pyarrow.table(self.columns), self.path)

    def test_one_value_that_differs_by_one_is_noticed(self):
        query = "select sum(b), min(b), max(b), count(*) from t where a <= 49"
        self.same(query, self.path)
        chosen = int(numpy.flatnonzero(self.columns["a"] <= 49)[-1])
        self.columns["b"][chosen] += 1
        other = self.folder / "other.parquet"
        pyarrow.parquet.write_table(pyarrow.table(self.columns), other)
        self.assertNotEqual(telpher(query, self.path), duck(query, other))

    def test_an_inclusive_bound_instead_of_an_exclusive_one_is_noticed(self):
        ours = telpher("select count(*) from t where a < 49", self.path)
        self.assertNotEqual(ours, duck("select count(*) from t where a <= 49", self.path))

    def test_groups_in_another_order_are_noticed(self):
        query = "select a, sum(b) from t group by a order by a"
        self.assertNotEqual(telpher(query, self.path), duck(f"{query} desc", self.path))


# TPC-H's text (§2.4.1.2 and §2.4.6.2, with the validation's parameters), over decimals and dates.
TPCH_1 = """
    select l_returnflag, l_linestatus, sum(l_quantity), sum(l_extendedprice), sum(l_extendedprice * (1 - l_discount)),
        sum(l_extendedprice * (1 - l_discount) * (1 + l_tax)), avg(l_quantity), avg(l_extendedprice), avg(l_discount), count(*)
    from t where l_shipdate <= date '1998-12-01' - interval '90' day
    group by l_returnflag, l_linestatus order by l_returnflag, l_linestatus"""
TPCH_6 = """
    select sum(l_extendedprice * l_discount) from t
    where l_shipdate >= date '1994-01-01' and l_shipdate < date '1994-01-01' + interval '1' year
        and l_discount between 0.06 - 0.01 and 0.06 + 0.01 and l_quantity < 24"""


class Tpch(Files):
    """The named queries are those of TPC-H: DuckDB gets TPC-H's text, over TPC-H's types."""

    def setUp(self):
        super().setUp()
        chance, rows = numpy.random.default_rng(SEED), 60_000
        money = pyarrow.decimal128(15, 2)

        def hundredths(least, greatest, step=1):
            values = chance.integers(least // step, greatest // step, rows, endpoint=True) * step
            return pyarrow.array([decimal.Decimal(int(value)).scaleb(-2) for value in values], money)

        # Every value in a condition occurs, and its neighbours.
        days = chance.integers(8035, 10592, rows, endpoint=True, dtype="int32")
        days[:8] = [10470, 10471, 10472, 8765, 8766, 9130, 9131, 9132]
        flags = {name: pyarrow.array(chance.choice(list(letters), rows)) for name, letters in [("l_returnflag", "ANR"), ("l_linestatus", "FO")]}
        self.path = self.folder / "lineitem.parquet"
        pyarrow.parquet.write_table(
            pyarrow.table(
                {
                    "l_quantity": hundredths(100, 5000, 100),
                    "l_extendedprice": hundredths(90_000, 10_494_950),
                    "l_discount": hundredths(0, 10),
                    "l_tax": hundredths(0, 8),
                    **flags,
                    "l_shipdate": pyarrow.array(days, pyarrow.date32()),
                }
            ),
            self.path,
        )

    def test_query_1_equals_tpch(self):
        # Averages are rounded differently.
        def rounded(rows):
            return [tuple(round(value, 9) if isinstance(value, float) else value for value in row) for row in rows]

        expected = [tuple(str(value) if isinstance(value, decimal.Decimal) else value for value in row) for row in duck(TPCH_1, self.path)]
        self.assertEqual(len(expected), 6)
        self.assertEqual(rounded(telpher("q1", self.path)), rounded(expected))

    def test_query_6_equals_tpch(self):
        expected = duck(TPCH_6, self.path)[0][0]
        self.assertGreater(expected, 0)
        self.assertEqual(telpher("q6", self.path), [(str(expected),)])


class Comparison(Files):
    """`telpher bench query` compares answers before speeds."""

    def bench(self, python, *options):
        command = [TELPHER, "bench", "query", "--size", "2m", "--seconds", "0.5", "--threads", "2", "--python", python]
        return subprocess.run([*command, "--no-html", *options], capture_output=True, text=True, timeout=120)

    def test_every_comparison_runs_and_every_ratio_is_a_number(self):
        done = self.bench(sys.executable, "--format", "json")
        self.assertEqual(done.returncode, 0, done.stderr)
        result = json.loads(done.stdout)
        self.assertTrue(any("DuckDB 2.0.0" in remark for remark in result["remarks"]), result["remarks"])
        self.assertEqual(len(result["rows"]), 6)
        for row in result["rows"]:
            self.assertEqual((row["unit"], row["goal"]), ("times DuckDB's speed", {"at_least": 1.0}))
            self.assertGreater(row["measured"], 0)
            self.assertRegex(row["how"], r"ms against .* ms; \d+ rows, median of \d+ rounds")

    def test_a_different_answer_from_duckdb_ends_the_comparison(self):
        liar = self.folder / "liar"
        liar.write_text(f"""#!/bin/sh\nexec "{sys.executable}" "$@" | sed -u 's/"rows": \\[\\["/&1/'\n""")
        liar.chmod(0o755)
        done = self.bench(str(liar))
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("their answers differ", done.stderr)

    def test_a_query_of_more_than_two_seconds_prints_no_progress_bar(self):
        # DuckDB says whether it would print one, so no slow query is needed.
        program = (pathlib.Path(__file__).parents[4] / "lab/bench/src/query/duckdb.py").read_text()
        ask = "select value from duckdb_settings() where name = 'enable_progress_bar'"
        lines = "".join(json.dumps(line) + "\n" for line in [{"prepare": ask}, {"ask": 1}])
        done = subprocess.run([sys.executable, "-c", program], input=lines, capture_output=True, text=True, timeout=120)
        self.assertEqual(json.loads(done.stdout.splitlines()[-1])["rows"], [["false"]], done.stdout)

    def test_without_duckdb_only_the_engine_s_times_are_reported(self):
        done = self.bench("/nowhere/python")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("There is no DuckDB to compare with (/nowhere/python does not start", " ".join(done.stdout.split()))


if __name__ == "__main__":
    unittest.main()
