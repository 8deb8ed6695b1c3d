"""Reads a table over Quack, to Arrow batches that are dropped: quack_client.py ADDRESS PORT."""

import sys

from extensions import connect
from peer import measure

TOKEN = "benchmark"

address, port = sys.argv[1:]
database = connect("httpfs", "quack")
remote = f"quack:{address}:{port}"


def read(sql):
    rows = 0
    size = 0
    query = f"from quack_query('{remote}', '{sql}', token => '{TOKEN}', disable_ssl => true)"
    for batch in database.execute(query).to_arrow_reader(65536):
        rows += batch.num_rows
        size += batch.nbytes
    return rows, size


# The first query opens the connection and is not measured.
read("select 1")
measure(lambda: read("from t"))
