"""Shared by the peers' programs: the line of JSON that they print at the end."""

import json
import time


def peak_memory_bytes():
    """Peak memory of this process (VmHWM)."""
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


def measure(work):
    """Times `work`, which returns (rows, bytes), and prints the result."""
    began = time.perf_counter()
    rows, size = work()
    seconds = time.perf_counter() - began
    print(json.dumps({
        "seconds": seconds,
        "rows": rows,
        "bytes": size,
        "peak_memory_bytes": peak_memory_bytes(),
    }), flush=True)
