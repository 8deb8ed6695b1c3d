"""Functions of one line, and results as streams."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, overload

from lightship import _lightship
from lightship._errors import ProgrammingError, wrong
from lightship._options import encoded, sources
from lightship._parameters import row_of
from lightship._progress import Bar
from lightship._records import Explanation, Plan, Profile, Report

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow
    from typing_extensions import Self, Unpack

    from lightship._options import Options

Uri = str | os.PathLike[str]
ReturnType = Literal["arrow", "pandas", "polars", "reader"]


def pyarrow_for(what: str) -> ModuleType:
    try:
        import pyarrow
    except ImportError as error:
        raise wrong(ProgrammingError, f"pyarrow is needed for {what}", "pip install pyarrow") from error
    return pyarrow


class Reader:
    """The rows of a query, which arrive while they are read; a sender waits for a slow reader.

    It is read once: in a loop over its batches, as a whole by ``to_arrow``, ``to_pandas`` or ``to_polars``, or by
    any library that reads ``__arrow_c_stream__``, such as pyarrow, Polars and DuckDB.
    """

    def __init__(self, native: _lightship.Reader) -> None:
        self._native = native

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._native.__arrow_c_stream__(requested_schema)

    def __arrow_c_schema__(self) -> object:
        return self._native.__arrow_c_schema__()

    def __iter__(self) -> Iterator[_lightship.Batch]:
        while (batch := self._native.next_batch()) is not None:
            yield batch

    @property
    def schema(self) -> pyarrow.Schema:
        """The columns."""
        return pyarrow_for("a schema").schema(self)

    @property
    def rows_estimate(self) -> int | None:
        """The number of rows, as far as the sources can tell."""
        return self._native.rows_estimate

    @property
    def report(self) -> Report | None:
        """What was planned and what happened, once all rows have arrived."""
        report = self._native.report()
        return None if report is None else Report(report)

    def to_arrow(self, *, progress: bool = False) -> pyarrow.Table:
        """All rows as a table of pyarrow."""
        pyarrow = pyarrow_for("a table")
        return pyarrow.table(self._all(progress))

    def to_pandas(self, *, progress: bool = False, **arguments: Any) -> pandas.DataFrame:
        """All rows as a data frame of pandas. ``arguments`` are those of ``pyarrow.Table.to_pandas``."""
        return self.to_arrow(progress=progress).to_pandas(**arguments)

    def to_polars(self, *, progress: bool = False) -> polars.DataFrame:
        """All rows as a data frame of Polars."""
        try:
            import polars
        except ImportError as error:
            raise wrong(ProgrammingError, "Polars is needed for a data frame of it", "pip install polars") from error
        return polars.DataFrame(self._all(progress))

    def _all(self, progress: bool) -> _lightship.Batches:
        with Bar(progress) as observe:
            return self._native.read_all(observe)

    def cancel(self) -> None:
        """Cancels the query, from any thread."""
        self._native.cancel()

    def close(self) -> None:
        """Cancels the query if it still runs."""
        self.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def converted(reader: Reader, return_type: ReturnType, progress: bool = False) -> Any:
    match return_type:
        case "arrow":
            return reader.to_arrow(progress=progress)
        case "pandas":
            return reader.to_pandas(progress=progress)
        case "polars":
            return reader.to_polars(progress=progress)
        case "reader":
            return reader
    raise wrong(ProgrammingError, f"return_type {return_type!r}: expected arrow, pandas, polars or reader")


@overload
def read_sql(
    uri: Uri,
    sql: str,
    return_type: Literal["arrow"] = "arrow",
    *,
    params: Sequence[Any] | None = ...,
    also: Iterable[Uri] = ...,
    progress: bool = ...,
    **options: Unpack[Options],
) -> pyarrow.Table: ...
@overload
def read_sql(
    uri: Uri,
    sql: str,
    return_type: Literal["pandas"],
    *,
    params: Sequence[Any] | None = ...,
    also: Iterable[Uri] = ...,
    progress: bool = ...,
    **options: Unpack[Options],
) -> pandas.DataFrame: ...
@overload
def read_sql(
    uri: Uri,
    sql: str,
    return_type: Literal["polars"],
    *,
    params: Sequence[Any] | None = ...,
    also: Iterable[Uri] = ...,
    progress: bool = ...,
    **options: Unpack[Options],
) -> polars.DataFrame: ...
@overload
def read_sql(
    uri: Uri,
    sql: str,
    return_type: Literal["reader"],
    *,
    params: Sequence[Any] | None = ...,
    also: Iterable[Uri] = ...,
    progress: bool = ...,
    **options: Unpack[Options],
) -> Reader: ...
def read_sql(
    uri: Uri,
    sql: str,
    return_type: ReturnType = "arrow",
    *,
    params: Sequence[Any] | None = None,
    also: Iterable[Uri] = (),
    progress: bool = False,
    **options: Unpack[Options],
) -> Any:
    """Runs a query and returns its rows.

    ``uri`` is ``lightship://host``, ``postgresql://me@db/shop``, ``mysql://me@db/shop``, ``sqlite:FILE``, or a file or
    folder of Parquet, CSV, JSON or Arrow. ``also`` names more sources, whose rows are added. ``params`` are the
    values of ``?``, or of ``$1``, ``$2`` and so on, in order.
    """
    if return_type not in ("arrow", "pandas", "polars", "reader"):
        converted(None, return_type)  # type: ignore[arg-type]
    if return_type in ("arrow", "pandas"):
        pyarrow_for(f"return_type {return_type!r}")
    row = row_of(params)
    native = _lightship.Connection(sources(uri, also), encoded(dict(options))).start(sql, row)
    native.begin()
    return converted(Reader(native), return_type, progress)


def copy(
    uri: Uri,
    sql: str,
    to: Uri,
    *,
    table: str | None = None,
    mode: Literal["append", "existing", "create", "replace", "truncate", "upsert"] | None = None,
    key: str | Sequence[str] = (),
    also: Iterable[Uri] = (),
    progress: bool = False,
    **options: Unpack[Options],
) -> Report:
    """Copies the result of a query to a file, a table of a database or a range file of a node.

    All rows arrive or none, except in a range file. ``table`` is ``[SCHEMA.]NAME``; a file has none. ``mode`` says what
    happens to an existing table or file, as ``--mode`` of the command does; by default rows are added to a table, and
    a file is replaced. ``key`` has the columns that identify a row, for ``mode="upsert"``.
    """
    with Bar(progress) as observe:
        report = _lightship.copy(
            sources(uri, also), sql, os.fspath(to), table, mode, columns_of(key), encoded(dict(options)), observe
        )
    return Report(report)


def columns_of(key: str | Sequence[str]) -> list[str]:
    """The columns of a key."""
    return [key] if isinstance(key, str) else list(key)


class Written(NamedTuple):
    """What was written."""

    rows: int
    bytes: int


def write(
    data: Any,
    to: Uri,
    *,
    table: str | None = None,
    mode: Literal["append", "existing", "create", "replace", "truncate", "upsert"] | None = None,
    key: str | Sequence[str] = (),
    **options: Unpack[Options],
) -> Written:
    """Writes Arrow data to a file, a table of a database or a range file of a node, as ``copy`` does.

    ``data`` is any object with ``__arrow_c_stream__``: a table or reader of pyarrow, a data frame of Polars or
    pandas, a relation of DuckDB, or a ``Reader``.
    """
    return Written(*_lightship.write(data, os.fspath(to), table, mode, columns_of(key), encoded(dict(options))))


def explain(uri: Uri, sql: str, *, analyze: bool = False) -> Explanation:
    """How a node executes a query. With ``analyze`` it runs the query and counts."""
    return Explanation(*_answer("explain", [os.fspath(uri), sql], {"analyze": analyze}))


def tune(uri: Uri | None = None, sql: str | None = None, **arguments: Any) -> Plan:
    """The fetch size: rows in a batch, bytes in a message, batches in flight.

    The arguments are those of ``lightship tune``, with ``drivers`` for ``--for``, as in
    ``tune(link="50mbit", rows=4_000_000, row_bytes=450, drivers=["jdbc", "psycopg"])``.
    """
    if "drivers" in arguments:
        arguments["for"] = arguments.pop("drivers")
    return Plan(*_answer("tune", [os.fspath(one) for one in (uri, sql) if one is not None], arguments))


def calibrate(
    uri: Uri,
    *,
    sql: str | None = None,
    seconds: float | None = None,
    thorough: bool = False,
    dry_run: bool = False,
    progress: bool = False,
) -> Profile:
    """Measures the link to a node or a database and saves the result, unless ``dry_run`` is set."""
    arguments = {
        "sql": sql,
        "seconds": seconds,
        "thorough": thorough,
        "dry_run": dry_run,
        "quiet": not progress,
    }
    return Profile(*_answer("calibrate", [os.fspath(uri)], arguments))


def _answer(command: str, positional: list[str], arguments: dict[str, Any]) -> tuple[str, str]:
    line = ["lightship", command]
    for name, value in arguments.items():
        option = "--" + name.replace("_", "-")
        if value is True:
            line.append(option)
        elif value is not None and value is not False:
            text = ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
            line.append(f"{option}={text}")
    if "-" in positional:
        # The command would read standard input.
        raise wrong(ProgrammingError, "'-' is not a query")
    return _lightship.answer([*line, "--", *positional])
