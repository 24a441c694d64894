"""Random tables and questions about them. All chance comes from the generator that is handed in."""

import numpy
import pyarrow
import pyarrow.parquet

# Types a column may have, by the integers they hold.
KINDS = {"uint8": (0, 255), "int8": (-128, 127), "int16": (-(2**15), 2**15 - 1), "int32": (-(2**31), 2**31 - 1), "int64": (-(2**63), 2**63 - 1)}


def column(chance, rows):
    """Integers of a random type and shape: anything, few values, in order, all the same, or at the ends of the type."""
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
    """Up to six columns, named as columns are and as they should not be."""
    names = chance.permutation(["a", "b", "Price", "l_tax", "two words", 'quo"te', "select", "grün"])[: chance.integers(1, 7)]
    return {str(name): column(chance, rows) for name in names}


def write(path, columns, chance):
    """As Parquet, in row groups of any size, or as an Arrow file, in batches of any size; what the name says."""
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
    """A test of a column against a value it has, or any."""
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
    """Text, and how large its values can be without their sign. Columns are wide from the start, so that nothing overflows in SQL's way."""
    if depth == 0 or chance.integers(3) == 0:
        if chance.integers(3) == 0:
            number = int(chance.integers(-1000, 1000))
            return f"cast({number} as hugeint)", abs(number)
        name = str(chance.choice(list(columns)))
        return f"cast({quoted(name)} as hugeint)", max(abs(end) for end in KINDS[str(columns[name].dtype)])
    (left, a), (right, b) = expression(chance, columns, depth - 1), expression(chance, columns, depth - 1)
    operator = chance.choice(["+", "-", "*"])
    return f"({left} {operator} {right})", a * b if operator == "*" else a + b


def question(chance, columns, most=2**126):
    """A query, no sum of which can be beyond `most`, so that an engine with 128 bits must know the answer."""
    rows = len(next(iter(columns.values())))
    filters = [filtered(chance, columns) for _ in range(chance.integers(0, 4))]
    keys = [str(name) for name in chance.permutation(list(columns))[: chance.choice([0, 0, 1, 1, 2])]]
    # Groups are numbered in 128 bits: two keys of 64 are refused if both have every value from end to end.
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
