"""DuckDB for `telpher bench query`: reads commands line by line from standard input.

{"threads": 2}                              sets the number of threads per query
{"table": "t", "columns": [["a", "int64", 8000], ...]}
                                            creates a table; each column's bytes follow, in the machine's byte order
{"prepare": "select ..."}                   sets the query that the next lines run
{"ask": 1}                                  runs it; the answer has its rows and the time it took

Every line gets one line as answer: a JSON object, with "error" if the command failed. Numbers in rows are text, because
they may have 128 bits.
"""

import json
import sys
import time


def answer(value):
    print(json.dumps(value), flush=True)


try:
    import duckdb
    import numpy
except ImportError as missing:
    answer({"missing": str(missing)})
    sys.exit()

answer({"version": duckdb.__version__})
connection = duckdb.connect()
# Without a file, as here, DuckDB takes Python for a terminal, and prints a bar between the answers after two seconds.
connection.execute("set enable_progress_bar = false")
for line in sys.stdin.buffer:
    try:
        told = json.loads(line)
        if "threads" in told:
            connection.execute(f"set threads = {int(told['threads'])}")
            answer({})
        elif "table" in told:
            columns = {}
            for name, kind, size in told["columns"]:
                data = sys.stdin.buffer.read(size)
                columns[name] = numpy.frombuffer(data, dtype=kind)
            connection.register("columns_of_numpy", columns)
            # DuckDB is fastest on its own copy, in its own blocks with their statistics.
            connection.execute(f"create table {told['table']} as select * from columns_of_numpy")
            connection.unregister("columns_of_numpy")
            del columns, data
            kinds = connection.execute(f"describe {told['table']}").fetchall()
            answer({"kinds": [kind[1] for kind in kinds]})
        elif "prepare" in told:
            # The query is parsed and planned here, so that neither is measured.
            connection.execute(f"prepare asked as {told['prepare']}")
            answer({})
        else:
            start = time.perf_counter_ns()
            rows = connection.execute("execute asked").fetchall()
            ns = time.perf_counter_ns() - start
            text = [[None if value is None else str(value) for value in row] for row in rows]
            answer({"ns": ns, "rows": text})
    except duckdb.Error as failed:
        answer({"error": str(failed)})
