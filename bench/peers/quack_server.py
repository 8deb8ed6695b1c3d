"""Serves one Parquet file from DuckDB's memory over Quack: quack_server.py FILE ADDRESS.

Prints its port once it listens.
"""

import socket
import sys
import threading

from extensions import connect

TOKEN = "benchmark"

path, address = sys.argv[1:]
database = connect("httpfs", "quack")
database.execute(f"create table t as from read_parquet('{path}')")
# It takes no port 0: a port that is free when asked for.
with socket.socket() as free:
    free.bind((address, 0))
    port = free.getsockname()[1]
database.execute(f"call quack_serve('quack:{address}:{port}', token = '{TOKEN}', allow_other_hostname = true)")
print(port, flush=True)
threading.Event().wait()
