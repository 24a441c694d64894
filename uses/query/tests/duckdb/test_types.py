"""Columns of every type that real tables have: `telpher qdp` and DuckDB have the same answers, also about rows without a value."""

import datetime
import decimal
import math
import pathlib
import tempfile
import unittest

import numpy
import pyarrow
import pyarrow.parquet

from engines import Refused, duck, telpher

SEED = 20261127
ROWS = 20_000
MODES = ["AIR", "FOB", "MAIL", "RAIL", "REG AIR", "SHIP", "TRUCK", "", "ä ship", "it's"]


def plain(value):
    """A value of DuckDB's as it stands in the JSON of `telpher qdp`."""
    if isinstance(value, decimal.Decimal):
        return f"{value:f}"
    if isinstance(value, datetime.datetime):
        text = value.strftime("%Y-%m-%d %H:%M:%S.%f").rstrip("0").rstrip(".")
        return text
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        return {math.inf: "inf", -math.inf: "-inf"}.get(value, "NaN")
    return value


def columns(chance, rows, nulls):
    """One column of each type; a part of the rows without values, if `nulls`."""

    def array(values, kind=None):
        # Every column has its own rows without values.
        absent = chance.random(rows) < chance.choice([0.02, 0.3]) if nulls else numpy.zeros(rows, bool)
        return pyarrow.array([None if gone else value for value, gone in zip(values, absent)], kind)

    def whole(least, greatest):
        return [int(value) for value in chance.integers(least, greatest, rows, endpoint=True)]

    epoch, second = datetime.date(1970, 1, 1), datetime.datetime(1998, 1, 1)
    return {
        "key": array(whole(0, 3), pyarrow.uint8()),
        "byte": array(whole(0, 255), pyarrow.uint8()),
        "number": array(whole(-1000, 1000), pyarrow.int32()),
        "big": array(whole(-(2**62), 2**62), pyarrow.int64()),
        "price": array([decimal.Decimal(value).scaleb(-2) for value in whole(-(10**7), 10**7)], pyarrow.decimal128(15, 2)),
        "rate": array([decimal.Decimal(value).scaleb(-4) for value in whole(0, 1000)], pyarrow.decimal128(9, 4)),
        "share": array([float(value) for value in chance.normal(0, 1e3, rows)], pyarrow.float64()),
        "small": array([float(value) for value in chance.integers(-50, 50, rows) / 4], pyarrow.float32()),
        "day": array([epoch + datetime.timedelta(days=value) for value in whole(8000, 11000)], pyarrow.date32()),
        "moment": array([second + datetime.timedelta(microseconds=value * 500_000) for value in whole(0, 10**6)], pyarrow.timestamp("us")),
        "mode": array([MODES[value] for value in whole(0, len(MODES) - 1)], pyarrow.string()),
        "many": array([f"{value:04}" for value in whole(0, 3000)], pyarrow.large_string()),
        "flag": array([value == 1 for value in whole(0, 1)], pyarrow.bool_()),
    }


# Every type is filtered in every way, grouped, and folded.
QUERIES = [
    "select count(*), count(price), sum(price), avg(price), min(price), max(price) from t",
    "select count(*), count(number), sum(number), avg(number), min(number), max(number) from t where byte <> 7",
    "select count(*), count(share), min(share), max(share), min(small), max(small) from t where share between -100 and 1e2",
    "select min(day), max(day), count(day), min(moment), max(moment), min(mode), max(mode), min(flag), max(flag) from t",
    "select count(*), min(day), max(day) from t where day < '1998-09-02'",
    "select count(*), sum(price) from t where day >= date '1995-01-01' and day < date '1996-01-01' and mode <> 'AIR'",
    "select count(*) from t where day = '1995-06-17'",
    "select count(*) from t where day not between date '1995-01-01' and '1997-01-01'",
    "select count(*), max(moment) from t where moment < timestamp '1998-01-02 00:00:00.5'",
    "select count(*), max(moment) from t where moment >= '1998-01-03' and moment <> '1998-01-03 00:00:01'",
    "select mode, count(*), count(mode), sum(price * (1 - rate)), avg(rate) from t group by mode order by mode",
    "select mode, flag, count(*), sum(number) from t where mode in ('AIR', 'SHIP', 'it''s', 'none') group by mode, flag order by mode, flag",
    "select many, count(*), sum(big) from t where many like '1%' group by many order by many",
    "select many, min(day) from t where many not like '%1%' and many > '2' and many <= '2500' group by many order by many",
    "select mode, count(*) from t where mode like '_AIL' group by mode order by mode",
    "select count(*) from t where mode like '%AI%' and mode not in ('RAIL', 'MAIL')",
    "select day, count(*), sum(price) from t where day between '1995-01-01' and '1995-03-01' group by day order by day",
    "select flag, count(*), avg(number) from t where flag = true group by flag order by flag",
    "select key, count(*), count(key), min(day), max(day) from t group by key order by key",
    "select key, min(number), max(byte) from t where number is not null group by key order by key",
    "select key, count(*) from t where price is null and day is not null group by key order by key",
    "select count(*), sum(number), min(number), avg(price), max(mode) from t where number is null and price is null",
    "select count(*) from t where price < 0.055 and price > -0.055",
    "select count(*) from t where rate in (0.05, 0.06, 0.0711)",
    "select count(*) from t where price <= -12.345 and number <> 3 and small = 0.25",
    "select count(*) from t where not number = 3 and not mode = 'AIR' and number < 2.5",
    "select sum(price * rate), sum(price + rate), sum(price - 1), sum(number * number), max(price * rate) from t where number > 0",
    "select sum(number + number), count(number + byte), sum(cast(number as hugeint) * byte) from t",
    "select small, count(*) from t where small > 0 group by small order by small",
    "select moment, count(*) from t where moment < '1998-01-01 00:00:05' group by moment order by moment",
    "select avg(big), avg(number * rate), min(price - rate) from t where key <= 2",
]

