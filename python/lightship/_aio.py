"""The same for asyncio. Each call that waits does so on a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from lightship import _lightship
from lightship._api import Reader, ReturnType, Uri, converted
from lightship._dbapi import Connection, Cursor, connect
from lightship._options import encoded, sources
from lightship._parameters import row_of
from lightship._records import Report

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow
    from typing_extensions import Self, Unpack

    from lightship._options import Options

T = TypeVar("T")


async def _in_thread(work: Callable[[], T], cancel: Callable[[], None] | None = None) -> T:
    """Runs ``work`` on a thread. If the task is cancelled, ``cancel`` is called, which must end the work."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def finish(result: T | None, error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is None:
            done.set_result(result)  # type: ignore[arg-type]
        else:
            done.set_exception(error)

    def run() -> None:
        result, error = None, None
        try:
            result = work()
        except BaseException as raised:
            error = raised
        # If the loop is closed, nobody waits any more.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(finish, result, error)

    # A daemon, so that Python can end while it waits; a pool would be waited for.
    threading.Thread(target=run, name="lightship-async", daemon=True).start()
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        if cancel is not None:
            cancel()
            # The cursor is free again once its thread has ended.
            await asyncio.wait([done])
            if not done.cancelled():
                done.exception()
        raise


async def connect_async(uri: Uri, *, also: Iterable[Uri] = (), **options: Unpack[Options]) -> AsyncConnection:
    """As ``connect``, for asyncio."""
    return AsyncConnection(await _in_thread(lambda: connect(uri, also=also, **options)))


async def read_sql_async(
    uri: Uri,
    sql: str,
    return_type: ReturnType = "arrow",
    *,
    params: Sequence[Any] | None = None,
    also: Iterable[Uri] = (),
    progress: bool = False,
    **options: Unpack[Options],
) -> Any:
    """As ``read_sql``, for asyncio. Cancelling the task cancels the query."""
    given, text, row = sources(uri, also), encoded(dict(options)), row_of(params)
    native = await _in_thread(lambda: _lightship.Connection(given, text).start(sql, row))

    def read() -> Any:
        native.begin()
        return converted(Reader(native), return_type, progress)

    return await _in_thread(read, native.cancel)


class AsyncConnection:
    """As ``Connection``, for asyncio."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def cursor(self) -> AsyncCursor:
        return AsyncCursor(self._connection.cursor())

    async def execute(self, sql: str, parameters: Sequence[Any] | None = None) -> AsyncCursor:
        """Runs a query with a new cursor."""
        return await self.cursor().execute(sql, parameters)

    async def commit(self) -> None:
        self._connection.commit()

    async def rollback(self) -> None:
        self._connection.rollback()

    async def close(self) -> None:
        await _in_thread(self._connection.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return repr(self._connection).replace("Connection", "AsyncConnection", 1)


class AsyncCursor:
    """As ``Cursor``, for asyncio. Cancelling a task that waits here cancels the query."""

    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor

    async def execute(self, sql: str, parameters: Sequence[Any] | None = None) -> Self:
        await self._wait(lambda: self._cursor.execute(sql, parameters))
        return self

    async def executemany(self, sql: str, parameters: Iterable[Sequence[Any]]) -> None:
        """Runs a query once for each sequence of parameters, reads its rows and gives them up."""
        for values in parameters:
            await self._wait(lambda values=values: self._cursor.executemany(sql, [values]))  # type: ignore[misc]

    async def _wait(self, work: Callable[[], T]) -> T:
        return await _in_thread(work, self._cursor.cancel)

    @property
    def description(self) -> list[tuple[Any, ...]] | None:
        return self._cursor.description

    @property
    def rowcount(self) -> int:
        return self._cursor.rowcount

    @property
    def report(self) -> Report | None:
        return self._cursor.report

    async def fetchone(self) -> tuple[Any, ...] | None:
        return await self._wait(self._cursor.fetchone)

    async def fetchmany(self, size: int | None = None) -> list[tuple[Any, ...]]:
        return await self._wait(lambda: self._cursor.fetchmany(size))

    async def fetchall(self) -> list[tuple[Any, ...]]:
        return await self._wait(self._cursor.fetchall)

    async def fetch_arrow_table(self) -> pyarrow.Table:
        return await self._wait(self._cursor.fetch_arrow_table)

    async def fetch_df(self) -> pandas.DataFrame:
        return await self._wait(self._cursor.fetch_df)

    async def fetch_polars(self) -> polars.DataFrame:
        return await self._wait(self._cursor.fetch_polars)

    async def batches(self) -> AsyncIterator[_lightship.Batch]:
        """The batches as they arrive, with ``__arrow_c_array__``."""
        native = self._cursor._result()
        while (batch := await self._wait(native.next_batch)) is not None:
            yield batch

    async def __aiter__(self) -> AsyncIterator[tuple[Any, ...]]:
        # A thread for each row would be slow.
        while rows := await self.fetchmany(1000):
            for row in rows:
                yield row

    async def adbc_ingest(self, table_name: str, data: Any, mode: str = "create", **arguments: Any) -> int:
        return await _in_thread(lambda: self._cursor.adbc_ingest(table_name, data, mode, **arguments))

    def cancel(self) -> None:
        self._cursor.cancel()

    async def close(self) -> None:
        await _in_thread(self._cursor.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
