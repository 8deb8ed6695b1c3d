"""DB-API 2.0."""

from __future__ import annotations

import datetime
import decimal
import subprocess
import threading
import time
import uuid
from pathlib import Path

import pyarrow
import pytest

import lightship
from conftest import command
from servers import serve

VALUES = (
    "select 1::int4 as a, 2.50::numeric(10,2) as b, 'x'::text as c, '\\x01'::bytea as d, date '2026-01-02' as e, "
    "null::float8 as f"
)


def test_the_module() -> None:
    assert (lightship.apilevel, lightship.threadsafety, lightship.paramstyle) == ("2.0", 2, "qmark")
    assert issubclass(lightship.ProgrammingError, lightship.DatabaseError)
    assert issubclass(lightship.InterfaceError, lightship.Error)
    assert lightship.Connection.DataError is lightship.DataError
    assert lightship.Date(2026, 1, 2) == datetime.date(2026, 1, 2)
    assert lightship.Binary(b"x") == b"x"


def test_rows_and_description(postgres: str) -> None:
    with lightship.connect(postgres) as connection, connection.cursor() as cursor:
        assert (cursor.description, cursor.rowcount) == (None, -1)
        assert cursor.execute(VALUES) is cursor
        names = [column[0] for column in cursor.description]
        types = [column[1] for column in cursor.description]
        assert names == ["a", "b", "c", "d", "e", "f"]
        assert all(types[at] == lightship.NUMBER for at in (0, 1, 5))
        assert types[2] == lightship.STRING
        assert types[2] != lightship.NUMBER
        assert types[3] == lightship.BINARY
        assert types[4] == lightship.DATETIME
        assert cursor.description[1][4:6] == (10, 2)
        row = (1, decimal.Decimal("2.50"), "x", b"\x01", datetime.date(2026, 1, 2), None)
        assert cursor.fetchone() == row
        assert cursor.fetchone() is None
        assert cursor.rowcount == 1
        assert cursor.report.rows == 1
        connection.commit()
        with pytest.raises(lightship.NotSupportedError):
            connection.rollback()


def test_rows_of_an_insert(tmp_path: Path) -> None:
    with serve("--range-data", str(tmp_path / "ranges")) as node:
        words = ["range", "create", node.uri(), "stock", "--key", "id", "--columns", "id bigint, name text"]
        subprocess.run([*command(), *words], check=True, stdout=subprocess.DEVNULL)
        with lightship.connect(node.uri()) as connection, connection.cursor() as cursor:
            cursor.execute("insert into stock values (1, 'a'), (2, 'b')")
            assert (cursor.rowcount, cursor.description) == (2, None)
            with pytest.raises(lightship.ProgrammingError, match="no rows"):
                cursor.fetchone()
            cursor.execute("/* more */ insert into stock select id + 10, name from (values (1, 'c')) t(id, name)")
            assert cursor.rowcount == 1
            cursor.executemany("insert into stock values (?, ?)", [(5, "e"), (6, "f")])
            assert cursor.rowcount == 2
            cursor.execute("select count(*) from stock")
            assert (cursor.fetchall(), cursor.rowcount) == ([(5,)], 1)


def test_parts_of_a_result(postgres: str) -> None:
    with lightship.connect(postgres, batch_rows=100) as connection:
        cursor = connection.execute("select i from generate_series(1, 1000) i order by i")
        assert cursor.fetchone() == (1,)
        assert cursor.fetchmany() == [(2,)]
        assert cursor.fetchmany(200)[-1] == (202,)
        assert cursor.rownumber == 202
        assert next(iter(cursor)) == (203,)
        assert cursor.fetch_arrow_table()["i"].to_pylist() == list(range(204, 1001))
        cursor.execute("select i from generate_series(1, 1000) i")
        assert len(cursor.fetchall()) == 1000
        assert cursor.fetchall() == []
        assert cursor.execute("select 7 as x").fetch_df()["x"].tolist() == [7]
        assert cursor.execute("select 7 as x").fetch_polars()["x"].to_list() == [7]
        reader = cursor.execute("select i from generate_series(1, 1000) i").fetch_record_batch()
        assert isinstance(reader, pyarrow.RecordBatchReader)
        assert reader.read_all().num_rows == 1000