# Sums of floating-point numbers: DuckDB's depend on the order of the rows.
FLOATS = [
    "select sum(share), avg(share), sum(small), avg(small), sum(share * small) from t",
    "select mode, sum(share), sum(share * price), avg(share + number), sum(share * 2.5e-3) from t group by mode order by mode",
    "select key, sum(share - small), min(share * share), max(share + price) from t where share < 500.5 group by key order by key",
]


class Types(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def files(self):
        """Parquet and Arrow files, with and without rows that have no values, and one whose texts have a dictionary."""
        for nulls in [False, True]:
            table = pyarrow.table(columns(numpy.random.default_rng([SEED, nulls]), ROWS, nulls))
            parquet, arrow = self.folder / f"{nulls}.parquet", self.folder / f"{nulls}.arrow"
            pyarrow.parquet.write_table(table, parquet, row_group_size=7_001)
            mode = table.schema.get_field_index("mode")
            table = table.set_column(mode, "mode", table["mode"].dictionary_encode())
            with pyarrow.ipc.new_file(arrow, table.schema) as file:
                file.write_table(table, max_chunksize=6_007)
            yield nulls, parquet
            yield nulls, arrow

    def check(self, query, path, close):
        options = ["--device", "cpu", "--repeat", "1", "--threads", "2", "--chunk", "3000"]
        ours, theirs = telpher(query, path, *options), [tuple(map(plain, row)) for row in duck(query, path)]
        self.assertEqual(len(ours), len(theirs), query)
        for one, other in zip(ours, theirs):
            self.assertEqual(len(one), len(other), query)
            for a, b in zip(one, other):
                if isinstance(b, float) and close:
                    self.assertTrue(isinstance(a, float) and math.isclose(a, b, rel_tol=close, abs_tol=1e-9), f"{query}: {a} is not {b}")
                else:
                    self.assertEqual(a, b, query)

    def test_every_type_has_duckdbs_answers(self):
        for nulls, path in self.files():
            for query in QUERIES:
                with self.subTest(nulls=nulls, file=path.suffix):
                    # Averages are rounded differently.
                    self.check(query, path, 1e-14)

    def test_sums_of_floating_point_numbers_are_near_duckdbs(self):
        for nulls, path in self.files():
            for query in FLOATS:
                with self.subTest(nulls=nulls, file=path.suffix):
                    self.check(query, path, 1e-9)

    def test_sums_of_floating_point_numbers_are_exact(self):
        chance = numpy.random.default_rng(SEED)
        # Sums in any order of additions lose the small ones.
        values = numpy.concatenate([chance.normal(0, 1, 5_000) * 10.0 ** chance.integers(-20, 20, 5_000), [1e22, 1e-10, -1e22]])
        path = self.folder / "t.parquet"
        pyarrow.parquet.write_table(pyarrow.table({"x": values, "k": (numpy.arange(len(values)) % 3).astype("uint8")}), path)
        for threads in ["1", "3"]:
            options = ["--plain", "--threads", threads]
            self.assertEqual(telpher("select sum(x) from t", path, *options), [(math.fsum(values),)])
            expected = [(key, math.fsum(values[key::3])) for key in range(3)]
            self.assertEqual(telpher("select k, sum(x) from t group by k", path, *options), expected)

    def test_special_floating_point_numbers_compare_as_in_duckdb(self):
        values = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1.5, -1.5, None, 5e-324]
        path = self.folder / "t.parquet"
        pyarrow.parquet.write_table(pyarrow.table({"x": pyarrow.array(values, pyarrow.float64())}), path)
        for query in [
            "select x, count(*) from t group by x order by x",
            "select min(x), max(x), count(x) from t",
            "select count(*), min(x) from t where x > 1",
            "select count(*), max(x) from t where x <= 0",
            "select count(*), sum(x) from t where x between -1e300 and 1e300",
        ]:
            self.check(query, path, 1e-15)
        with self.assertRaisesRegex(Refused, "where x between -1e300 and 1e300"):
            telpher("select sum(x) from t", path)

    def test_what_has_no_meaning_is_refused_with_what_to_write(self):
        _, path = next(self.files())
        for query, expected in [
            ("select count(*) from t where day < 100", "column day holds dates, and 100 is none; write day < date '1998-09-02'"),
            ("select count(*) from t where mode = 7", "column mode holds text, and 7 is none; write mode = '7'"),
            ("select count(*) from t where number = '7'", "column number holds whole numbers, and '7' is none; write number = 7"),
            ("select count(*) from t where price > 'much'", "write price > 0.05"),
            ("select count(*) from t where day like '1998%'", "only text has patterns"),
            ("select sum(mode) from t", "sum\\(mode\\) is not possible, because column mode holds text; write count, min or max"),
            ("select avg(day) from t", "because column day holds dates"),
            ("select sum(price * flag) from t", "because column flag holds true and false"),
        ]:
            with self.assertRaisesRegex(Refused, expected, msg=query):
                telpher(query, path)
