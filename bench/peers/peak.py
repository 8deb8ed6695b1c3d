"""Runs a command and prints its time and peak memory: peak.py COMMAND..."""

import json
import resource
import subprocess
import sys
import time

began = time.perf_counter()
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
seconds = time.perf_counter() - began
kilobytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
print(json.dumps({"seconds": seconds, "rows": 0, "bytes": 0, "peak_memory_bytes": kilobytes * 1024}))
