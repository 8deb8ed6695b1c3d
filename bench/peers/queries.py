"""Runs queries over the Parquet files of a folder, to their last row, and prints the time:
queries.py duckdb|datafusion FOLDER QUERIES. QUERIES is a file with a JSON list.
"""

import glob
import json
import os
import sys

from peer import measure

engine, folder, queries = sys.argv[1:]
tables = {os.path.basename(path)[:-8]: path for path in glob.glob(f"{folder}/*.parquet")}
with open(queries) as file:
    queries = json.load(file)

if engine == "duckdb":
    import duckdb

    context = duckdb.connect()
    for name, path in tables.items():
        context.execute(f"create view {name} as select * from '{path}'")

    def ask(sql):
        return context.execute(sql).to_arrow_table()

else:
    import datafusion

    context = datafusion.SessionContext()
    for name, path in tables.items():
        context.register_parquet(name, path)

    def ask(sql):
        return context.sql(sql).to_arrow_table()


def work():
    answers = [ask(sql) for sql in queries]
    return sum(answer.num_rows for answer in answers), sum(answer.nbytes for answer in answers)


measure(work)
