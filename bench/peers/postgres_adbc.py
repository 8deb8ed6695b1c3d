"""Reads a result through ADBC and drops its batches: postgres_adbc.py URI SQL."""

import sys

import adbc_driver_postgresql.dbapi as dbapi

from peer import measure

connection = dbapi.connect(sys.argv[1])
cursor = connection.cursor()


def work():
    cursor.execute(sys.argv[2])
    rows = 0
    size = 0
    for batch in cursor.fetch_record_batch():
        rows += batch.num_rows
        size += batch.nbytes
    return rows, size


measure(work)
cursor.close()
connection.close()