def test_cursors_are_independent(postgres: str, node: str) -> None:
    for uri, sql in (
        (postgres, "select i from generate_series(1, 100000) i"),
        (node, "select value from generate_series(1, 100000) as t(value)"),
    ):
        with lightship.connect(uri) as connection:
            one, other = connection.execute(sql), connection.execute(sql)
            assert one.fetchone() == other.fetchone() == (1,)
            assert len(one.fetchall()) == len(other.fetchall()) == 99_999


def test_a_statement_that_failed_can_be_followed(postgres: str) -> None:
    with lightship.connect(postgres) as connection:
        cursor = connection.cursor()
        for _ in range(3):
            with pytest.raises(lightship.ProgrammingError):
                cursor.execute("select nothing")
            assert cursor.execute("select 1").fetchall() == [(1,)]


def test_what_is_closed_or_not_executed(sales: str) -> None:
    connection = lightship.connect(sales)
    cursor = connection.cursor()
    with pytest.raises(lightship.ProgrammingError, match="no query"):
        cursor.fetchone()
    cursor.execute("select 1")
    cursor.close()
    with pytest.raises(lightship.ProgrammingError, match="cursor is closed"):
        cursor.fetchone()
    other = connection.execute("select 1")
    connection.close()
    connection.close()
    for use in (connection.cursor, lambda: other.execute("select 1"), other.fetchone, connection.commit):
        with pytest.raises(lightship.ProgrammingError, match="connection is closed"):
            use()
    assert repr(connection) == "<lightship.Connection: closed>"


def test_passwords_are_not_shown(postgres: str) -> None:
    uri = postgres.replace("me@", "me:secret@")
    with lightship.connect(uri) as connection:
        assert "secret" not in repr(connection)
        assert "127.0.0.1" in repr(connection)


def test_parameters_of_each_source(sales: str, sqlite_uri: str, node: str, postgres: str) -> None:
    for uri, sql, parameters, expected in (
        (sales, "select amount from sales where region = ? and amount > ?", ("north", 3), [(5,)]),
        (sales, "select amount from sales where region = $2 and amount > $1", [3, "north"], [(5,)]),
        (sales, "select count(*) from sales where region = ?", ["' or 1 = 1 --"], [(0,)]),
        (sqlite_uri, "select name from item where id = ?", (2,), [("ink",)]),
        (node, "select cast(? as bigint) + 1", (41,), [(42,)]),
        (node, "select value from generate_series(1, 9) as t(value) where value > ?", ("7",), [(8,), (9,)]),
        (postgres, "select i from generate_series(1, 9) i where i > $1", (7,), [(8,), (9,)]),
    ):
        with lightship.connect(uri) as connection:
            assert sorted(connection.execute(sql, parameters).fetchall()) == expected, (uri, sql)
            assert connection.execute("select 1", ()).fetchall() == [(1,)]


def test_parameters_keep_their_values(postgres: str, node: str) -> None:
    at = datetime.datetime(2024, 2, 29, 12, 34, 56, 1)
    utc = at.replace(tzinfo=datetime.timezone.utc)
    for value, type_name in (
        (None, "int"),
        (True, "boolean"),
        (-(2**63), "bigint"),
        (0.1, "double precision"),
        ("ü'\n", "text"),
        (decimal.Decimal("12345678901234567890.25"), "numeric(30, 2)"),
        (datetime.date(2024, 2, 29), "date"),
        (at, "timestamp"),
        (utc, "timestamptz"),
        (at.time(), "time"),
    ):
        for uri in (postgres, node):
            if uri == node and type_name == "numeric(30, 2)":
                type_name = "decimal(30, 2)"
            with lightship.connect(uri) as connection:
                assert connection.execute(f"select cast($1 as {type_name}) as x", [value]).fetchall() == [(value,)]
    with lightship.connect(postgres) as connection:
        assert connection.execute("select $1::bytea", [b"\x00\xff"]).fetchall() == [(b"\x00\xff",)]
        asked = uuid.uuid4()
        assert connection.execute("select $1::uuid::text", [asked]).fetchall() == [(str(asked),)]


