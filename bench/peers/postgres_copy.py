"""Reads a table with COPY BINARY, and counts and discards the bytes: postgres_copy.py URI TABLE."""

import sys

import psycopg

from peer import measure

connection = psycopg.connect(sys.argv[1])


def work():
    size = 0
    with connection.cursor() as cursor:
        with cursor.copy(f"copy {sys.argv[2]} to stdout (format binary)") as copy:
            for data in copy:
                size += len(data)
        return cursor.rowcount, size


measure(work)
