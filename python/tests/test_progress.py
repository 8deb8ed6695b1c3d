"""What is shown while a query runs: a line in a terminal, and nothing where nobody looks."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

# Sent over longer than the half second after which a line is shown.
SLOW = "select i, repeat('x', 10000) as t, pg_sleep(0.0005) is null as s from generate_series(1, 3000) i"

PROGRAM = """
import asyncio, sys
import lightship
uri, sql = sys.argv[1:]
{call}
print("done")
"""

CALLS = {
    "read": "lightship.read_sql(uri, sql, progress=True, message_bytes=65536)",
    "async": "asyncio.run(lightship.read_sql_async(uri, sql, progress=True, message_bytes=65536))",
    "copy": "lightship.copy(uri, sql, 'out.arrow', progress=True, message_bytes=65536)",
}


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_terminal_shows_rows_and_rate(call: str, postgres: str, tmp_path: os.PathLike[str]) -> None:
    terminal, other = pty.openpty()
    words = [sys.executable, "-c", PROGRAM.format(call=call), postgres, SLOW]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=other, cwd=tmp_path, env=environment(), text=True)
    os.close(other)
    shown = b""
    while True:
        try:
            part = os.read(terminal, 65536)
        except OSError:
            # The other end is closed.
            break
        if not part:
            break
        shown += part
    os.close(terminal)
    out, _ = process.communicate(timeout=30)
    text = shown.decode()
    assert out == "done\n", text
    lines = [line for line in text.split("\r") if "rows, " in line]
    assert lines, text
    assert all("iB/s" in line or " B/s" in line for line in lines), text
    # The line is removed at the end.
    assert text.endswith("\r")
    assert not text.split("\r")[-2].strip()


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_pipe_gets_nothing(call: str, postgres: str, tmp_path: os.PathLike[str]) -> None:
    words = [sys.executable, "-c", PROGRAM.format(call=call), postgres, SLOW]
    ended = subprocess.run(words, capture_output=True, cwd=tmp_path, env=environment(), text=True, check=False)
    assert (ended.stdout, ended.stderr) == ("done\n", "")
