"""Clients of PostgreSQL in Python, against a node: psycopg, asyncpg, SQLAlchemy, pandas, ADBC, ConnectorX.

    python postgres.py HOST PORT TOKEN [TABLE]

TABLE is a table of the node, by default the first one that the catalog names. TOKEN may be empty. A client that is not
installed is skipped. Prints a line for each check, and ends with 1 if one has failed.

    pip install "psycopg[binary]" asyncpg sqlalchemy pandas pyarrow adbc-driver-postgresql connectorx
"""

import sys
import traceback
from urllib.parse import quote

HOST, PORT, TOKEN = sys.argv[1:4]
TABLE = sys.argv[4] if len(sys.argv) > 4 else None
URI = f"postgresql://me:{quote(TOKEN, safe='')}@{HOST}:{PORT}/lightship"
failures = 0


def check(name):
    """Runs a function at once, and says how it went."""

    def run(function):
        global failures
        try:
            result = function()
            print(f"ok      {name}{'' if result is None else f': {result}'}")
        except ModuleNotFoundError as error:
            print(f"skipped {name}: {error}")
        except Exception as error:
            failures += 1
            print(f"FAILED  {name}: {type(error).__name__}: {error}")
            traceback.print_exc(limit=3, file=sys.stderr)

    return run


def equal(found, expected):
    assert found == expected, f"{found!r} instead of {expected!r}"


def table():
    """The table, its number of rows and of columns."""
    import psycopg

    global TABLE
    with psycopg.connect(URI) as connection:
        if TABLE is None:
            query = "select table_name from information_schema.tables where table_schema = 'public' order by 1"
            TABLE = connection.execute(query).fetchone()[0]
        rows = connection.execute(f"select count(*) from {TABLE}").fetchone()[0]
        cursor = connection.execute(f"select * from {TABLE} limit 1")
        return TABLE, rows, len(cursor.description)


@check("psycopg: connection")
def _():
    import psycopg

    with psycopg.connect(URI) as connection:
        assert connection.info.server_version // 10000 == 16
        equal(connection.execute("select 1").fetchone()[0], 1)
        return connection.execute("select version()").fetchone()[0]


@check("psycopg: parameters")
def _():
    import psycopg

    with psycopg.connect(URI) as connection:
        for binary in (False, True):
            cursor = connection.cursor(binary=binary)
            equal(cursor.execute("select cast(%s as bigint) + 1", (41,)).fetchone()[0], 42)
            equal(cursor.execute("select cast(%s as bigint) + 1", (None,)).fetchone()[0], None)
            equal(cursor.execute("select cast(%t as text)", ("it's ä",)).fetchone()[0], "it's ä")
        # Often enough to be prepared at the server.
        for number in range(10):
            equal(connection.execute("select cast(%s as bigint)", (number,)).fetchone()[0], number)


@check("psycopg: cursors")
def _():
    import psycopg

    name, rows, _ = table()
    with psycopg.connect(URI) as connection:
        with connection.cursor("parts") as cursor:
            cursor.itersize = 1000
            cursor.execute(f"select * from {name}")
            equal(sum(1 for _ in cursor), rows)


@check("psycopg: COPY")
def _():
    import psycopg

    name, rows, columns = table()
    with psycopg.connect(URI) as connection:
        cursor = connection.cursor()
        with cursor.copy(f"copy (select * from {name}) to stdout") as copy:
            found = list(copy.rows())
        equal(len(found), rows)
        equal({len(row) for row in found}, {columns})
        with cursor.copy(f"copy {name} to stdout (format binary)") as copy:
            data = b"".join(bytes(part) for part in copy)
        equal((data[:11], data[-2:]), (b"PGCOPY\n\xff\r\n\0", b"\xff\xff"))
        with cursor.copy(f"copy {name} to stdout (format csv, header)") as copy:
            data = b"".join(bytes(part) for part in copy)
        assert data.count(b"\n") >= rows + 1


