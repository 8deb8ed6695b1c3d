"""Serves one Parquet file from memory over Arrow Flight: flight_server.py FILE ADDRESS.

The ticket says how many rows a batch has and how batches are compressed: `65536 none`; `row` is the first row alone.
Prints its port once it listens.
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
        # A reader over batches in C++: no Python runs while the rows go out.
        reader = pa.RecordBatchReader.from_batches(self.table.schema, self.batches[rows])
        return flight.RecordBatchStream(reader, options=options)


# One buffer a column, so that batches are slices of the size asked for.
server = Server(pq.read_table(sys.argv[1]).combine_chunks(), sys.argv[2])
print(server.port, flush=True)
server.serve()
