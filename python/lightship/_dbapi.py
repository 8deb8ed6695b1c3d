"""DB-API 2.0 (PEP 249), with results as Arrow data."""

from __future__ import annotations

import datetime
import os
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from lightship import _lightship
from lightship._api import Reader, Uri, Written, pyarrow_for
from lightship._errors import DatabaseError as _DatabaseError
from lightship._errors import DataError as _DataError
from lightship._errors import Error as _Error
from lightship._errors import IntegrityError as _IntegrityError
from lightship._errors import (
    InterfaceError,
    NotSupportedError,
    ProgrammingError,
    wrong,
)
from lightship._errors import InternalError as _InternalError
from lightship._errors import OperationalError as _OperationalError
from lightship._errors import Warning as _Warning
from lightship._options import encoded, sources
from lightship._parameters import row_of
from lightship._records import Report

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow
    from typing_extensions import Self, Unpack

    from lightship._options import Options

apilevel = "2.0"
#: Threads may share the module and connections, but not cursors.
threadsafety = 2
#: Nodes, files, MySQL and SQLite take ``?``. PostgreSQL, nodes and files take ``$1``, ``$2`` and so on.
paramstyle = "qmark"

Date, Time, Timestamp, Binary = datetime.date, datetime.time, datetime.datetime, bytes


def DateFromTicks(ticks: float) -> datetime.date:
    return Date(*time.localtime(ticks)[:3])


def TimeFromTicks(ticks: float) -> datetime.time:
    return Time(*time.localtime(ticks)[3:6])


def TimestampFromTicks(ticks: float) -> datetime.datetime:
    return Timestamp(*time.localtime(ticks)[:6])


class _Types:
    """Equal to the names of Arrow's types that belong to a type of DB-API."""

    def __init__(self, *names: str) -> None:
        self._names = frozenset(names)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str):
            return other.split("(", 1)[0] in self._names
        return self is other

    def __hash__(self) -> int:
        return hash(self._names)


STRING = _Types("Utf8", "LargeUtf8", "Utf8View")
BINARY = _Types("Binary", "LargeBinary", "BinaryView", "FixedSizeBinary")
NUMBER = _Types(
    "Int8",
    "Int16",
    "Int32",
    "Int64",
    "UInt8",
    "UInt16",
    "UInt32",
    "UInt64",
    "Float16",
    "Float32",
    "Float64",
    "Decimal32",
    "Decimal64",
    "Decimal128",
    "Decimal256",
)
DATETIME = _Types("Date32", "Date64", "Time32", "Time64", "Timestamp", "Duration", "Interval")
ROWID = _Types()


def connect(uri: Uri, *, also: Iterable[Uri] = (), **options: Unpack[Options]) -> Connection:
    """Opens a source; with ``also``, several, whose rows are combined.

    Every statement is a transaction of its own.
    """
    given = sources(uri, also)
    return Connection(_lightship.Connection(given, encoded(dict(options))), given, dict(options))


class Connection:
    """One or several sources. Threads may share it; each needs a cursor of its own."""

    # DB-API's optional extension.
    Warning, Error, InterfaceError, DatabaseError = _Warning, _Error, InterfaceError, _DatabaseError
    DataError, OperationalError, IntegrityError = _DataError, _OperationalError, _IntegrityError
    InternalError, ProgrammingError, NotSupportedError = _InternalError, ProgrammingError, NotSupportedError

    def __init__(self, native: _lightship.Connection, uris: list[str], options: dict[str, Any]) -> None:
        self._native: _lightship.Connection | None = native
        self._uris = uris
        self._options = options
        self._process = os.getpid()

    def _open(self) -> _lightship.Connection:
        if self._native is None:
            raise wrong(ProgrammingError, "the connection is closed")
        if self._process != os.getpid():
            raise wrong(
                InterfaceError,
                "the connection belongs to the process that this one was forked from",
                "connect again in this process",
            )
        return self._native

    def cursor(self) -> Cursor:
        """A new cursor. Its queries use a connection of their own if another one is being read."""
        self._open()
        return Cursor(self)

    def execute(self, sql: str, parameters: Sequence[Any] | None = None) -> Cursor:
        """Runs a query with a new cursor."""
        return self.cursor().execute(sql, parameters)

    def commit(self) -> None:
        """Does nothing: every statement is a transaction of its own."""
        self._open()

    def rollback(self) -> None:
        """Raises: every statement is a transaction of its own."""
        self._open()
        raise wrong(NotSupportedError, "every statement is a transaction of its own: there is nothing to roll back")

    def close(self) -> None:
        """Closes it. Its cursors can't run queries any more."""
        if self._native is not None:
            self._native.close()
            self._native = None

    def __enter__(self) -> Self:
        self._open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._native is None else ", ".join(self._native.sources)
        return f"<lightship.Connection: {state}>"


