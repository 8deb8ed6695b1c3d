"""Runs SQL statements in DuckDB, with the PostgreSQL scanner loaded: duckdb_job.py STATEMENT..."""

import sys

from extensions import connect

database = connect("postgres_scanner")
for statement in sys.argv[1:]:
    database.execute(statement)
