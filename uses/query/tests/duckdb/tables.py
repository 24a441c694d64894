"""Random tables and queries. All randomness comes from the generator in the arguments."""

import numpy
import pyarrow
import pyarrow.parquet

# A column's possible types, with the integers that they hold.
KINDS = {"uint8": (0, 255), "int8": (-128, 127), "int16": (-(2**15), 2**15 - 1), "int32": (-(2**31), 2**31 - 1), "int64": (-(2**63), 2**63 - 1)}


def column(chance, rows):
    """Integers of a random type and distribution: any, few values, sorted, all equal, or at the limits of the type."""
    kind = chance.choice(list(KINDS))
    least, greatest = KINDS[kind]
    shape = chance.choice(["any", "few", "sorted", "same", "ends", "small"])
    if shape == "any":
        values = chance.integers(least, greatest, rows, endpoint=True, dtype=kind)
    elif shape == "few":
        values = chance.choice(chance.integers(least, greatest, chance.integers(1, 6), endpoint=True, dtype=kind), rows)
    elif shape == "sorted":
        values = numpy.sort(chance.integers(least, greatest, rows, endpoint=True, dtype=kind))
    elif shape == "same":
        values = numpy.full(rows, chance.integers(least, greatest, endpoint=True, dtype=kind))
    elif shape == "ends":
        values = chance.choice(numpy.array([least, least + 1, 0, greatest - 1, greatest], dtype=kind), rows)
    else:
        values = chance.integers(0, 100, rows, endpoint=True, dtype=kind)
    return values.astype(kind)


def table(chance, rows):
    """Up to six columns, with usual and unusual names."""
    names = chance.permutation(["a", "b", "Price", "l_tax", "two words", 'quo"te', "select", "grün"])[: chance.integers(1, 7)]
    return {str(name): column(chance, rows) for name in names}


def write(path, columns, chance):
    """Writes Parquet with row groups of any size, or an Arrow file with batches of any size, depending on the file name."""
    written = pyarrow.table(columns)
    some = int(chance.integers(1, max(2, written.num_rows)))
    if str(path).endswith(".parquet"):
        pyarrow.parquet.write_table(written, path, row_group_size=some, use_dictionary=bool(chance.integers(2)))
    else:
        with pyarrow.ipc.new_file(path, written.schema) as file:
            file.write_table(written, max_chunksize=some)


def quoted(name):
    return '"' + name.replace('"', '""') + '"'


def filtered(chance, columns):
    """A comparison of a column with one of its values, or with any value."""
    name = str(chance.choice(list(columns)))
    values = columns[name]
    least, greatest = KINDS[str(values.dtype)]

    def value():
        if len(values) and chance.integers(4):
            return int(chance.choice(values)) + int(chance.integers(-1, 2))
        return int(chance.integers(least, greatest, endpoint=True))

    def within(number):
        return max(-(2**63), min(2**63 - 1, number))

    if chance.integers(3) == 0:
        return f"{quoted(name)} between {within(value())} and {within(value())}"
    return f"{quoted(name)} {chance.choice(['=', '<', '<=', '>', '>='])} {within(value())}"


def expression(chance, columns, depth):
    """The text, and a bound of its absolute values. Columns are cast to 128 bits first, so that SQL's arithmetic does not overflow."""
    if depth == 0 or chance.integers(3) == 0:
        if chance.integers(3) == 0:
            number = int(chance.integers(-1000, 1000))
            return f"cast({number} as hugeint)", abs(number)
        name = str(chance.choice(list(columns)))
        return f"cast({quoted(name)} as hugeint)", max(abs(end) for end in KINDS[str(columns[name].dtype)])
    (left, a), (right, b) = expression(chance, columns, depth - 1), expression(chance, columns, depth - 1)
    operator = chance.choice(["+", "-", "*"])
    return f"({left} {operator} {right})", a * b if operator == "*" else a + b


def query(chance, columns, most=2**126):
    """A query whose sums are below `most`, so that an engine with 128 bits must have an answer."""
    rows = len(next(iter(columns.values())))
    filters = [filtered(chance, columns) for _ in range(chance.integers(0, 4))]
    keys = [str(name) for name in chance.permutation(list(columns))[: chance.choice([0, 0, 1, 1, 2])]]
    # Groups are numbered in 128 bits: two keys of 64 bits are refused if both have the full range of values.
    if [str(columns[key].dtype) for key in keys] == ["int64", "int64"]:
        keys.pop()
    keys = [quoted(key) for key in keys]
    aggregates = []
    while len(aggregates) < chance.integers(1, 5):
        text, size = expression(chance, columns, int(chance.integers(0, 4)))
        if size * max(rows, 1) < most:
            aggregates.append(f"{chance.choice(['sum', 'min', 'max'])}({text})")
        if chance.integers(4) == 0:
            aggregates.append("count(*)")
    query = f"select {', '.join(keys + aggregates)} from t"
    if filters:
        query += f" where {' and '.join(filters)}"
    if keys:
        query += f" group by {', '.join(keys)} order by {', '.join(keys)}"
    return query
