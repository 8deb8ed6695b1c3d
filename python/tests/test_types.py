"""Every type through every client, both ways: the tables of docs/guide/types.md.

With LIGHTSHIP_WRITE_DOCS=1 they are written, otherwise compared.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import polars
import psycopg
import pyarrow as pa
import pyarrow.parquet
import pytest

import lightship
import type_clients as clients
from servers import Node, serve
from type_cases import (
    ARROW_SQL,
    JAVA,
    MADE,
    POSTGRES,
    PYTHON,
    Case,
    arrow_cases,
    java_value,
    postgres_kind,
    postgres_table,
)
from type_clients import Adbc, Answer, Client
from type_page import Outcome, Table, in_columns, is_documented, message, outcome
from type_values import of_python

DRIVER = os.environ.get("LIGHTSHIP_ADBC_DRIVER", "")
pytestmark = pytest.mark.skipif(not DRIVER, reason="LIGHTSHIP_ADBC_DRIVER names the driver")
CASES = arrow_cases()


class Served(NamedTuple):
    node: Node
    #: The drivers, which start while other tests run.
    flight_jdbc: clients.Jdbc
    postgres_jdbc: clients.Jdbc


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A node with a table for each type."""
    folder = tmp_path_factory.mktemp("types")
    for case in CASES:
        if case.array is not None:
            write_ipc(folder / f"{case.table}.arrow", case.array)
    for table, (kind, texts) in ARROW_SQL.items():
        values = ", ".join(f"({number}, '{text}')" for number, text in enumerate(texts, 1))
        sql = f"select arrow_cast(column2, '{kind}') as v from (values (0, null), {values}) order by column1"
        lightship.copy(folder / "t_bool.arrow", sql, folder / f"{table}.arrow")
    with serve("--data", str(folder)) as node:
        jdbc = {"flight": clients.flight_jdbc(node), "postgres": clients.postgres_jdbc(node)}
        with clients.closing(**jdbc):
            yield Served(node, *jdbc.values())


@pytest.fixture(scope="module")
def node(served: Served) -> Node:
    return served.node


def write_ipc(path: Path, array: pa.Array) -> None:
    schema = pa.schema([("v", array.type)])
    with pa.ipc.new_file(path, schema) as file:
        file.write(pa.record_batch([array], schema=schema))


def read_arrow(client: Client) -> list[Outcome]:
    found = []
    for case in CASES:
        sql = f"select v from {case.table}"
        read = outcome(
            case.values,
            lambda sql=sql: client.read(sql),
            lambda number, sql=sql: client.read(f"{sql} limit 1 offset {number}"),
        )
        found.append(as_same(read, case.kind) if client.is_arrow else read)
    return found


def as_same(read: Outcome, kind: str) -> Outcome:
    return read._replace(kind="same") if read.kind == kind else read


def test_arrow_through_clients_of_arrow(node: Node, served: Served) -> None:
    with clients.closing(
        lightship=clients.Lightship(node.uri()),
        adbc=clients.lightship_adbc(DRIVER, node.uri()),
        flight=clients.flight_adbc(node),
        pyarrow=clients.PyarrowFlight(node),
    ) as found:
        readers = [*found.values(), served.flight_jdbc]
        columns = in_columns([lambda client=client: read_arrow(client) for client in readers])
    head = ("Lightship in Python", "Lightship's ADBC driver", "Flight SQL: ADBC", "pyarrow", "JDBC, class")
    table = Table("Arrow", *head)
    for case, *row in zip(CASES, *columns, strict=True):
        table.add(case.kind, *row)
    is_documented("arrow", table.text())


def test_arrow_through_clients_of_postgresql(node: Node, served: Served) -> None:
    uri = node.postgres_uri()
    with clients.closing(
        copy=clients.Texts(uri),
        psycopg=clients.Psycopg(uri),
        adbc=clients.postgres_adbc(uri),
    ) as found:
        readers = [*found.values(), served.postgres_jdbc]
        columns = in_columns([lambda client=client: read_arrow(client) for client in readers])
    table = Table("Arrow", "type, and text of COPY", "psycopg", "ADBC", "JDBC, class")
    for case, *row in zip(CASES, *columns, strict=True):
        table.add(case.kind, *row)
    is_documented("arrow-postgres", table.text())


