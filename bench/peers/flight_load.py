"""Many Arrow Flight clients at once, and one that repeats a query of one row meanwhile: flight_load.py PORT CLIENTS BATCH_ROWS."""

import json
import sys
import threading
import time

import pyarrow.flight as flight

port, clients, batch_rows = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]


def connect():
    # Without this option, clients of one process share a connection.
    client = flight.FlightClient(f"grpc://127.0.0.1:{port}", generic_options=[("grpc.use_local_subchannel_pool", 1)])
    client.wait_for_available()
    return client


def read(client, ticket):
    rows = size = 0
    for chunk in client.do_get(flight.Ticket(ticket.encode())):
        rows += chunk.data.num_rows
        size += chunk.data.nbytes
    return rows, size


connections = [connect() for _ in range(clients)]
small = connect()
results, latencies = [], []
ready = threading.Barrier(clients + 1)
over = threading.Event()


def large(client):
    ready.wait()
    results.append(read(client, f"{batch_rows} none"))


def ask():
    while not latencies or not over.is_set():
        began = time.perf_counter()
        read(small, "row none")
        latencies.append(time.perf_counter() - began)


threads = [threading.Thread(target=large, args=(client,)) for client in connections]
for thread in threads:
    thread.start()
ready.wait()
began = time.perf_counter()
asking = threading.Thread(target=ask)
asking.start()
for thread in threads:
    thread.join()
seconds = time.perf_counter() - began
over.set()
asking.join()
latencies.sort()
if len(results) != clients:
    sys.exit("a client failed")
print(json.dumps({
    "seconds": seconds,
    "rows": sum(rows for rows, _ in results),
    "bytes": sum(size for _, size in results),
    "small": {
        "median_us": latencies[len(latencies) // 2] * 1e6,
        "p99_us": latencies[int(len(latencies) * 0.99)] * 1e6,
    },
}), flush=True)