@check("psycopg: transactions and errors")
def _():
    import psycopg

    with psycopg.connect(URI) as connection:
        try:
            connection.execute("select * from no_such_table")
            raise AssertionError("a table that does not exist was read")
        except psycopg.errors.UndefinedTable:
            pass
        try:
            connection.execute("select 1")
            raise AssertionError("a failed transaction went on")
        except psycopg.errors.InFailedSqlTransaction:
            connection.rollback()
        with connection.transaction():
            equal(connection.execute("select 1").fetchone()[0], 1)
    if TOKEN:
        try:
            psycopg.connect(f"postgresql://me:wrong@{HOST}:{PORT}/lightship")
            raise AssertionError("a wrong password was accepted")
        except psycopg.OperationalError:
            pass


@check("psycopg: names of types")
def _():
    import psycopg
    from psycopg.types import TypeInfo

    with psycopg.connect(URI) as connection:
        equal(TypeInfo.fetch(connection, "int8").oid, 20)
        equal(TypeInfo.fetch(connection, "hstore"), None)


@check("asyncpg")
def _():
    import asyncio

    import asyncpg

    name, rows, _ = table()

    async def run():
        connection = await asyncpg.connect(URI)
        equal(await connection.fetchval("select cast($1 as bigint) + 1", 41), 42)
        async with connection.transaction():
            count = 0
            async for _ in connection.cursor(f"select * from {name}", prefetch=100):
                count += 1
        equal(count, rows)
        await connection.close()
        # A connection is reset when it is returned.
        async with asyncpg.create_pool(URI, min_size=1, max_size=2) as pool:
            for _ in range(3):
                equal(await pool.fetchval("select 1"), 1)

    asyncio.run(run())


@check("SQLAlchemy")
def _():
    import sqlalchemy

    name, _, columns = table()
    inspector = sqlalchemy.inspect(sqlalchemy.create_engine(URI.replace("postgresql://", "postgresql+psycopg://")))
    assert name in inspector.get_table_names()
    assert "public" in inspector.get_schema_names()
    equal(inspector.get_view_names(), [])
    found = inspector.get_columns(name)
    equal(len(found), columns)
    inspector.get_pk_constraint(name)
    equal(inspector.get_indexes(name), [])
    equal(inspector.get_foreign_keys(name), [])
    assert inspector.has_table(name) and not inspector.has_table("no_such_table")
    return ", ".join(f"{column['name']} {column['type']}" for column in found[:4])


@check("pandas")
def _():
    import pandas
    import sqlalchemy

    name, rows, columns = table()
    engine = sqlalchemy.create_engine(URI.replace("postgresql://", "postgresql+psycopg://"))
    equal(pandas.read_sql(f"select * from {name}", engine).shape, (rows, columns))
    equal(pandas.read_sql_table(name, engine).shape, (rows, columns))


@check("ADBC")
def _():
    import adbc_driver_postgresql.dbapi as adbc

    name, rows, columns = table()
    with adbc.connect(URI) as connection, connection.cursor() as cursor:
        cursor.execute(f"select * from {name}")
        found = cursor.fetch_arrow_table()
        equal((found.num_rows, found.num_columns), (rows, columns))
        cursor.execute("select cast($1 as bigint) + 1", (41,))
        equal(cursor.fetchone()[0], 42)
        return ", ".join(f"{field.name} {field.type}" for field in found.schema)[:80]


@check("ADBC: metadata")
def _():
    import adbc_driver_postgresql.dbapi as adbc

    name, _, columns = table()
    with adbc.connect(URI) as connection:
        objects = connection.adbc_get_objects(depth="all").read_all().to_pylist()
        schemas = [schema for catalog in objects for schema in catalog["catalog_db_schemas"] or []]
        tables = {t["table_name"]: t for schema in schemas for t in schema["db_schema_tables"] or []}
        equal(len(tables[name]["table_columns"]), columns)
        equal(len(connection.adbc_get_table_schema(name)), columns)
        connection.adbc_get_info()


for protocol in ("binary", "csv", "cursor"):

    @check(f"ConnectorX: {protocol}")
    def _():
        import connectorx

        name, rows, columns = table()
        found = connectorx.read_sql(URI, f"select * from {name}", return_type="arrow", protocol=protocol)
        equal((found.num_rows, found.num_columns), (rows, columns))


sys.exit(failures > 0)
