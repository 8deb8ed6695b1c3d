"""Reads a table as Python rows through a server-side cursor: postgres_rows.py URI TABLE [ROWS]."""

import sys

import psycopg

from peer import measure

connection = psycopg.connect(sys.argv[1])


def work():
    rows = 0
    with connection.cursor("rows", binary=True) as cursor:
        cursor.itersize = int(sys.argv[3]) if len(sys.argv) > 3 else 50_000
        cursor.execute(f"select * from {sys.argv[2]}")
        for _ in cursor:
            rows += 1
    return rows, 0


measure(work)
