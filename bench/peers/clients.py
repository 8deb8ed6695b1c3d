"""Reads a result as the users of a client in Python do, and prints its time and memory: clients.py WAY URI SQL.

The clock starts with the call: imports are not measured. What a library returns is kept until the clock has stopped.
"""

import sys

from peer import measure

ROWS = 50_000


kept = []


def whole(read):
    """A call that returns the whole result."""

    def work():
        kept.append(read())
        return len(kept[0]), 0

    return work


def dropped(batches):
    """A call that returns batches, which are counted and dropped."""
    return lambda: (sum(batch.num_rows for batch in batches()), 0)


# From PostgreSQL, with the connection, as one call.


def lightship_arrow(uri, sql):
    import lightship
    import pyarrow  # noqa: F401

    return whole(lambda: lightship.read_sql(uri, sql))


def lightship_pandas(uri, sql):
    import lightship
    import pandas  # noqa: F401
    import pyarrow  # noqa: F401

    return whole(lambda: lightship.read_sql(uri, sql, "pandas"))


def lightship_pandas_arrow(uri, sql):
    import lightship
    import pandas
    import pyarrow  # noqa: F401

    return whole(lambda: lightship.read_sql(uri, sql, "reader").to_pandas(types_mapper=pandas.ArrowDtype))


def lightship_polars(uri, sql):
    import lightship
    import polars  # noqa: F401

    return whole(lambda: lightship.read_sql(uri, sql, "polars"))


def lightship_stream(uri, sql):
    import lightship

    return dropped(lambda: lightship.read_sql(uri, sql, "reader"))


def connectorx_arrow(uri, sql, **options):
    import connectorx
    import pyarrow  # noqa: F401

    return whole(lambda: connectorx.read_sql(uri, sql, return_type="arrow", **options))


def connectorx_arrow_2(uri, sql):
    return connectorx_arrow(uri, sql, partition_on="l_orderkey", partition_num=2)


def connectorx_stream(uri, sql):
    import connectorx
    import pyarrow  # noqa: F401

    return dropped(lambda: connectorx.read_sql(uri, sql, return_type="arrow_stream", batch_size=65536))


def connectorx_pandas(uri, sql):
    import connectorx
    import pandas  # noqa: F401

    return whole(lambda: connectorx.read_sql(uri, sql))


def connectorx_polars(uri, sql, **options):
    import connectorx  # noqa: F401
    import polars

    return whole(lambda: polars.read_database_uri(sql, uri, engine="connectorx", **options))


def connectorx_polars_2(uri, sql):
    return connectorx_polars(uri, sql, partition_on="l_orderkey", partition_num=2)


def adbc_arrow(uri, sql):
    import adbc_driver_postgresql.dbapi as adbc

    def read():
        with adbc.connect(uri) as connection, connection.cursor() as cursor:
            cursor.execute(sql)
            return cursor.fetch_arrow_table()

    return whole(read)


def adbc_stream(uri, sql):
    import adbc_driver_postgresql.dbapi as adbc

    def read():
        with adbc.connect(uri) as connection, connection.cursor() as cursor:
            cursor.execute(sql)
            yield from cursor.fetch_record_batch()

    return dropped(read)


def adbc_pandas(uri, sql, **options):
    import adbc_driver_postgresql.dbapi as adbc
    import pandas

    def read():
        with adbc.connect(uri) as connection:
            return pandas.read_sql(sql, connection, **options)

    return whole(read)


def adbc_pandas_arrow(uri, sql):
    return adbc_pandas(uri, sql, dtype_backend="pyarrow")


def adbc_polars(uri, sql):
    import adbc_driver_postgresql  # noqa: F401
    import polars

    return whole(lambda: polars.read_database_uri(sql, uri, engine="adbc"))


def duckdb_arrow(uri, sql):
    from extensions import connect

    def read():
        database = connect("postgres_scanner")
        database.execute(f"attach '{uri}' as pg (type postgres, read_only)")
        database.execute("use pg")
        return database.execute(sql).to_arrow_table()

    return whole(read)


def psycopg_arrow(uri, sql):
    import psycopg
    import pyarrow

    def read():
        tables = []
        with psycopg.connect(uri) as connection, connection.cursor("rows", binary=True) as cursor:
            cursor.execute(sql)
            while rows := cursor.fetchmany(ROWS):
                names = [column.name for column in cursor.description]
                tables.append(pyarrow.table(list(map(pyarrow.array, zip(*rows, strict=True))), names=names))
        return pyarrow.concat_tables(tables, promote_options="permissive")

    return whole(read)


def sqlalchemy_pandas(uri, sql):
    import pandas
    import sqlalchemy

    engine = sqlalchemy.create_engine(uri.replace("postgresql://", "postgresql+psycopg://", 1))
    return whole(lambda: pandas.read_sql(sql, engine))


# From a node and from servers of Flight, on an open connection.


def open_connection(uri):
    import lightship

    connection = lightship.connect(uri)
    connection.execute("select 1").fetch_arrow_table()
    return connection


def node_table(uri, sql):
    connection = open_connection(uri)
    return whole(lambda: connection.execute(sql).fetch_arrow_table())


def node_batches(uri, sql):
    connection = open_connection(uri)
    return dropped(lambda: connection.execute(sql).fetch_record_batch())


def flight_adbc(uri, sql):
    import adbc_driver_flightsql.dbapi as adbc

    cursor = adbc.connect(uri, autocommit=True).cursor()
    cursor.execute("select 1")
    cursor.fetch_arrow_table()

    def read():
        cursor.execute(sql)
        return cursor.fetch_record_batch()

    return dropped(read)


def flight_pyarrow(uri, sql):
    import pyarrow.flight as flight

    client = flight.FlightClient(uri)

    def read(sql):
        info = client.get_flight_info(flight.FlightDescriptor.for_command(sql.encode()))
        return (chunk.data for chunk in client.do_get(info.endpoints[0].ticket))

    sum(batch.num_rows for batch in read("select 1"))
    return dropped(lambda: read(sql))


way, uri, sql = sys.argv[1:]
measure(globals()[way](uri, sql))
