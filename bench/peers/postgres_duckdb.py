"""Reads a table through DuckDB's postgres scanner, to Arrow batches that are
dropped: postgres_duckdb.py URI TABLE.
"""

import glob
import os
import sys

import duckdb
import duckdb_extension_postgres_scanner

from peer import measure

# The extension as it comes in its package; DuckDB checks its signature.
folder = os.path.dirname(duckdb_extension_postgres_scanner.__file__)
extension = glob.glob(f"{folder}/extensions/v{duckdb.__version__}/*.duckdb_extension")[0]
database = duckdb.connect()
database.execute(f"load '{extension}'")
database.execute(f"attach '{sys.argv[1]}' as pg (type postgres, read_only)")


def work():
    rows = 0
    size = 0
    for batch in database.execute(f"select * from pg.{sys.argv[2]}").to_arrow_reader(65536):
        rows += batch.num_rows
        size += batch.nbytes
    return rows, size


measure(work)
