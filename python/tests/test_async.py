"""asyncio."""

from __future__ import annotations

import asyncio
import time

import pyarrow
import pytest

import lightship


def test_queries_run_at_the_same_time(postgres: str) -> None:
    async def main() -> None:
        async with await lightship.connect_async(postgres) as connection:

            async def slow() -> list[tuple[object, ...]]:
                cursor = await connection.execute("select 1 as x, pg_sleep(0.5)::text")
                return await cursor.fetchall()

            began = time.monotonic()
            assert [rows[0][0] for rows in await asyncio.gather(*(slow() for _ in range(4)))] == [1] * 4
            assert time.monotonic() - began < 1.8
        with pytest.raises(lightship.ProgrammingError, match="closed"):
            await connection.execute("select 1")

    asyncio.run(main())


def test_many_parameters(postgres: str) -> None:
    async def main() -> None:
        async with await lightship.connect_async(postgres) as connection:
            cursor = connection.cursor()
            await cursor.executemany("select 10 / $1::int8", ((number,) for number in range(1, 5)))
            with pytest.raises(lightship.DataError, match="division by zero"):
                await cursor.executemany("select 10 / $1::int8", [(1,), (0,)])
            # The one that runs is cancelled, and no other one begins.
            began = time.monotonic()
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(cursor.executemany("select pg_sleep($1::float8)", [(30,), (30,)]), 0.3)
            assert time.monotonic() - began < 10

    asyncio.run(main())


def test_rows_batches_and_tables(postgres: str) -> None:
    async def main() -> None:
        async with await lightship.connect_async(postgres, batch_rows=1000) as connection:
            sql = "select i from generate_series(1, 5000) i order by i"
            async with await connection.execute(sql) as cursor:
                assert cursor.description[0][0] == "i"
                assert await cursor.fetchone() == (1,)
                assert await cursor.fetchmany(2) == [(2,), (3,)]
                assert [row[0] async for row in cursor] == list(range(4, 5001))
            cursor = await connection.execute(sql)
            batches = [pyarrow.record_batch(batch).num_rows async for batch in cursor.batches()]
            assert sum(batches) == 5000
            assert len(batches) > 1
            assert cursor.rowcount == 5000
            assert (await (await connection.execute(sql)).fetch_arrow_table()).num_rows == 5000
            assert await connection.cursor().adbc_ingest("async_rows", pyarrow.table({"a": [1]}), "replace") == 1
            with pytest.raises(lightship.ProgrammingError):
                await connection.execute("select nothing")
        assert (await lightship.read_sql_async(postgres, "select 1 as x", "polars"))["x"].to_list() == [1]
        given = await lightship.read_sql_async(postgres, "select $1::int8 + 1 as x", params=[1])
        assert given["x"].to_pylist() == [2]

    asyncio.run(main())


def test_a_cancelled_task_cancels_its_query(postgres: str) -> None:
    async def main() -> None:
        async with await lightship.connect_async(postgres) as connection:
            cursor = connection.cursor()
            began = time.monotonic()
            # The columns are known before the rows.
            await cursor.execute("select pg_sleep(30)")
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(cursor.fetchall(), 0.3)
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(lightship.read_sql_async(postgres, "select pg_sleep(30)"), 0.3)
            assert time.monotonic() - began < 5
            assert await (await cursor.execute("select 1")).fetchall() == [(1,)]

    asyncio.run(main())
