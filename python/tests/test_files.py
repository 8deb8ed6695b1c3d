"""Files that Lightship writes, as others read them."""

from __future__ import annotations

import datetime
import uuid
from decimal import Decimal
from pathlib import Path

import duckdb
import pandas
import polars
import psycopg
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

import lightship


@pytest.fixture
def connection(postgres: str) -> psycopg.Connection:
    with psycopg.connect(postgres, autocommit=True) as connection:
        yield connection


def copied(connection: psycopg.Connection, kinds: str, path: Path, *columns: str) -> list[list[tuple]]:
    """Columns of a CSV file that COPY reads into a table of PostgreSQL."""
    connection.execute(f"create temporary table copied ({kinds})")
    try:
        with connection.cursor().copy("copy copied from stdin (format csv, header)") as copy:
            copy.write(path.read_bytes())
        return [connection.execute(f"select {these} from copied").fetchall() for these in columns]
    finally:
        connection.execute("drop table copied")


def test_postgresql_reads_the_text_of_all_types(connection: psycopg.Connection, tmp_path: Path) -> None:
    largest = Decimal("9" * 38)
    key = uuid.UUID("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11")
    rows = pa.table(
        {
            "t": pa.array(["", None, 'a,b "c"\n']),
            "b": pa.array([b"\x00\xffa", b"", None]),
            "u": pa.array([key.bytes, None, key.bytes], pa.uuid()),
            "d": pa.array([-719_163, None, 19_782], pa.int32()).view(pa.date32()),
            "z": pa.array([-719_163 * 86_400, 0, None], pa.int64()).view(pa.timestamp("s", "UTC")),
            "i": pa.array([pa.MonthDayNano([14, -3, 5_000_000_000]), None, pa.MonthDayNano([0, 0, -1_500_000_000])]),
            "s": pa.array([90_061, None, -1], pa.duration("s")),
            "l": pa.array([["a", None, "", "null", "x y"], [], None]),
            "n": pa.array([[[1, 2], [3, None]], None, []], pa.list_(pa.list_(pa.int32()))),
            "j": pa.array([{"a": 1, "b": "x"}, None, {"a": None, "b": '"q"'}]),
            "m": pa.array([largest, None, Decimal(-1)], pa.decimal128(38, 0)),
        }
    )
    path = tmp_path / "all.csv"
    lightship.write(rows, path)
    kinds = (
        "t text, b bytea, u uuid, d date, z timestamptz, i interval, s interval, l text[], n integer[], j jsonb,"
        " m numeric"
    )
    connection.execute("set timezone to 'UTC'")
    # Years before 1 have no value in Python.
    times, others = copied(
        connection, kinds, path, "d::text, z::text, i::text, s::text", "t, encode(b, 'hex'), u::text, l, n, j, m"
    )
    assert times == [
        ("0001-12-31 BC", "0001-12-31 00:00:00+00 BC", "1 year 2 mons -3 days +00:00:05", "25:01:01"),
        (None, "1970-01-01 00:00:00+00", None, None),
        ("2024-02-29", None, "-00:00:01.5", "-00:00:01"),
    ]
    assert others == [
        ("", "00ff61", str(key), ["a", None, "", "null", "x y"], [[1, 2], [3, None]], {"a": 1, "b": "x"}, largest),
        (None, "", None, [], None, None, None),
        ('a,b "c"\n', None, str(key), None, [], {"a": None, "b": '"q"'}, -1),
    ]


def test_a_null_alone_in_a_row(connection: psycopg.Connection, tmp_path: Path) -> None:
    numbers, texts = [1, None, 2, None], ["x", None, "", "y"]
    for values, kind in ((numbers, "integer"), (texts, "text")):
        path = tmp_path / f"{kind}.csv"
        lightship.write(pa.table({"v": values}), path)
        (found,) = copied(connection, f"v {kind}", path, "v")
        assert [value for (value,) in found] == values
        assert polars.read_csv(path)["v"].to_list() == values
        # These take an empty text for NULL, or the reverse, if they are not told otherwise.
        expected = [value or None for value in values]
        with duckdb.connect() as duck:
            found = duck.sql(f"select v from read_csv('{path}', header = true)").fetchall()
        assert [value for (value,) in found] == expected
        frame = pandas.read_csv(path, skip_blank_lines=False)
        assert [None if pandas.isna(value) else value for value in frame["v"]] == expected
        options = {"parse_options": pyarrow.csv.ParseOptions(ignore_empty_lines=False)}
        if kind == "text":
            convert = pyarrow.csv.ConvertOptions(strings_can_be_null=True, quoted_strings_can_be_null=False)
            options["convert_options"] = convert
        assert pyarrow.csv.read_csv(path, **options)["v"].to_pylist() == values


def test_compressed_files(tmp_path: Path) -> None:
    rows = pa.table({"n": range(50_000), "t": [f"row {n % 97}" for n in range(50_000)]})
    for extension in ("gz", "zst"):
        path = tmp_path / f"rows.csv.{extension}"
        lightship.write(rows, path)
        # For Zstandard, pandas needs another package.
        assert extension == "zst" or pandas.read_csv(path).equals(rows.to_pandas())
        assert polars.read_csv(path).to_dict(as_series=False) == rows.to_pydict()
        with duckdb.connect() as duck:
            assert duck.sql(f"select count(*), sum(n) from '{path}'").fetchall() == [(50_000, 1_249_975_000)]
        path = tmp_path / f"rows.json.{extension}"
        lightship.write(rows, path)
        with duckdb.connect() as duck:
            assert duck.sql(f"select count(*), sum(n) from '{path}'").fetchall() == [(50_000, 1_249_975_000)]


def test_parquet_has_large_row_groups_whatever_the_memory(tmp_path: Path) -> None:
    path, source = tmp_path / "rows.parquet", tmp_path / "rows.arrow"
    rows = pa.table({"n": range(300_000), "t": [f"{n * 7919 % 100_003:x}" for n in range(300_000)]})
    lightship.write(rows, source)
    lightship.copy(source, "select * from rows", path, memory_bytes=4 << 20)
    assert pyarrow.parquet.read_metadata(path).num_row_groups == 1
    assert pyarrow.parquet.read_table(path).sort_by("n").equals(rows)
    with duckdb.connect() as duck:
        assert duck.sql(f"select count(*), sum(n) from '{path}'").fetchall() == [(300_000, sum(range(300_000)))]


def test_times_of_parquet_in_duckdb(tmp_path: Path) -> None:
    path = tmp_path / "times.parquet"
    at = datetime.datetime(2024, 2, 29, 12, 34, 56)
    rows = pa.table(
        {
            "at": pa.array([at], pa.timestamp("s")),
            "time": pa.array([at.time()], pa.time32("s")),
            "date": pa.array([at.date()], pa.date64()),
            "span": pa.array([datetime.timedelta(hours=25)], pa.duration("s")),
        }
    )
    lightship.write(rows, path)
    with duckdb.connect() as duck:
        found = duck.sql(f"""select "at", "time", "date", span::interval from '{path}'""").fetchall()
    assert found == [(at, at.time(), at.date(), datetime.timedelta(hours=25))]
    assert pyarrow.parquet.read_table(path)["at"].to_pylist() == [at]
