"""Ctrl-C, the end of Python, and fork."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from conftest import Run, ended

LONG = "select pg_sleep(60)"
MANY = "select i, md5(i::text) as t from generate_series(1, 100000000) i"


def sleeping(postgres: str) -> int:
    """Statements of this test that still run at the server."""
    import lightship

    sql = (
        "select count(*) as n from pg_stat_activity where state = 'active' and pid <> pg_backend_pid() "
        "and (query like '%sleep(60%' or query like '%md5(i%')"
    )
    for _ in range(50):
        count = lightship.read_sql(postgres, sql)["n"][0].as_py()
        if count == 0:
            return 0
        time.sleep(0.1)
    return count


@pytest.mark.parametrize(
    "call",
    [
        "lightship.read_sql(uri, sql)",
        "lightship.connect(uri).execute(sql).fetchall()",
        "lightship.copy(uri, sql, 'out.csv')",
        "pyarrow.table(lightship.read_sql(uri, sql, 'reader'))",
        "polars.DataFrame(lightship.read_sql(uri, sql, 'reader'))",
        "asyncio.run(lightship.read_sql_async(uri, sql))",
    ],
)
@pytest.mark.parametrize("sql", [LONG, MANY], ids=["waiting", "arriving"])
def test_an_interrupt_ends_a_query_at_once(call: str, sql: str, postgres: str, python: Run) -> None:
    program = f"""
import asyncio, sys, time
import lightship, polars, pyarrow
uri, sql = sys.argv[1:]
print("ready", flush=True)
try:
    {call}
except (KeyboardInterrupt, Exception) as error:
    # Another library that reads our stream has errors of its own.
    print("interrupted" if isinstance(error, KeyboardInterrupt) or "interrupted" in str(error) else repr(error))
"""
    process = python(program, postgres, sql)
    assert process.stdout.readline() == "ready\n"
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    began = time.monotonic()
    code, out, err = ended(process)
    assert (code, out) == (0, "interrupted\n"), err
    assert time.monotonic() - began < 3
    assert sleeping(postgres) == 0


def test_an_interrupt_ends_a_write(postgres: str, python: Run) -> None:
    program = """
import sys, lightship, pyarrow
def batches():
    while True:
        yield pyarrow.record_batch({"a": list(range(1000))})
schema = pyarrow.schema([("a", pyarrow.int64())])
print("ready", flush=True)
try:
    lightship.write(pyarrow.RecordBatchReader.from_batches(schema, batches()), sys.argv[1], table="endless")
except (KeyboardInterrupt, lightship.DataError):
    print("interrupted")
"""
    process = python(program, postgres)
    assert process.stdout.readline() == "ready\n"
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    assert ended(process)[:2] == (0, "interrupted\n")
    import lightship

    assert lightship.read_sql(postgres, "select to_regclass('endless')::text as t")["t"].to_pylist() == [None]


def test_other_threads_run_while_one_waits(postgres: str, python: Run) -> None:
    program = """
import sys, threading, time, lightship
counted = 0
def count():
    global counted
    while True:
        counted += 1
        time.sleep(0.01)
threading.Thread(target=count, daemon=True).start()
lightship.read_sql(sys.argv[1], "select pg_sleep(1)")
print(counted > 50)
"""
    assert ended(python(program, postgres))[1] == "True\n"


@pytest.mark.parametrize("way", ["thread", "reader", "exit", "async"])
def test_python_can_end_during_a_fetch(way: str, postgres: str, python: Run) -> None:
    program = {
        "thread": "threading.Thread(target=lightship.read_sql, args=(uri, sql), daemon=True).start(); time.sleep(0.5)",
        "reader": "reader = lightship.read_sql(uri, sql, 'reader'); batches = iter(reader); next(batches)",
        "exit": "cursor = lightship.connect(uri).execute(sql); cursor.fetchone(); sys.exit(0)",
        "async": """
async def main():
    task = asyncio.ensure_future(lightship.read_sql_async(uri, sql))
    await asyncio.sleep(0.5)
asyncio.run(main())""",
    }[way]
    process = python(
        f"import asyncio, sys, threading, time, lightship\nuri, sql = sys.argv[1:]\n{program}", postgres, MANY
    )
    code, _, err = ended(process)
    assert (code, err) == (0, "")
    assert sleeping(postgres) == 0


def test_fork(postgres: str, python: Run) -> None:
    program = """
import os, sys, lightship
uri = sys.argv[1]
connection = lightship.connect(uri)
cursor = connection.execute("select i from generate_series(1, 100000) i")
reader = lightship.read_sql(uri, "select i from generate_series(1, 100000) i", "reader")
child = os.fork()
if child == 0:
    for use in (connection.cursor, cursor.fetchone, lambda: connection.execute("select 1"), lambda: next(iter(reader))):
        try:
            use()
        except (lightship.InterfaceError, lightship.ProgrammingError) as error:
            assert "forked" in str(error) and "connect again" in error.hint, error
        else:
            os._exit(1)
    del cursor, reader
    # What the child opens itself works.
    code = 0 if lightship.connect(uri).execute("select 1").fetchall() == [(1,)] else 2
    sys.exit(code)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
print(len(cursor.fetchall()), reader.to_arrow().num_rows, connection.execute("select 2").fetchone())
"""
    code, out, err = ended(python(program, postgres))
    assert (code, out) == (0, "100000 100000 (2,)\n"), err


def test_the_command_is_in_the_package(sales: str) -> None:
    command = [sys.executable, "-m", "lightship._command"]
    run = subprocess.run(
        [*command, "fetch", sales, "select sum(amount) as s from sales", "--format", "csv"],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ,
    )
    assert run.stdout == "s\n12\n"
    run = subprocess.run([*command, "fetch", sales, "select nothing"], capture_output=True, text=True, check=False)
    assert run.returncode == 3
    assert "error:" in run.stderr
    assert subprocess.run([*command, "nonsense"], capture_output=True, check=False).returncode == 2


def test_interrupting_the_command(postgres: str) -> None:
    command = [sys.executable, "-m", "lightship._command", "fetch", postgres, LONG]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    code, _, err = ended(process)
    assert code == 130
    assert "interrupted" in err


def test_a_server_of_another_version_is_refused_with_its_version(node: str) -> None:
    import lightship

    host, port = node.removeprefix("lightship://").rsplit(":", 1)
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        proxy.settimeout(10)

        def answer() -> None:
            """Gives on the hello of the node as one of a later version: its fifth byte is the version."""
            client, _ = proxy.accept()
            with client, socket.create_connection((host, int(port))) as server:
                server.sendall(client.recv(65536))
                hello = bytearray(server.recv(65536))
                hello[4] += 1
                client.sendall(hello)
                # Until the client has read it and hangs up.
                client.recv(65536)

        thread = threading.Thread(target=answer)
        thread.start()
        uri = f"lightship://127.0.0.1:{proxy.getsockname()[1]}"
        with pytest.raises(lightship.OperationalError, match=r"version 3 .* version 2"):
            lightship.read_sql(uri, "select 1 as one")
        thread.join(10)
        assert not thread.is_alive()
