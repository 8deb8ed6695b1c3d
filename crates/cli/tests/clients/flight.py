"""Uses a server of Flight SQL with ADBC and pyarrow, as their users do.

    python flight.py HOST PORT TOKEN [TARGET|- [CA.pem]]

It reads all tables that the server lists, so that it runs against any node. TOKEN may be empty. With TARGET, it also
appends to that table, whose first two columns are an integer and a text, and removes nothing. With CA.pem it uses TLS. It
prints what it found, and fails at the first difference.

    pip install adbc-driver-flightsql pyarrow
"""

import argparse
import datetime
import threading
import time

import adbc_driver_flightsql.dbapi as dbapi
import adbc_driver_manager
import pyarrow as pa
import pyarrow.flight as flight
from adbc_driver_flightsql import DatabaseOptions


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("host")
    parser.add_argument("port", type=int)
    parser.add_argument("token")
    parser.add_argument("target", nargs="?", default="-")
    parser.add_argument("tls", nargs="?")
    return parser.parse_args()


class Server:
    def __init__(self, options):
        self.scheme = "grpc+tls" if options.tls else "grpc"
        self.uri = f"{self.scheme}://{options.host}:{options.port}"
        self.token = options.token
        self.roots = open(options.tls).read() if options.tls else None

    def adbc(self, **credentials):
        if not credentials:
            credentials = {DatabaseOptions.AUTHORIZATION_HEADER.value: f"Bearer {self.token}"}
        if self.roots:
            credentials[DatabaseOptions.TLS_ROOT_CERTS.value] = self.roots
        return dbapi.connect(self.uri, db_kwargs=credentials, autocommit=True)

    def pyarrow(self):
        client = flight.FlightClient(self.uri, tls_root_certs=self.roots)
        header = client.authenticate_basic_token("anybody", self.token)
        assert header[0] == b"authorization", header
        return client, flight.FlightCallOptions(headers=[header])


def quoted(*names):
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def tables(connection):
    """All tables but those of information_schema, as (catalog, schema, name)."""
    objects = connection.adbc_get_objects(depth="all").read_all().to_pylist()
    found = {}
    for catalog in objects:
        for schema in catalog["catalog_db_schemas"]:
            for table in schema["db_schema_tables"]:
                if schema["db_schema_name"] != "information_schema":
                    key = (catalog["catalog_name"], schema["db_schema_name"], table["table_name"])
                    found[key] = [column["column_name"] for column in table["table_columns"]]
                    assert table["table_type"] in ("TABLE", "VIEW"), table
    return found


def metadata(server):
    with server.adbc() as connection:
        info = connection.adbc_get_info()
        assert info["vendor_name"] == "Lightship", info
        assert set(connection.adbc_get_table_types()) == {"TABLE", "VIEW"}
        found = tables(connection)
        assert found, "the server lists no tables"
        for (catalog, schema, name), columns in found.items():
            listed = connection.adbc_get_table_schema(name, catalog_filter=catalog, db_schema_filter=schema)
            assert listed.names == columns, (name, listed.names, columns)
        pattern = next(iter(found))[2][:-1] + "_"
        few = connection.adbc_get_objects(depth="tables", table_name_filter=pattern).read_all()
        assert few.num_rows >= 1
        print(f"metadata: {info['vendor_name']} {info['vendor_version']}, {len(found)} tables")
        return found


def read(server, found):
    client, options = server.pyarrow()
    with server.adbc() as connection, connection.cursor() as cursor:
        for names in found:
            sql = f"select * from {quoted(*names)}"
            try:
                cursor.execute(sql)
                by_adbc = cursor.fetch_arrow_table()
            except adbc_driver_manager.Error as error:
                # A row that is larger than a message, and the like.
                print(f"{names[2]}: refused: {str(error)[:100]}")
                continue
            by_adbc.validate(full=True)
            descriptor = flight.FlightDescriptor.for_command(sql.encode())
            info = client.get_flight_info(descriptor, options)
            reader = client.do_get(info.endpoints[0].ticket, options)
            assert reader.schema == info.schema, names
            by_pyarrow = reader.read_all()
            by_pyarrow.validate(full=True)
            assert by_pyarrow.num_rows == by_adbc.num_rows, names
            assert client.get_schema(descriptor, options).schema == info.schema
            print(f"{names[2]}: {by_adbc.num_rows} rows, {by_adbc.num_columns} columns")


