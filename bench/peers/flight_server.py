"""Serves one Parquet file from memory over Arrow Flight: flight_server.py FILE ADDRESS.

The ticket gives the rows of a batch and the compression: `65536 none`. `row` in place of a number asks for the first
row alone. Clients that ask for a ticket, also those of Flight SQL, get one for all rows, or for `select 1` one for the
first row. Prints its port when it listens.
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

    def get_flight_info(self, context, descriptor):
        if b"protocol.sql." in descriptor.command and b"CommandStatementQuery" not in descriptor.command:
            raise NotImplementedError("no metadata")
        # The statement is a field of a message of Protocol Buffers, as it is.
        ticket = b"row none" if b"select 1" in descriptor.command else b"65536 none"
        # No location: where the client asked.
        endpoint = flight.FlightEndpoint(ticket, [])
        return flight.FlightInfo(self.table.schema, descriptor, [endpoint], -1, -1)

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
