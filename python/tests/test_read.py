"""Results of one line, and streams that other libraries read."""

from __future__ import annotations

import decimal
from pathlib import Path

import duckdb
import pandas
import polars
import pyarrow
import pytest

import lightship
from conftest import Run, ended

NUMBERS = "select value from generate_series(1, {}) as t(value)"


def test_each_return_type(sales: str) -> None:
    sql = "select region, sum(amount) as amount from sales group by 1 order by 1"
    expected = {"region": ["north", "south"], "amount": [8, 4]}
    assert lightship.read_sql(sales, sql).to_pydict() == expected
    assert lightship.read_sql(sales, sql, "polars").to_dict(as_series=False) == expected
    frame = lightship.read_sql(sales, sql, return_type="pandas")
    assert isinstance(frame, pandas.DataFrame)
    assert frame.to_dict("list") == expected
    with lightship.read_sql(sales, sql, "reader") as reader:
        assert reader.schema.names == ["region", "amount"]
        assert sum(batch.num_rows for batch in reader) == 2
        assert reader.report.rows == 2
    with pytest.raises(lightship.ProgrammingError, match="return_type 'list'"):
        lightship.read_sql(sales, sql, "list")


def test_an_empty_result_has_columns(sales: str) -> None:
    for return_type, names in (("arrow", "column_names"), ("polars", "columns"), ("pandas", "columns")):
        empty = lightship.read_sql(sales, "select * from sales where amount > 9", return_type)
        assert list(getattr(empty, names)) == ["region", "amount"]
        assert len(empty) == 0


def test_several_sources_are_combined(sales: str, sqlite_uri: str) -> None:
    both = lightship.read_sql(sqlite_uri, "select id from item", also=[sqlite_uri])
    assert sorted(both["id"].to_pylist()) == [1, 1, 2, 2]
    with pytest.raises(lightship.Error) as caught:
        lightship.read_sql(sqlite_uri, "select id from item", also=[sales])
    assert "sales.csv" in str(caught.value)


def test_parameters(node: str, sqlite_uri: str) -> None:
    one = lightship.read_sql(node, "select cast($1 as bigint) + $2 as x", params=[1, 2])
    assert one["x"].to_pylist() == [3]
    named = lightship.read_sql(sqlite_uri, "select id from item where name = ?", "polars", params=("ink",))
    assert named["id"].to_list() == [2]
    with pytest.raises(lightship.ProgrammingError, match="as a sequence"):
        lightship.read_sql(node, "select 1", params="x")  # type: ignore[call-overload]


def test_options(postgres: str) -> None:
    sql = "select 1.25::numeric as a"
    assert lightship.read_sql(postgres, sql, numeric="string")["a"].to_pylist() == ["1.25"]
    exact = lightship.read_sql(postgres, sql, numeric="decimal(10,3)", memory_bytes=8 << 20)
    assert exact["a"].to_pylist() == [decimal.Decimal("1.250")]
    assert exact["a"].type == pyarrow.decimal128(10, 3)
    with pytest.raises(TypeError, match=r"unexpected option 'memory'; the options are memory_bytes"):
        lightship.read_sql(postgres, sql, memory="64MiB")
    with pytest.raises(lightship.ProgrammingError, match="best"):
        lightship.read_sql(postgres, sql, codec="best")
    with pytest.raises(lightship.ProgrammingError, match="memory_bytes must be at least 4MiB"):
        lightship.read_sql(postgres, sql, memory_bytes=1000)


def test_other_libraries_read_the_stream(node: str) -> None:
    sql = NUMBERS.format(300_000)
    read = lambda: lightship.read_sql(node, sql, "reader")  # noqa: E731
    total = 300_000 * 300_001 // 2
    assert sum(sum(batch["value"].to_pylist()) for batch in pyarrow.RecordBatchReader.from_stream(read())) == total
    assert polars.DataFrame(read())["value"].sum() == total
    reader = read()
    assert duckdb.sql("select sum(value) from reader").fetchall() == [(total,)]
    assert reader.report.rows == 300_000
    assert pandas.DataFrame.from_arrow(read())["value"].sum() == total
    with pytest.raises(lightship.ProgrammingError, match="already been read"):
        next(iter(reader))