@pytest.fixture(scope="module")
def database(postgres: str) -> str:
    """A database of its own: other tests list types and tables."""
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("create database types")
    return postgres.removesuffix("/postgres") + "/types"


@pytest.fixture(scope="module")
def kinds(database: str) -> list[str]:
    """The types that the server has, each with a table of `n` and `v`."""
    found = []
    with psycopg.connect(database, autocommit=True) as connection:
        for kind, texts in POSTGRES.items():
            name, base = postgres_table(kind), kind.removesuffix("[]")
            if base in MADE and base == kind:
                try:
                    connection.execute(MADE[base])
                except psycopg.errors.FeatureNotSupported:
                    continue
            connection.execute(f"create table {name} (n integer, v {kind})")
            for number, text in enumerate((None, *texts)):
                connection.execute(f"insert into {name} values ({number}, %s::text::{kind})", [text])
            found.append(kind)
    return found


def values_of(server: Client, kind: str) -> dict[str, Any]:
    _, values = server.read(f"select v from {postgres_table(kind)} order by n")
    return {label_of(text): value for text, value in zip((None, *POSTGRES[kind]), values, strict=True)}


def label_of(text: str | None) -> str:
    if text is None:
        return "NULL"
    return f"`{text}`" if text and len(text) < 40 and text.isprintable() else "empty" if not text else f"`{text[:10]}…`"


def test_postgresql_types(database: str, kinds: list[str]) -> None:
    with clients.closing(server=clients.Server(database)) as found:
        expected = {kind: values_of(found["server"], kind) for kind in kinds}

    def read(client: Client) -> list[Outcome]:
        with clients.closing(client=client):
            return [
                outcome(
                    expected[kind],
                    lambda kind=kind: client.read(f"select v from {postgres_table(kind)} order by n"),
                    lambda number, kind=kind: client.read(f"select v from {postgres_table(kind)} where n = {number}"),
                )
                for kind in kinds
            ]

    def written(to: str, write: Callable[[str, str], object]) -> list[Outcome]:
        """`write` gets a query and a table."""
        with clients.closing(server=clients.Server(database)) as found:
            server = found["server"]

            def through(query: str, kind: str) -> Answer:
                table = f"{to}{postgres_table(kind)}"
                write(query, table)
                return server.read(f"select v from {table} order by n")

            return [
                outcome(
                    expected[kind],
                    lambda kind=kind: through(f"select n, v from {postgres_table(kind)}", kind),
                    lambda number, kind=kind: through(
                        f"select n, v from {postgres_table(kind)} where n = {number}", kind
                    ),
                )
                for kind in kinds
            ]

    def copy(sql: str, table: str) -> object:
        return lightship.copy(database, sql, database, table=table, mode="replace")

    def write(sql: str, table: str) -> object:
        return lightship.write(lightship.read_sql(database, sql), database, table=table, mode="replace")

    by_lightship, by_adbc, copied, rewritten = in_columns(
        [
            lambda: read(clients.Lightship(database)),
            lambda: read(clients.lightship_adbc(DRIVER, database)),
            lambda: written("copied_", copy),
            lambda: written("written_", write),
        ]
    )
    head = ("Lightship in Python", "Lightship's ADBC driver", "`copy` to a new table", "`write` of the Arrow data")
    table = Table("PostgreSQL", *head)
    for kind, one, two, three, four in zip(kinds, by_lightship, by_adbc, copied, rewritten, strict=True):
        three, four = (as_same(cell, kind) for cell in (three, four))
        table.add(postgres_kind(kind), one, two, three, four)
    is_documented("postgresql", table.text())


def bound(bind: Callable[[str, int], Answer], values: dict[str, Any], sql: str, expected: str) -> Outcome:
    """Binds each value to `select $1`, and to a cast if that does not give back its type and value."""
    plain = outcome(values, no_answer, lambda number: bind("select {} as v", number))
    plain = as_same(plain, expected)
    if not sql or (plain.kind == "same" and not plain.notes):
        return plain
    cast = outcome(values, no_answer, lambda number: bind(f"select cast({{}} as {sql}) as v", number))
    cast = as_same(cast, expected)
    if "refused" in (plain.kind, cast.kind):
        better = plain.kind == "refused"
    elif "same" in (plain.kind, cast.kind) and plain.kind != cast.kind:
        better = cast.kind == "same"
    else:
        better = cast.faults < plain.faults or (cast.faults == plain.faults and cast.kind != plain.kind)
    if not better:
        reasons = [f"cast: {note}" for note in cast.notes if cast.kind == "refused" and plain.kind != "same"]
        return plain._replace(notes=plain.notes + reasons)
    return cast if cast.kind == "refused" else cast._replace(kind=f"{cast.kind}, cast")


