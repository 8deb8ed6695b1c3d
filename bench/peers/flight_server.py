"""Serves one Parquet file from memory over Arrow Flight: flight_server.py FILE ADDRESS.

The ticket gives the rows of a batch and the compression: `65536 none`. `row` in place of a number asks for the first
row alone. Prints its port when it listens.
"""

import sys

import pyarrow as pa
import pyarrow.flight as flight
import pyarrow.parquet as pq


class Server(flight.FlightServerBase):
    def __init__(self, table, address):
        super().__init__(f"grpc://{address}:0")
        self.table = table
        self.batches = {}

    def do_get(self, context, ticket):
        rows, codec = ticket.ticket.decode().split()
        if rows not in self.batches:
            one = rows == "row"
            table = self.table.slice(0, 1) if one else self.table
            self.batches[rows] = table.to_batches(max_chunksize=1 if one else int(rows))
        options = pa.ipc.IpcWriteOptions(compression=None if codec == "none" else codec)
        # A reader over batches in C++: no Python runs while rows are sent.
        reader = pa.RecordBatchReader.from_batches(self.table.schema, self.batches[rows])
        return flight.RecordBatchStream(reader, options=options)


# One buffer per column, so that batches are slices of the requested size.
server = Server(pq.read_table(sys.argv[1]).combine_chunks(), sys.argv[2])
print(server.port, flush=True)
server.serve()