def test_batches_are_arrow_arrays(node: str) -> None:
    batch = next(iter(lightship.read_sql(node, NUMBERS.format(10), "reader")))
    assert repr(batch) == "<lightship.Batch: 10 rows, 1 columns>"
    assert polars.DataFrame(batch).height == pyarrow.record_batch(batch).num_rows == 10


def test_the_sender_waits_for_a_slow_reader(node: str, python: Run) -> None:
    # 80 GB, of which a little is read.
    program = """
import lightship, resource, sys, time
numbers = "select value from generate_series(1, 10000000000) as t(value)"
batches = iter(lightship.read_sql(sys.argv[1], numbers, "reader", memory_bytes=8 << 20))
next(batches)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
time.sleep(2)
for _ in range(20):
    next(batches)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    code, out, err = ended(python(program, node))
    assert code == 0, err
    assert int(out) < 32 << 10, "KiB"


def test_errors_say_where_and_what_to_do(sales: str, postgres: str, sqlite_uri: str) -> None:
    with pytest.raises(lightship.ProgrammingError) as caught:
        lightship.read_sql(postgres, "select nothing\nfrom pg_clas")
    error = caught.value
    assert (error.kind, error.sqlstate, error.position) == ("source", "42P01", {"line": 2, "column": 6})
    assert "from pg_clas\n       ^" in str(error)
    with pytest.raises(lightship.DataError) as caught:
        lightship.read_sql(postgres, "select 1 / (5 - i) from generate_series(1, 9) i")
    assert caught.value.sqlstate == "22012"
    with pytest.raises(lightship.ProgrammingError) as caught:
        lightship.read_sql(sales, "select regio from sales")
    assert caught.value.sqlstate == "42703"
    with pytest.raises(lightship.OperationalError) as caught:
        lightship.read_sql("lightship://127.0.0.1:1", "select 1")
    assert caught.value.kind == "network"
    assert "lightship node" in caught.value.hint
    with pytest.raises(lightship.DatabaseError):
        lightship.read_sql(sqlite_uri, "select * from nowhere")
    with pytest.raises(lightship.Error):
        lightship.read_sql("/no/such/file.csv", "select 1")


def test_hints_name_arguments(sales: str, postgres: str, tmp_path: Path) -> None:
    sql = "select amount as x, region as x from sales"
    with pytest.raises(lightship.ProgrammingError) as caught:
        lightship.copy(sales, sql, tmp_path / "x.csv")
    assert caught.value.hint.endswith('use duplicate_columns="rename"')
    lightship.copy(sales, sql, tmp_path / "x.csv", duplicate_columns="rename")
    assert (tmp_path / "x.csv").read_text().startswith("x,x_2\n")
    assert lightship.read_sql(sales, sql, duplicate_columns="rename").column_names == ["x", "x_2"]
    with pytest.raises(lightship.ProgrammingError, match=r"requires table$"):
        lightship.copy(sales, "select * from sales", postgres)


@pytest.mark.parametrize("value", [2**63 - 1, -(2**63), 2**63, -(2**63) - 1, 2**64, 10**37])
def test_integers_of_any_size_are_parameters(value: int, sales: str, postgres: str) -> None:
    for uri in (sales, postgres):
        # The type of the expression decides that of the parameter.
        sql = "select cast($1 as decimal(38, 0)) as value"
        assert lightship.read_sql(uri, sql, params=[value])["value"].to_pylist() == [value], uri
    with pytest.raises(lightship.ProgrammingError, match=r"parameter \$1"):
        lightship.read_sql(sales, "select cast($1 as decimal(38, 0)) as value", params=[10**80])