def single(array: pa.Array, number: int) -> pa.Array:
    """A value without the others, which stay in the memory of a slice."""
    batch = pa.record_batch([array.slice(number, 1)], ["v"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write(batch)
    return pa.ipc.open_stream(sink.getvalue()).read_next_batch().column(0)


def no_answer() -> Answer:
    """Each value is bound by itself."""
    raise NotImplementedError


def test_arrow_as_parameters(node: Node, database: str) -> None:
    cases = [case for case in CASES if case.array is not None]

    def bind(client: Adbc, cases: list[Case] = cases) -> list[Outcome]:
        with clients.closing(client=client):
            return [
                bound(
                    lambda sql, number, case=case: client.bind(sql.format("$1"), single(case.array, number)),
                    case.values,
                    case.sql,
                    case.kind,
                )
                for case in cases
            ]

    # Most of the time is that of this driver.
    parts = [cases[start : start + 12] for start in range(0, len(cases), 12)]
    by_lightship, by_postgres, through_lightship, *by_flight = in_columns(
        [
            lambda: bind(clients.lightship_adbc(DRIVER, node.uri())),
            lambda: bind(clients.postgres_adbc(node.postgres_uri())),
            lambda: bind(clients.lightship_adbc(DRIVER, database)),
            *(lambda part=part: bind(clients.flight_adbc(node), part) for part in parts),
        ]
    )
    columns = by_lightship, [cell for part in by_flight for cell in part], by_postgres, through_lightship
    head = ("Lightship's ADBC driver", "Flight SQL: ADBC", "PostgreSQL: ADBC", "Lightship's ADBC driver to PostgreSQL")
    table = Table("Arrow", *head)
    for case, *row in zip(cases, *columns, strict=True):
        table.add(case.kind, *row)
    is_documented("bound", table.text())


def test_arrow_is_written(database: str, tmp_path: Path) -> None:
    cases = [case for case in CASES if case.array is not None]

    def each(write: Callable[[Case, pa.Table], Answer]) -> list[Outcome]:
        return [
            outcome(
                case.values,
                lambda case=case: write(case, pa.table({"v": case.array})),
                lambda number, case=case: write(case, pa.table({"v": single(case.array, number)})),
            )
            for case in cases
        ]

    def to_postgres() -> list[Outcome]:
        with clients.closing(server=clients.Server(database)) as found:

            def write(case: Case, rows: pa.Table) -> Answer:
                lightship.write(rows, database, table=f"new_{case.table}", mode="replace")
                return found["server"].read(f"select v from new_{case.table}")

            return each(write)

    def ingested() -> list[Outcome]:
        with clients.closing(server=clients.Server(database), adbc=clients.lightship_adbc(DRIVER, database)) as found:

            def write(case: Case, rows: pa.Table) -> Answer:
                with found["adbc"].connection.cursor() as cursor:
                    cursor.adbc_ingest(f"ingested_{case.table}", rows, mode="replace")
                return found["server"].read(f"select v from ingested_{case.table}")

            return each(write)

    def to_file(extension: str, read: Callable[[Path], pa.Table]) -> list[Outcome]:
        def write(case: Case, rows: pa.Table) -> Answer:
            path = tmp_path / f"{case.table}.{extension}"
            lightship.write(rows, path)
            return clients.of_table(read(path))

        return [as_same(cell, case.kind) for case, cell in zip(cases, each(write), strict=True)]

    columns = in_columns(
        [
            to_postgres,
            ingested,
            lambda: to_file("parquet", pyarrow.parquet.read_table),
            lambda: to_file("arrow", lambda path: pa.ipc.open_file(path).read_all()),
        ]
    )
    table = Table("Arrow", "PostgreSQL by `write`", "PostgreSQL by ADBC's ingest", "Parquet", "Arrow file")
    for case, *row in zip(cases, *columns, strict=True):
        table.add(case.kind, *row)
    is_documented("written", table.text())


def test_arrow_in_files(tmp_path: Path) -> None:
    cases = [case for case in CASES if case.array is not None]

    def read(reader: Callable[[Path], pa.Table], name: str) -> list[Outcome]:
        def through(case: Case, array: pa.Array) -> Answer:
            path = tmp_path / f"{name}_{case.table}.parquet"
            lightship.write(pa.table({"v": array}), path)
            return clients.of_table(reader(path))

        found = []
        for case in cases:
            cell = outcome(
                case.values,
                lambda case=case: through(case, case.array),
                lambda number, case=case: through(case, single(case.array, number)),
            )
            found.append(as_same(cell, case.kind))
        return found

    def by_duckdb(path: Path) -> pa.Table:
        with duckdb.connect() as connection:
            return connection.sql(f"select * from '{path}'").to_arrow_table()

    def by_polars(path: Path) -> pa.Table:
        try:
            return polars.read_parquet(path).to_arrow()
        except BaseException as error:  # Its panics are no exceptions of the usual kind.
            raise RuntimeError(f"{error}") from None

    def examples(extension: str, text_of: Callable[[str], str]) -> list[Outcome]:
        """The text of a value, which is the second one that is not NULL, if there are two."""
        found = []
        for case in cases:
            path = tmp_path / f"example_{case.table}.{extension}"
            try:
                lightship.write(pa.table({"v": single(case.array, min(2, len(case.values) - 1))}), path)
            except lightship.Error as error:
                found.append(Outcome("refused", [f"refused: {message(error)}"]))
            else:
                text = text_of(path.read_text()).replace("|", "\\|")
                found.append(Outcome(f"`{text}`" if text else "empty", []))
        return found

    columns = in_columns(
        [
            lambda: read(by_duckdb, "duckdb"),
            lambda: read(by_polars, "polars"),
            lambda: examples("csv", lambda text: text.removeprefix("v\n").rstrip("\n")),
            lambda: examples("json", lambda text: text.removeprefix('{"v":').rstrip("\n").removesuffix("}")),
        ]
    )
    table = Table("Arrow", "Parquet in DuckDB", "Parquet in Polars", "CSV", "JSON")
    for case, *row in zip(cases, *columns, strict=True):
        table.add(case.kind, *row)
    is_documented("files", table.text())


def test_python_as_parameters(node: Node, database: str) -> None:
    def bind(client: Any, sign: str) -> list[Outcome]:
        with clients.closing(client=client):
            found = []
            for sql, values in PYTHON.values():
                expected = {label: of_python(value) for label, value in values.items()}
                given = list(values.values())
                (kind,) = {type(value).__name__ for value in given}
                kind = "None" if kind == "NoneType" else kind

                def one(text: str, number: int, given: list[Any] = given) -> Answer:
                    return client.read(text.format(sign), [given[number]])

                found.append(bound(one, expected, sql, kind))
            return found

    columns = in_columns(
        [
            lambda: bind(clients.DbApi(node.uri()), "?"),
            lambda: bind(clients.DbApi(database), "$1"),
            lambda: bind(clients.Psycopg(node.postgres_uri()), "%s"),
        ]
    )
    table = Table("Python", "Lightship to a node", "Lightship to PostgreSQL", "psycopg to a node")
    for kind, *row in zip(PYTHON, *columns, strict=True):
        table.add(kind, *row)
    is_documented("python", table.text())


def test_java_as_parameters(served: Served) -> None:
    def bind(client: clients.Jdbc) -> list[Outcome]:
        return [
            bound(
                lambda text, number, name=name, values=values: client.read(
                    text.format("?"), name, list(values.values())[number]
                ),
                {label: java_value(name, value) for label, value in values.items()},
                sql,
                name,
            )
            for name, (sql, values) in JAVA.items()
        ]

    columns = in_columns([lambda: bind(served.flight_jdbc), lambda: bind(served.postgres_jdbc)])
    table = Table("Java", "Flight SQL: JDBC", "PostgreSQL: JDBC")
    for kind, *row in zip(JAVA, *columns, strict=True):
        table.add(kind, *row)
    is_documented("java", table.text())
