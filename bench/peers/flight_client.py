"""Reads a table over Arrow Flight and drops its batches: flight_client.py PORT BATCH_ROWS."""

import sys

import pyarrow.flight as flight

from peer import measure

client = flight.connect(f"grpc://127.0.0.1:{sys.argv[1]}")
# The first call opens the connection; it is not what is measured.
client.wait_for_available()


def work():
    rows = 0
    size = 0
    for chunk in client.do_get(flight.Ticket(sys.argv[2].encode())):
        rows += chunk.data.num_rows
        size += chunk.data.nbytes
    return rows, size


measure(work)
