"""Clients that read a column `v`, and bind a parameter."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import adbc_driver_flightsql.dbapi
import adbc_driver_manager.dbapi
import adbc_driver_postgresql.dbapi
import psycopg
import psycopg.types.json
import pyarrow as pa
import pyarrow.flight as flight
from adbc_driver_flightsql import DatabaseOptions

import lightship
from servers import FLIGHT_JDBC, POSTGRES_JDBC, TOKEN, Node, java
from type_cases import name_of
from type_values import Text, of_arrow, of_python

#: The type that a client gives, and its values.
Answer = tuple[str, list[Any]]


def of_table(table: pa.Table) -> Answer:
    column = table.column(0)
    return name_of(column.type), of_arrow(column)


class Client:
    """A connection that one thread uses."""

    #: Whether its types are Arrow's.
    is_arrow = True

    def read(self, sql: str) -> Answer:
        raise NotImplementedError

    def close(self) -> None:
        pass


class Lightship(Client):
    def __init__(self, uri: str) -> None:
        self.uri = uri

    def read(self, sql: str) -> Answer:
        return of_table(lightship.read_sql(self.uri, sql))


class Adbc(Client):
    """Any driver; `after` is a statement that follows an error."""

    def __init__(self, connection: Any, after: str = "") -> None:
        self.connection = connection
        self.after = after

    def read(self, sql: str, parameters: Any = None) -> Answer:
        try:
            with self.connection.cursor() as cursor:
                cursor.execute(sql, parameters)
                return of_table(cursor.fetch_arrow_table())
        except Exception:
            if self.after:
                with self.connection.cursor() as cursor:
                    cursor.execute(self.after)
            raise

    def bind(self, sql: str, value: pa.Array) -> Answer:
        return self.read(sql, pa.record_batch([value], ["v"]))

    def close(self) -> None:
        self.connection.close()


def lightship_adbc(driver: str, uri: str) -> Adbc:
    options = {"uri": uri}
    return Adbc(adbc_driver_manager.dbapi.connect(driver=driver, db_kwargs=options, autocommit=True))


def flight_adbc(node: Node) -> Adbc:
    options = {DatabaseOptions.AUTHORIZATION_HEADER.value: f"Bearer {TOKEN}"}
    uri = f"grpc://{node.flight}"
    return Adbc(adbc_driver_flightsql.dbapi.connect(uri, db_kwargs=options, autocommit=True))


def postgres_adbc(uri: str) -> Adbc:
    # The driver leaves a transaction open when a parameter is refused.
    return Adbc(adbc_driver_postgresql.dbapi.connect(uri, autocommit=True), after="rollback")


class PyarrowFlight(Client):
    def __init__(self, node: Node) -> None:
        self.client = flight.FlightClient(f"grpc://{node.flight}")
        self.options = flight.FlightCallOptions(headers=[self.client.authenticate_basic_token("me", TOKEN)])

    def read(self, sql: str) -> Answer:
        info = self.client.get_flight_info(flight.FlightDescriptor.for_command(sql.encode()), self.options)
        return of_table(self.client.do_get(info.endpoints[0].ticket, self.options).read_all())

    def close(self) -> None:
        self.client.close()


class Psycopg(Client):
    is_arrow = False

    def __init__(self, uri: str) -> None:
        self.connection = psycopg.connect(uri, autocommit=True)

    def read(self, sql: str, parameters: Any = None) -> Answer:
        cursor = self.connection.execute(sql, parameters)
        values = [row[0] for row in cursor.fetchall()]
        return kind_of(values), [of_python(value) for value in values]

    def close(self) -> None:
        self.connection.close()


def kind_of(values: list[Any]) -> str:
    """The name of Python's type."""
    return " or ".join(dict.fromkeys(type(value).__name__ for value in values if value is not None)) or "None"


class Texts(Psycopg):
    """PostgreSQL's types, and its texts, as `COPY` sends them."""

    def read(self, sql: str, parameters: Any = None) -> Answer:
        described = self.connection.execute(f"select * from ({sql}) as t limit 0").description
        with self.connection.cursor().copy(f"copy ({sql}) to stdout") as copy:
            values = [None if row[0] is None else Text(row[0]) for row in copy.rows()]
        return described[0].type_display, values


class Server(Psycopg):
    """A PostgreSQL server: types with modifiers, and values as its own texts."""

    def read(self, sql: str, parameters: Any = None) -> Answer:
        with self.connection.cursor() as cursor:
            cursor.execute(sql)
            result, column = cursor.pgresult, cursor.description[0]
            raw = [result.get_value(row, 0) for row in range(result.ntuples)]
            modifier = result.fmod(0)
            values = [None if value is None else Text(value.decode()) for value in raw]
            (kind,) = cursor.execute("select format_type(%s, %s)", (column.type_code, modifier)).fetchone()
        return kind, values


class Jdbc(Client):
    """TypesJdbc.java, which answers line by line."""

    is_arrow = False

    def __init__(self, driver: str, url: str, user: str = "", password: str = "") -> None:
        # Not UTC, as on the hosts of most users.
        quick = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Duser.timezone=Europe/Berlin")
        words = [*java(driver, "TypesJdbc.java", *quick), url, user, password]
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, encoding="utf-8"
        )

    def read(self, sql: str, *parameter: str) -> Answer:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\t".join(["v", sql, *parameter]) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, "the driver's program has ended"
        _, kind, *rest = line.rstrip("\n").split("\t")
        texts = [None if part == r"\N" else Text(re.sub(r"\\(.)", unescaped, part)) for part in rest]
        if len(rest) == 1 and kind == "":
            raise RuntimeError(texts[0])
        return kind or "null", texts[1:]

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(20)


def unescaped(found: re.Match[str]) -> str:
    return {"t": "\t", "n": "\n"}.get(found[1], found[1])


def flight_jdbc(node: Node) -> Jdbc:
    return Jdbc(FLIGHT_JDBC, f"jdbc:arrow-flight-sql://{node.flight}/?useEncryption=false&token={TOKEN}")


def postgres_jdbc(node: Node) -> Jdbc:
    return Jdbc(POSTGRES_JDBC, f"jdbc:postgresql://{node.postgres}/lightship", "me", TOKEN)


class DbApi(Client):
    """Lightship's cursors, with values of Python."""

    is_arrow = False

    def __init__(self, uri: str) -> None:
        self.connection = lightship.connect(uri)

    def read(self, sql: str, parameters: Any = None) -> Answer:
        values = [row[0] for row in self.connection.execute(sql, parameters).fetchall()]
        return kind_of(values), [of_python(value) for value in values]

    def close(self) -> None:
        self.connection.close()


@contextmanager
def closing(**clients: Client) -> Iterator[dict[str, Client]]:
    try:
        yield clients
    finally:
        for client in clients.values():
            client.close()
