"""The two engines: `telpher qdp` as a command, DuckDB in this process. Both get the same file and the same query."""

import json
import os
import subprocess

import duckdb
import pyarrow

# The command under test; `ci/query.sh` says where it was built.
TELPHER = os.environ.get("TELPHER", "telpher")


class Refused(Exception):
    """The command ended without an answer; its error message."""


def telpher(query, path, *options):
    """The rows of `telpher qdp`'s answer: keys, then values, as integers or None."""
    command = [TELPHER, "qdp", "--query", query, "--input", str(path), "--format", "json", "--no-html"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        raise Refused(done.stderr.strip())
    return [tuple(row) for row in json.loads(done.stdout)["answer"]["rows"]]


def duck(query, path):
    """DuckDB's rows. It reads Parquet files itself."""
    with duckdb.connect() as connection:
        if str(path).endswith(".parquet"):
            connection.execute(f"create view t as from read_parquet('{path}')")
        else:
            with pyarrow.ipc.open_file(path) as file:
                table = file.read_all()
            connection.register("t", table)
        return connection.execute(query).fetchall()
