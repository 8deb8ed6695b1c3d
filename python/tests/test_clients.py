"""Clients that are not ours use a node as their users do."""

from __future__ import annotations

import datetime
import decimal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lightship
from conftest import Run, command
from servers import FLIGHT_JDBC, POSTGRES_JDBC, SCRIPTS, TOKEN, Node, java, serve

#: More than a batch, and more than a cursor takes at once.
ROWS = 20_000


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node with the table `orders`, and the range file `target`, into which clients may write."""
    with serve_orders(tmp_path_factory.mktemp("clients")) as node:
        yield node


@pytest.fixture(scope="module")
def divided(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """The same, with results of Flight SQL in several streams."""
    with serve_orders(tmp_path_factory.mktemp("divided"), "--flight-endpoints", "3") as node:
        yield node


@contextmanager
def serve_orders(folder: Path, *options: str) -> Iterator[Node]:
    day = datetime.date(2026, 1, 1)
    table = pa.table(
        {
            "id": range(ROWS),
            "customer": [f"customer {number % 100}" if number % 7 else None for number in range(ROWS)],
            "price": pa.array([decimal.Decimal(number) / 4 for number in range(ROWS)], pa.decimal128(10, 2)),
            "day": [day + datetime.timedelta(number % 365) for number in range(ROWS)],
            "at": pa.array([number * 1_000_001 for number in range(ROWS)], pa.timestamp("us", "UTC")),
        }
    )
    lightship.write(table, folder / "orders.parquet")
    tables = ["--table", f"orders={folder / 'orders.parquet'}", "--range-data", str(folder / "range")]
    with serve(*tables, *options) as node:
        columns = "id bigint, name text"
        created = subprocess.run(
            [*command(), "range", "create", node.uri(), "target", "--key", "id", "--columns", columns],
            capture_output=True,
            text=True,
            check=False,
        )
        assert created.returncode == 0, created.stderr
        yield node


def succeeds(words: list[str], address: str, *more: str) -> str:
    host, port = address.rsplit(":", 1)
    run = subprocess.run([*words, host, port, TOKEN, *more], capture_output=True, text=True, check=False, timeout=120)
    assert run.returncode == 0, f"{run.stdout}\n{run.stderr}"
    return run.stdout


@pytest.mark.parametrize("kind", ["node", "divided"])
def test_flight_sql_in_python(kind: str, request: pytest.FixtureRequest) -> None:
    address = request.getfixturevalue(kind).flight
    out = succeeds([sys.executable, str(SCRIPTS / "flight.py")], address, "target")
    assert "writes: 3002 rows" in out
    assert "all is well" in out


def test_streams_of_one_result(divided: Node) -> None:
    cursor = flight_cursor(divided)
    query = f"select value from generate_series(1, {50 * ROWS})"
    partitions, schema = cursor.adbc_execute_partitions(query)
    assert (len(partitions), schema.names) == (3, ["value"])
    assert len(cursor.adbc_execute_partitions(f"{query} order by value")[0]) == 1
    cursor.execute(query)
    values = cursor.fetch_arrow_table()["value"].to_pylist()
    assert sorted(values) == list(range(1, 50 * ROWS + 1))
    cursor.execute(f"{query} order by value")
    assert cursor.fetch_arrow_table()["value"].to_pylist() == list(range(1, 50 * ROWS + 1))


@pytest.mark.parametrize("kind", ["node", "divided"])
def test_flight_sql_in_java(kind: str, request: pytest.FixtureRequest) -> None:
    address = request.getfixturevalue(kind).flight
    out = succeeds(java(FLIGHT_JDBC, "FlightJdbc.java"), address, "target")
    assert "writes: 11 rows" in out
    assert "all is well" in out


def test_clients_of_postgresql_in_python(node: Node) -> None:
    out = succeeds([sys.executable, str(SCRIPTS / "postgres.py")], node.postgres, "orders")
    # The script skips what is not installed; here everything is.
    assert "skipped" not in out, out


def test_clients_of_postgresql_in_java(node: Node) -> None:
    out = succeeds(java(POSTGRES_JDBC, "PostgresJdbc.java"), node.postgres, "orders")
    assert f"rows in parts: {ROWS}" in out, out


@pytest.mark.parametrize("protocol", ["binary", "text"])
def test_duckdbs_scanner(protocol: str, node: Node) -> None:
    import duckdb
    import duckdb_extension_postgres_scanner as scanner

    (extension,) = Path(scanner.__file__).parent.glob(f"extensions/v{duckdb.__version__}/*.duckdb_extension")
    with duckdb.connect() as database:
        database.execute(f"load '{extension}'")
        database.execute(f"set pg_use_text_protocol = {protocol == 'text'}")
        database.execute(f"attach '{node.postgres_uri()}' as node (type postgres, read_only)")
        columns = 'id, customer, price, cast(day as varchar), epoch_us("at") as us'
        rows = database.execute(f"select {columns} from node.orders order by id").fetchall()
        assert len(rows) == ROWS
        assert rows[8] == (8, "customer 8", decimal.Decimal("2.00"), "2026-01-09", 8_000_008)
        assert rows[7][1] is None
        # Conditions are passed on; those of texts with a collation.
        (count,) = database.execute("select count(*) from node.orders where customer > 'customer 5'").fetchone()
        assert count == sum(1 for row in rows if row[1] is not None and row[1] > "customer 5")
        assert database.execute("select id from node.orders where id between 7 and 8").fetchall() == [(7,), (8,)]


#: A query that practically never ends.
ENDLESS = "select value, value * 3 as triple from generate_series(1, 1000000000000)"
#: One without a row before it ends, which is never.
WAITING = f"select max(triple) from ({ENDLESS})"


def is_idle(node: Node) -> bool:
    """Whether the node stops computing, within some seconds."""
    stat = Path(f"/proc/{node.process}/stat")
    before = None
    for _ in range(100):
        ticks = sum(map(int, stat.read_text().rsplit(")", 1)[1].split()[11:13]))
        if ticks == before:
            return True
        before = ticks
        time.sleep(0.2)
    return False


def flight_cursor(node: Node) -> Any:
    import adbc_driver_flightsql.dbapi as dbapi
    from adbc_driver_flightsql import DatabaseOptions

    token = {DatabaseOptions.AUTHORIZATION_HEADER.value: f"Bearer {TOKEN}"}
    return dbapi.connect(f"grpc://{node.flight}", db_kwargs=token, autocommit=True).cursor()


def by_flight(node: Node, sql: str) -> None:
    cursor = flight_cursor(node)
    threading.Timer(0.5, cursor.adbc_cancel).start()
    cursor.execute(sql)
    cursor.fetch_arrow_table()


def by_psycopg(node: Node, sql: str) -> None:
    import psycopg

    with psycopg.connect(node.postgres_uri()) as connection:
        threading.Timer(0.5, connection.cancel_safe).start()
        connection.execute(sql)


def by_adbc(node: Node, sql: str) -> None:
    import adbc_driver_postgresql.dbapi as dbapi

    with dbapi.connect(node.postgres_uri()) as connection, connection.cursor() as cursor:
        threading.Timer(0.5, cursor.adbc_cancel).start()
        cursor.execute(sql)
        cursor.fetch_arrow_table()


@pytest.mark.parametrize(
    ("client", "sql"),
    # psycopg keeps all rows until the last one has come.
    [(by_flight, ENDLESS), (by_adbc, ENDLESS), (by_flight, WAITING), (by_adbc, WAITING), (by_psycopg, WAITING)],
)
def test_another_thread_cancels_a_statement(client: Callable[[Node, str], None], sql: str, node: Node) -> None:
    began = time.monotonic()
    with pytest.raises(Exception, match=r"(?i)cancel"):
        client(node, sql)
    assert time.monotonic() - began < 10
    assert is_idle(node)


@pytest.mark.parametrize("protocol", ["flight", "postgres"])
def test_a_client_that_is_killed_before_it_fetches(protocol: str, node: Node, python: Run) -> None:
    program = {
        "flight": """
