"""Reads a table over Arrow Flight and drops its batches: flight_client.py ADDRESS PORT BATCH_ROWS CODEC."""

import sys

import pyarrow.flight as flight

from peer import measure

address, port, rows, codec = sys.argv[1:]
client = flight.connect(f"grpc://{address}:{port}")
# The first call opens the connection and is not measured.
client.wait_for_available()


def work():
    rows_read = 0
    size = 0
    for chunk in client.do_get(flight.Ticket(f"{rows} {codec}".encode())):
        rows_read += chunk.data.num_rows
        size += chunk.data.nbytes
    return rows_read, size


measure(work)
