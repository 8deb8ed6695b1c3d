"""Reads a table through DuckDB's postgres scanner, to Arrow batches that are
dropped: postgres_duckdb.py URI TABLE.
"""

import sys

from extensions import connect
from peer import measure

database = connect("postgres_scanner")
database.execute(f"attach '{sys.argv[1]}' as pg (type postgres, read_only)")


def work():
    rows = 0
    size = 0
    for batch in database.execute(f"select * from pg.{sys.argv[2]}").to_arrow_reader(65536):
        rows += batch.num_rows
        size += batch.nbytes
    return rows, size


measure(work)