cursor = dbapi.connect(f"grpc://{flight}", db_kwargs={"username": "me", "password": token}, autocommit=True).cursor()
cursor.execute(sql)
reader = cursor.fetch_record_batch()""",
        "postgres": """
connection = psycopg.connect(f"postgresql://me:{token}@{postgres}/lightship")
cursor = connection.cursor("c")
cursor.execute(sql)
cursor.fetchmany(2)""",
    }[protocol]
    start = (
        "import sys, time, psycopg, adbc_driver_flightsql.dbapi as dbapi\nflight, postgres, token, sql = sys.argv[1:]"
    )
    process = python(f"{start}{program}\nprint('ready', flush=True)\ntime.sleep(60)", *node[1:3], TOKEN, ENDLESS)
    assert process.stdout.readline() == "ready\n", process.stderr.read()
    process.kill()
    process.wait()
    assert is_idle(node)


def memory_bytes(node: Node) -> int:
    status = Path(f"/proc/{node.process}/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmRSS:"))


def test_statements_that_are_never_closed(node: Node) -> None:
    """The node's memory for them is bounded, and it goes on."""
    import psycopg

    before = memory_bytes(node)
    cursor = flight_cursor(node)
    for number in range(10_000):
        cursor.adbc_prepare(f"select {number}")
    with psycopg.connect(node.postgres_uri(), autocommit=True, prepare_threshold=0) as connection:
        connection.prepared_max = None
        for number in range(10_000):
            assert connection.execute(f"select {number}").fetchone() == (number,)
        assert memory_bytes(node) - before < 64 << 20
    cursor.execute("select count(*) from orders")
    assert cursor.fetchone() == (ROWS,)
