"""Serves one Parquet file from DuckDB's memory over Quack: quack_server.py FILE ADDRESS.

Prints its port when it listens.
"""

import socket
import sys
import threading

from extensions import connect

TOKEN = "benchmark"

path, address = sys.argv[1:]
database = connect("httpfs", "quack")
database.execute(f"create table t as from read_parquet('{path}')")
# It does not accept port 0, so take a port that is free now.
with socket.socket() as free:
    free.bind((address, 0))
    port = free.getsockname()[1]
database.execute(f"call quack_serve('quack:{address}:{port}', token = '{TOKEN}', allow_other_hostname = true)")
print(port, flush=True)
threading.Event().wait()