class Cursor:
    """Runs queries, one after another."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.arraysize = 1
        self._native: _lightship.Reader | None = None
        self._columns: list[tuple[str, str, bool]] | None = None
        # The batch that rows are taken from, and the next row of it.
        self._batch: pyarrow.RecordBatch | None = None
        self._rows: list[tuple[Any, ...]] = []
        self._next = 0
        self._taken = 0
        # Rows that INSERT has added; None for a query.
        self._affected: int | None = None
        self._is_closed = False
        self._busy = threading.Lock()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if not self._busy.acquire(blocking=False):
            raise wrong(
                ProgrammingError,
                "another thread uses this cursor",
                "give each thread a cursor of its own; threads can share the connection",
            )
        try:
            if self._is_closed:
                raise wrong(ProgrammingError, "the cursor is closed")
            self.connection._open()
            yield
        finally:
            self._busy.release()

    def execute(self, sql: str, parameters: Sequence[Any] | None = None) -> Self:
        """Runs a query, and waits until its columns are known. The rows of the one before are given up.

        ``parameters`` are the values of ``?``, or of ``$1``, ``$2`` and so on, in order.
        """
        _expect_sql(sql)
        row = row_of(parameters)
        with self._alone():
            self._execute(sql, row)
        return self

    def _execute(self, sql: str, row: pyarrow.Table | None) -> None:
        self._forget()
        # Known before it has begun, so that it can be cancelled.
        self._native = self.connection._open().start(sql, row)
        try:
            self._native.begin()
            if self._native.is_insert():
                self._affected = self._native.affected()
                return
        except BaseException:
            self._native.cancel()
            self._native = None
            raise
        self._columns = self._native.columns()

    def executemany(self, sql: str, parameters: Iterable[Sequence[Any]]) -> None:
        """Runs a query once for each sequence of parameters, reads its rows and gives them up.

        Each is a round trip: many rows are written with ``adbc_ingest`` or ``lightship.write``.
        """
        _expect_sql(sql)
        with self._alone():
            self._forget()
            affected: int | None = None
            for values in parameters:
                if values is None:
                    raise wrong(ProgrammingError, "expected parameters as a sequence, not None")
                self._execute(sql, row_of(values))
                if self._affected is not None:
                    affected = (affected or 0) + self._affected
                    continue
                native = self._result()
                while native.next_batch() is not None:
                    pass
            self._forget()
            self._affected = affected

    def _forget(self) -> None:
        if self._native is not None:
            self._native.cancel()
        self._native = self._columns = self._batch = None
        self._rows, self._next, self._taken, self._affected = [], 0, 0, None

    def _executed(self) -> _lightship.Reader:
        if self._native is None:
            raise wrong(ProgrammingError, "no query has been executed")
        return self._native

    def _result(self) -> _lightship.Reader:
        native = self._executed()
        if self._affected is not None:
            raise wrong(ProgrammingError, "an INSERT returns no rows", "rowcount is the number of rows that it added")
        return native

    @property
    def description(self) -> list[tuple[str, str, None, None, int | None, int | None, bool]] | None:
        """For each column its name, Arrow type, precision and scale, and whether it may be null."""
        if self._columns is None:
            return None
        return [(name, kind, None, None, *_precision(kind), nullable) for name, kind, nullable in self._columns]

    @property
    def rowcount(self) -> int:
        """Rows that INSERT has added; of a query, rows of the result, once all have arrived, and -1 before."""
        if self._affected is not None:
            return self._affected
        report = None if self._native is None else self.report
        return -1 if report is None else report.rows

    @property
    def rownumber(self) -> int | None:
        """The number of the next row, from 0."""
        return None if self._native is None else self._taken + self._next

    @property
    def report(self) -> Report | None:
        """What was planned and what happened, once all rows have arrived."""
        report = self._executed().report()
        return None if report is None else Report(report)

    def _fill(self) -> bool:
        """Whether there is another row."""
        while self._next == len(self._rows):
            batch = self._result().next_batch()
            self._taken, self._next, self._rows, self._batch = self._taken + len(self._rows), 0, [], None
            if batch is None:
                return False
            self._batch = pyarrow_for("rows as Python objects").record_batch(batch)
            columns = [column.to_pylist() for column in self._batch.columns]
            self._rows = list(zip(*columns, strict=True)) if columns else [()] * self._batch.num_rows
        return True

    def fetchone(self) -> tuple[Any, ...] | None:
        """The next row; None after the last."""
        with self._alone():
            return self._one()

    def _one(self) -> tuple[Any, ...] | None:
        self._result()
        if not self._fill():
            return None
        self._next += 1
        return self._rows[self._next - 1]

    def fetchmany(self, size: int | None = None) -> list[tuple[Any, ...]]:
        """The next ``size`` rows, or fewer at the end."""
        with self._alone():
            return self._many(self.arraysize if size is None else size)

    def _many(self, size: int | None) -> list[tuple[Any, ...]]:
        self._result()
        rows: list[tuple[Any, ...]] = []
        while (size is None or len(rows) < size) and self._fill():
            end = len(self._rows) if size is None else self._next + size - len(rows)
            part = self._rows[self._next : end]
            self._next += len(part)
            rows.extend(part)
        return rows

    def fetchall(self) -> list[tuple[Any, ...]]:
        """All other rows."""
        with self._alone():
            return self._many(None)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        while (row := self.fetchone()) is not None:
            yield row

    def fetch_arrow(self) -> Reader | pyarrow.RecordBatchReader:
        """All other rows as an object with ``__arrow_c_stream__``."""
        with self._alone():
            reader = Reader(self._result())
            if self._next == len(self._rows):
                return reader
            pyarrow = pyarrow_for("a stream that continues within a batch")
            rest = self._batch.slice(self._next)  # type: ignore[union-attr]
            self._next = len(self._rows)
            others = (pyarrow.record_batch(batch) for batch in reader)
            return pyarrow.RecordBatchReader.from_batches(rest.schema, _chained(rest, others))

    def fetch_record_batch(self) -> pyarrow.RecordBatchReader:
        """All other rows as a reader of pyarrow, which gets batches as they arrive."""
        return pyarrow_for("a RecordBatchReader").RecordBatchReader.from_stream(self.fetch_arrow())

    def fetch_arrow_table(self) -> pyarrow.Table:
        """All other rows as a table of pyarrow."""
        rest = self.fetch_arrow()
        return rest.to_arrow() if isinstance(rest, Reader) else rest.read_all()

    def fetch_df(self, **arguments: Any) -> pandas.DataFrame:
        """All other rows as a data frame of pandas."""
        return self.fetch_arrow_table().to_pandas(**arguments)

    def fetch_polars(self) -> polars.DataFrame:
        """All other rows as a data frame of Polars."""
        rest = self.fetch_arrow()
        if isinstance(rest, Reader):
            return rest.to_polars()
        import polars

        return polars.DataFrame(rest.read_all())

    def adbc_ingest(
        self, table_name: str, data: Any, mode: str = "create", *, db_schema_name: str | None = None
    ) -> int:
        """Writes Arrow data to a table, and returns the number of rows.

        All rows are written or none. ``mode`` is create, append, which needs a table, create_append or replace.
        """
        modes = {"create": "create", "create_append": "append", "append": "existing", "replace": "replace"}
        if mode not in modes:
            raise wrong(ProgrammingError, f"unknown mode {mode!r}: expected {', '.join(modes)}")
        with self._alone():
            if len(self.connection._uris) > 1:
                raise wrong(NotSupportedError, "rows are written to one place, and this connection has several")
            table = table_name if db_schema_name is None else f"{db_schema_name}.{table_name}"
            options = encoded(self.connection._options)
            return Written(*_lightship.write(data, self.connection._uris[0], table, modes[mode], [], options)).rows

    def cancel(self) -> None:
        """Cancels the query that runs, from any thread."""
        native = self._native
        if native is not None:
            native.cancel()

    adbc_cancel = cancel

    def setinputsizes(self, sizes: Sequence[Any]) -> None:
        """Does nothing, as DB-API allows."""

    def setoutputsize(self, size: int, column: int | None = None) -> None:
        """Does nothing, as DB-API allows."""

    def close(self) -> None:
        """Gives up the rows that have not been read."""
        self.cancel()
        self._native = self._batch = None
        self._is_closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _chained(first: Any, others: Iterable[Any]) -> Iterator[Any]:
    yield first
    yield from others


def _precision(kind: str) -> tuple[int | None, int | None]:
    if not kind.startswith("Decimal"):
        return None, None
    precision, scale = kind[kind.index("(") + 1 : -1].split(",")
    return int(precision), int(scale)


def _expect_sql(sql: Any) -> None:
    if not isinstance(sql, str):
        raise wrong(ProgrammingError, f"expected SQL as str, not {type(sql).__name__}")