def parameters(server):
    sql = (
        "select cast($1 as bigint) as n, cast($2 as varchar) as t, cast($3 as timestamp) as at, "
        "cast($4 as double) as d, cast($5 as boolean) as b, cast($6 as date) as day"
    )
    at = datetime.datetime(2026, 11, 24, 12, 30, 15, 123456)
    day = datetime.date(2026, 2, 28)
    with server.adbc() as connection, connection.cursor() as cursor:
        for values in [(7, "seven", at, 1.5, True, day), (-1, "", at, 0.0, False, day), (None,) * 6]:
            cursor.execute(sql, values)
            row = cursor.fetchone()
            assert row == values, (row, values)
        declared = cursor.adbc_prepare(sql)
        assert len(declared) == 6, declared
        print("parameters: values come back as they were")


def errors(server):
    if server.token:
        wrong_token(server)
    with server.adbc(username="anybody", password=server.token) as connection, connection.cursor() as cursor:
        try:
            cursor.execute("select * from there_is_no_such_table")
            raise AssertionError("an unknown table was accepted")
        except adbc_driver_manager.ProgrammingError as error:
            assert "there_is_no_such_table" in str(error), error
        try:
            cursor.execute("select (")
            raise AssertionError("a syntax error was accepted")
        except adbc_driver_manager.ProgrammingError:
            pass
    print("errors: refused as expected")


def wrong_token(server):
    header = {DatabaseOptions.AUTHORIZATION_HEADER.value: f"Bearer wrong{server.token}"}
    try:
        with server.adbc(**header) as connection, connection.cursor() as cursor:
            cursor.execute("select 1")
        raise AssertionError("a wrong token was accepted")
    except adbc_driver_manager.Error as error:
        assert "token" in str(error), error
    client = flight.FlightClient(server.uri, tls_root_certs=server.roots)
    try:
        client.authenticate_basic_token("anybody", "wrong")
        raise AssertionError("a wrong password was accepted")
    except flight.FlightUnauthenticatedError:
        pass


def largest(server, found):
    """The table with the most rows, read by several threads at once, and given up half way."""
    with server.adbc() as connection, connection.cursor() as cursor:
        def first(names):
            cursor.execute(f"select * from {quoted(*names)}")
            reader = cursor.fetch_record_batch()
            try:
                return reader.read_next_batch().num_rows
            except StopIteration:
                return 0
            except Exception:
                return -1
        names = max(found, key=first)
        cursor.execute(f"select * from {quoted(*names)}")
        cursor.adbc_cancel()
    counts = []

    def count():
        with server.adbc() as connection, connection.cursor() as cursor:
            cursor.execute(f"select * from {quoted(*names)}")
            counts.append(cursor.fetch_arrow_table().num_rows)

    threads = [threading.Thread(target=count) for _ in range(4)]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(counts)) == 1 and len(counts) == 4, counts
    print(f"{names[2]}: {counts[0]} rows, four times at once, in {time.monotonic() - began:.2f} s")


def write(server, target):
    with server.adbc() as connection, connection.cursor() as cursor:
        cursor.execute(f"select * from {target}")
        before = cursor.fetch_arrow_table()
        first, second = before.schema.names[:2]
        start = before.num_rows + 1_000_000
        cursor.executemany(
            f"insert into {target} ({quoted(first)}, {quoted(second)}) values ($1, $2)",
            [(start, "one"), (start + 1, None)],
        )
        rows = pa.table({first: pa.array(range(start + 2, start + 3002), pa.int64()),
                         second: pa.array(["x"] * 3000)})
        assert cursor.adbc_ingest(target, rows, mode="append") == 3000
        cursor.execute(f"select * from {target}")
        assert cursor.fetch_arrow_table().num_rows == before.num_rows + 3002
        for mode in ("create", "replace"):
            try:
                cursor.adbc_ingest(target, rows, mode=mode)
                raise AssertionError(f"{mode} was accepted")
            except adbc_driver_manager.Error as error:
                print(f"{mode}: {str(error)[:100]}")
        print("writes: 3002 rows")


def main():
    options = arguments()
    server = Server(options)
    found = metadata(server)
    read(server, found)
    parameters(server)
    errors(server)
    largest(server, found)
    if options.target != "-":
        write(server, options.target)
    print("flight.py: all is well")


if __name__ == "__main__":
    main()