def test_wrong_parameters(sales: str, node: str, postgres: str) -> None:
    for uri, place in ((sales, "?"), (node, "?"), (postgres, "$1")):
        with lightship.connect(uri) as connection:
            cursor = connection.cursor()
            for sql, parameters in (
                (f"select cast({place} as int)", (1, 2)),
                (f"select cast({place} as int)", None),
                ("select 1", (1,)),
            ):
                with pytest.raises(lightship.ProgrammingError) as caught:
                    cursor.execute(sql, parameters)
                assert caught.value.hint, sql
                assert caught.value.sqlstate in ("22023", "42P02"), sql
            assert cursor.execute("select 1").fetchall() == [(1,)]
    for uri, sql, value in (
        (node, "select cast(? as bigint) + 1", "x"),
        (postgres, "select $1::date", 1),
    ):
        with lightship.connect(uri) as connection, pytest.raises(lightship.ProgrammingError) as caught:
            connection.execute(sql, (value,))
        assert caught.value.sqlstate == "22023"
        assert "parameter $1" in str(caught.value)
    with lightship.connect(sales) as connection:
        cursor = connection.cursor()
        for wrong in (1, "x", object(), {"a": 1}, b"x"):
            with pytest.raises(lightship.ProgrammingError, match="expected parameters"):
                cursor.execute("select ?", wrong)
        with pytest.raises(lightship.ProgrammingError, match="can't be sent"):
            cursor.execute("select ?", [object()])
        with pytest.raises(lightship.ProgrammingError, match="can't be sent"):
            cursor.execute("select ?", [10**76])
        with pytest.raises(lightship.ProgrammingError, match="expected SQL"):
            cursor.execute(b"select 1")


def test_a_query_for_each_of_many_parameters(sales: str) -> None:
    with lightship.connect(sales) as connection:
        cursor = connection.cursor()
        sql = "select amount / ? from sales"
        cursor.executemany(sql, ((number,) for number in range(1, 20)))
        with pytest.raises(lightship.ProgrammingError, match="no query"):
            cursor.fetchone()
        cursor.executemany(sql, [])
        # The last one fails while its rows are read.
        with pytest.raises(lightship.DataError):
            cursor.executemany(sql, [(1,), (0,)])
        with pytest.raises(lightship.ProgrammingError):
            cursor.executemany(sql, [(1,), (1, 2)])
        with pytest.raises(lightship.ProgrammingError, match="expected parameters"):
            cursor.executemany(sql, [1])
        assert cursor.execute("select 1").fetchall() == [(1,)]


def test_two_threads_on_one_cursor(postgres: str) -> None:
    with lightship.connect(postgres) as connection:
        cursor = connection.cursor()
        slow = threading.Thread(target=lambda: cursor.execute("select pg_sleep(1)").fetchall())
        slow.start()
        time.sleep(0.3)
        with pytest.raises(lightship.ProgrammingError, match="another thread"):
            cursor.execute("select 1")
        slow.join()
        assert cursor.execute("select 1").fetchall() == [(1,)]


def test_threads_share_a_connection(postgres: str) -> None:
    counts = []
    with lightship.connect(postgres) as connection:

        def read() -> None:
            counts.append(len(connection.execute("select i from generate_series(1, 20000) i").fetchall()))

        threads = [threading.Thread(target=read) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert counts == [20_000] * 6


def test_cancel(postgres: str) -> None:
    with lightship.connect(postgres) as connection, connection.cursor() as cursor:
        threading.Timer(0.3, cursor.cancel).start()
        began = time.monotonic()
        with pytest.raises(lightship.OperationalError) as caught:
            cursor.execute("select pg_sleep(60)").fetchall()
        assert time.monotonic() - began < 5
        assert (caught.value.kind, caught.value.sqlstate) == ("cancelled", "57014")
        assert cursor.execute("select 1").fetchall() == [(1,)]
        assert running(connection) == 0


def running(connection: lightship.Connection) -> int:
    """Statements that sleep at the server, after a moment for cancel requests."""
    for _ in range(30):
        count = connection.execute(
            "select count(*) from pg_stat_activity where state = 'active' and query like '%pg_sleep(60)%' "
            "and pid <> pg_backend_pid()"
        ).fetchall()[0][0]
        if count == 0:
            return 0
        time.sleep(0.1)
    return count
