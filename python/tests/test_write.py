"""Copies, and Arrow data that is written."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pandas
import polars
import pyarrow
import pyarrow.parquet
import pytest

import lightship

ROWS = pyarrow.table({"id": [1, 2, 3], "name": ["a", None, "c"]})


def test_copy_to_a_file_and_a_table(sales: str, postgres: str, tmp_path: Path) -> None:
    file = tmp_path / "sales.parquet"
    report = lightship.copy(sales, "select * from sales", file, progress=True)
    assert report.rows == 3
    assert report.bytes_written == file.stat().st_size
    assert pyarrow.parquet.read_table(file).num_rows == 3
    lightship.copy(file, "select * from sales", postgres, table="copied", mode="create")
    assert lightship.read_sql(postgres, "select sum(amount) as s from copied", "pandas")["s"].item() == 12
    with pytest.raises(lightship.Error, match="exists") as caught:
        lightship.copy(file, "select * from sales", postgres, table="copied", mode="create")
    assert caught.value.sqlstate == "42P07"
    with pytest.raises(lightship.ProgrammingError, match="table"):
        lightship.copy(sales, "select * from sales", postgres)
    with pytest.raises(lightship.ProgrammingError, match="unknown mode"):
        lightship.copy(sales, "select * from sales", postgres, table="copied", mode="merge")  # type: ignore[arg-type]


def test_modes_of_files_and_tables(postgres: str, tmp_path: Path) -> None:
    file = tmp_path / "people.csv"
    for mode in ("append", "append", "existing"):
        assert lightship.write(ROWS, file, mode=mode).rows == 3  # type: ignore[arg-type]
    assert duckdb.read_csv(str(file)).fetchone() == (1, "a")
    assert len(pandas.read_csv(file)) == 9
    with pytest.raises(lightship.Error, match="the file exists already"):
        lightship.write(ROWS, file, mode="create")
    lightship.write(ROWS, file, mode="replace")
    assert len(pandas.read_csv(file)) == 3
    folder = f"{tmp_path}/parts/"
    for _ in range(2):
        lightship.write(ROWS, folder)
    assert pyarrow.parquet.read_table(folder).num_rows == 6
    for _ in range(2):
        lightship.write(ROWS, postgres, table="emptied", mode="truncate")
    assert lightship.read_sql(postgres, "select count(*) as n from emptied", "pandas")["n"].item() == 3
    lightship.copy(postgres, "select 1 as id", postgres, table="emptied", mode="replace")
    report = lightship.copy(postgres, "select 'x' as name", postgres, table="emptied", mode="replace")
    assert report.notices == ["column id is not kept: the result has no such column"]


def test_rows_are_upserted(tmp_path: Path) -> None:
    database = f"sqlite:{tmp_path / 'upserted.db'}"
    lightship.write(ROWS, database, table="people", mode="upsert", key="id")
    more = pyarrow.table({"id": [3, 4], "name": ["C", "d"]})
    assert lightship.write(more, database, table="people", mode="upsert", key=["id"]).rows == 2
    names = lightship.read_sql(database, "select name from people order by id")["name"].to_pylist()
    assert names == ["a", None, "C", "d"]
    with pytest.raises(lightship.ProgrammingError) as caught:
        lightship.write(more, database, table="people", mode="upsert")
    assert str(caught.value).startswith('mode="upsert" requires key')
    with pytest.raises(lightship.Error, match="same key"):
        lightship.copy(
            database, "select 1 as id, 'x' as name from people", database, table="people", mode="upsert", key="id"
        )


@pytest.mark.parametrize(
    "data",
    [
        ROWS,
        ROWS.to_reader(),
        polars.DataFrame(ROWS),
        ROWS.to_pandas(),
        duckdb.sql("select * from ROWS"),
    ],
    ids=["pyarrow", "reader", "polars", "pandas", "duckdb"],
)
def test_data_of_other_libraries(data: object, postgres: str, tmp_path: Path) -> None:
    file = tmp_path / "data.parquet"
    assert lightship.write(data, file).rows == 3
    # Each of them is read once.
    data = data if not isinstance(data, pyarrow.RecordBatchReader) else ROWS.to_reader()
    assert lightship.write(data, postgres, table="written", mode="replace").rows == 3
    for uri, table in ((file, "data"), (postgres, "written")):
        written = lightship.read_sql(uri, f"select id, name from {table} order by id")
        assert written.to_pydict() == {"id": [1, 2, 3], "name": ["a", None, "c"]}


def test_a_result_is_written_while_it_arrives(node: str, tmp_path: Path) -> None:
    reader = lightship.read_sql(node, "select value from generate_series(1, 200000) as t(value)", "reader")
    assert lightship.write(reader, tmp_path / "numbers.arrow").rows == 200_000
    frame = lightship.read_sql(tmp_path / "numbers.arrow", "select max(value) as m from numbers", "polars")
    assert frame["m"].to_list() == [200_000]


def test_ingest(postgres: str) -> None:
    with lightship.connect(postgres) as connection, connection.cursor() as cursor:
        assert cursor.adbc_ingest("ingested", ROWS, "create") == 3
        assert cursor.adbc_ingest("ingested", ROWS, "append") == 3
        assert cursor.execute("select count(*) from ingested").fetchone() == (6,)
        assert cursor.adbc_ingest("ingested", ROWS, "replace", db_schema_name="public") == 3
        assert cursor.execute("select count(*) from ingested").fetchone() == (3,)
        with pytest.raises(lightship.ProgrammingError):
            cursor.adbc_ingest("ingested", ROWS, "create")
        with pytest.raises(lightship.ProgrammingError) as caught:
            cursor.adbc_ingest("missing", ROWS, "append")
        assert caught.value.sqlstate == "42P01"
        with pytest.raises(lightship.ProgrammingError, match="unknown mode"):
            cursor.adbc_ingest("ingested", ROWS, "upsert")


def test_all_rows_or_none(postgres: str, tmp_path: Path) -> None:
    with lightship.connect(postgres) as connection:
        cursor = connection.cursor()
        lightship.write(ROWS.slice(0, 1), postgres, table="whole")

        def batches() -> object:
            yield from ROWS.to_batches()
            raise ValueError("no more")

        failing = pyarrow.RecordBatchReader.from_batches(ROWS.schema, batches())
        with pytest.raises(lightship.DataError, match="no more"):
            lightship.write(failing, postgres, table="whole")
        failing = pyarrow.RecordBatchReader.from_batches(ROWS.schema, batches())
        with pytest.raises(lightship.DataError):
            lightship.write(failing, tmp_path / "whole.parquet")
        assert cursor.execute("select count(*) from whole").fetchone() == (1,)
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_arrow_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="__arrow_c_stream__"):
        lightship.write([1, 2], tmp_path / "x.csv")


def test_a_pandas_index_is_kept_out_of_the_way(tmp_path: Path) -> None:
    frame = pandas.DataFrame({"a": [1, 2]})
    lightship.write(frame, tmp_path / "frame.csv")
    assert (tmp_path / "frame.csv").read_text() == "a\n1\n2\n"
