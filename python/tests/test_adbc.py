"""The ADBC driver, through the driver manager of Python."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import adbc_driver_manager
import adbc_driver_manager.dbapi as dbapi
import polars
import pyarrow
import pytest

import adbc_driver_lightship.dbapi
from conftest import command
from servers import TOKEN, Node, serve

DRIVER = os.environ.get("LIGHTSHIP_ADBC_DRIVER", "")
pytestmark = pytest.mark.skipif(not DRIVER, reason="LIGHTSHIP_ADBC_DRIVER names the driver")
ROWS = pyarrow.table({"id": [1, 2, 3], "name": ["a", None, "c"]})


def connect(uri: str, **options: str) -> dbapi.Connection:
    return dbapi.connect(driver=DRIVER, db_kwargs={"uri": uri, **options}, autocommit=True)


@pytest.fixture
def shop(postgres: str) -> Iterator[dbapi.Connection]:
    with connect(postgres) as connection:
        yield connection


def test_rows_of_each_source(sales: str, sqlite_uri: str, node: str, postgres: str) -> None:
    for uri, sql in (
        (sales, "select sum(amount) from sales"),
        (sqlite_uri, "select 12"),
        (node, "select 12"),
        (postgres, "select 12"),
    ):
        with connect(uri) as connection, connection.cursor() as cursor:
            cursor.execute(sql)
            assert cursor.fetchall() == [(12,)]


def test_a_stream_holds_back_the_sender(node: str) -> None:
    with connect(node, **{"lightship.memory_bytes": "8000000"}) as connection, connection.cursor() as cursor:
        cursor.execute("select value from generate_series(1, 10000000000) as t(value)")
        reader = cursor.fetch_record_batch()
        assert sum(reader.read_next_batch().num_rows for _ in range(20)) > 1000
        # Closing it cancels the query.
        cursor.execute("select value from generate_series(1, 200000) as t(value)")
        assert cursor.fetch_arrow_table().num_rows == 200_000


def test_ingest_in_four_modes(shop: dbapi.Connection) -> None:
    with shop.cursor() as cursor:
        count = lambda: cursor.execute("select count(*) from adbc_rows").fetchone()[0]  # noqa: E731
        assert cursor.adbc_ingest("adbc_rows", ROWS, mode="replace") == 3
        assert cursor.adbc_ingest("adbc_rows", ROWS.to_reader(), mode="append") == 3
        assert cursor.adbc_ingest("adbc_rows", ROWS.to_batches()[0], mode="create_append") == 3
        assert count() == 9
        with pytest.raises(dbapi.ProgrammingError) as caught:
            cursor.adbc_ingest("adbc_rows", ROWS, mode="create")
        assert (caught.value.sqlstate, caught.value.status_code) == (
            "42P07",
            adbc_driver_manager.AdbcStatusCode.ALREADY_EXISTS,
        )
        with pytest.raises(dbapi.Error) as caught:
            cursor.adbc_ingest("adbc_missing", ROWS, mode="append")
        assert caught.value.status_code == adbc_driver_manager.AdbcStatusCode.NOT_FOUND
        assert cursor.adbc_ingest("adbc_rows", polars.DataFrame(ROWS), mode="replace", db_schema_name="public") == 3
        assert count() == 3


def test_ingest_into_sqlite(tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    sqlite3.connect(path).close()
    with connect(f"sqlite:{path}") as connection, connection.cursor() as cursor:
        assert cursor.adbc_ingest("t", ROWS) == ROWS.num_rows
        assert cursor.adbc_ingest("t", ROWS, mode="append") == ROWS.num_rows
    with sqlite3.connect(path) as database:
        assert database.execute("select count(*) from t").fetchone() == (2 * ROWS.num_rows,)


def test_ingest_into_mysql(mysql: str) -> None:
    with connect(mysql) as connection, connection.cursor() as cursor:
        for mode, count in (("replace", 3), ("append", 6), ("create_append", 9), ("replace", 3)):
            assert cursor.adbc_ingest("adbc_rows", ROWS.to_reader(), mode=mode) == ROWS.num_rows
            assert cursor.execute("select count(*) from adbc_rows").fetchone() == (count,)
        with pytest.raises(dbapi.Error) as caught:
            cursor.adbc_ingest("adbc_rows", ROWS, mode="create")
        assert caught.value.status_code == adbc_driver_manager.AdbcStatusCode.ALREADY_EXISTS
        cursor.execute("select id, name from adbc_rows order by id")
        assert cursor.fetchall() == [(1, "a"), (2, None), (3, "c")]


@pytest.fixture(scope="module")
def ranges(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node with the range file `stock`, whose key is region and id."""
    with serve("--range-data", str(tmp_path_factory.mktemp("ranges"))) as node:
        words = ["range", "create", node.uri(), "stock", "--key", "region", "--key", "id"]
        words += ["--columns", "id bigint, name text, region text, price numeric(9, 2)"]
        subprocess.run([*command(), *words], check=True, stdout=subprocess.DEVNULL)
        yield node


def test_ingest_into_a_range_file(ranges: Node) -> None:
    rows = ROWS.append_column("region", pyarrow.array(["n", "n", "s"]))
    prices = pyarrow.array([1, None, 3], pyarrow.decimal128(9, 2))
    with connect(ranges.uri()) as connection, connection.cursor() as cursor:
        assert cursor.adbc_ingest("stock", rows.append_column("price", prices), mode="append") == 3
        cursor.execute("select id, name, price from stock order by region, id")
        assert cursor.fetchall() == [(1, "a", 1), (2, None, None), (3, "c", 3)]
        with pytest.raises(dbapi.Error, match="only added to a range file"):
            cursor.adbc_ingest("stock", rows, mode="create")


def test_rows_that_are_affected(ranges: Node) -> None:
    with connect(ranges.uri()) as connection, connection.cursor() as cursor:
        cursor.adbc_statement.set_sql_query("insert into stock values (10, 'x', 'e', 1), (11, 'y', 'e', 2)")
        assert cursor.adbc_statement.execute_update() == 2
        cursor.executemany("insert into stock values ($1, $2, 'f', 3)", [(1, "a"), (2, "b"), (3, "c")])
        assert cursor.rowcount == 3
        cursor.adbc_statement.set_sql_query("select * from stock")
        assert cursor.adbc_statement.execute_update() == -1


def test_keys_of_other_sources(ranges: Node, sqlite_uri: str, mysql: str) -> None:
    with connect(mysql) as connection, connection.cursor() as cursor:
        cursor.adbc_ingest("adbc_plain", ROWS, mode="replace")
    for uri, table, expected in (
        (ranges.uri(), "stock", [("stock_pkey", "PRIMARY KEY", ["region", "id"])]),
        (sqlite_uri, "item", [(None, "PRIMARY KEY", ["id"])]),
        (mysql, "adbc_plain", []),
    ):
        with connect(uri) as connection:
            objects = connection.adbc_get_objects(table_name_filter=table).read_all().to_pylist()
        schemas = objects[0]["catalog_db_schemas"]
        (found,) = [one for schema in schemas for one in schema["db_schema_tables"]]
        keys = [
            (key["constraint_name"], key["constraint_type"], key["constraint_column_names"])
            for key in found["table_constraints"]
        ]
        assert keys == expected


def test_null_among_bound_rows(node: str) -> None:
    with connect(node) as connection, connection.cursor() as cursor:
        for sql in ("select $1 as v", "select cast($1 as bigint) as v"):
            cursor.execute(sql, pyarrow.table({"v": [5, None, 6]}))
            rows = cursor.fetch_arrow_table()
            assert rows["v"].to_pylist() == [5, None, 6]
            assert rows.schema.field("v").nullable


def test_ingest_where_it_can_not_be(postgres: str) -> None:
    with connect(postgres) as connection:
        connection.adbc_connection.set_options(**{"adbc.connection.readonly": "true"})
        with connection.cursor() as cursor:
            with pytest.raises(dbapi.Error, match="read-only"):
                cursor.adbc_ingest("t", ROWS)
            # The rows are not parameters of the next statement.
            assert cursor.execute("select 1").fetchone() == (1,)
        with connection.cursor() as cursor, pytest.raises(dbapi.NotSupportedError, match="temporary"):
            cursor.adbc_ingest("t", ROWS, temporary=True)


def test_objects_at_each_depth(shop: dbapi.Connection, postgres: str) -> None:
    with shop.cursor() as cursor:
        cursor.adbc_ingest("adbc_objects", ROWS, mode="replace")
    get = lambda **arguments: shop.adbc_get_objects(**arguments).read_all().to_pylist()  # noqa: E731
    assert get(depth="catalogs") == [{"catalog_name": "postgres", "catalog_db_schemas": None}]
    schemas = get(depth="db_schemas")[0]["catalog_db_schemas"]
    assert {"db_schema_name": "public", "db_schema_tables": None} in schemas
    found = get(depth="tables", table_name_filter="adbc_obj%")[0]["catalog_db_schemas"][0]["db_schema_tables"]
    assert found == [
        {"table_name": "adbc_objects", "table_type": "table", "table_columns": None, "table_constraints": None}
    ]
    table = get(table_name_filter="adbc_objects", column_name_filter="n_me")[0]["catalog_db_schemas"][0]
    (column,) = table["db_schema_tables"][0]["table_columns"]
    assert (column["column_name"], column["ordinal_position"], column["xdbc_type_name"]) == ("name", 2, "text")
    assert (column["xdbc_nullable"], column["xdbc_is_nullable"]) == (1, "YES")
    assert (column["xdbc_data_type"], column["xdbc_sql_data_type"], column["xdbc_is_autoincrement"]) == (-1, -1, False)
    assert get(catalog_filter="other") == []
    assert (
        get(depth="tables", table_types_filter=["view"], table_name_filter="adbc_objects")[0]["catalog_db_schemas"]
        != []
    )


def test_keys(shop: dbapi.Connection, psql: object) -> None:
    psql(
        "create table if not exists adbc_parent (a int, b int, primary key (a, b));"
        "create table if not exists adbc_child (x int unique, y int, foreign key (x, y) references adbc_parent (a, b))"
    )
    objects = shop.adbc_get_objects(table_name_filter="adbc_child").read_all().to_pylist()
    (child,) = objects[0]["catalog_db_schemas"][0]["db_schema_tables"]
    foreign, unique = sorted(child["table_constraints"], key=lambda key: key["constraint_type"])
    assert foreign["constraint_column_names"] == ["x", "y"]
    assert [usage["fk_column_name"] for usage in foreign["constraint_column_usage"]] == ["a", "b"]
    assert foreign["constraint_column_usage"][0] == {
        "fk_catalog": "postgres",
        "fk_db_schema": "public",
        "fk_table": "adbc_parent",
        "fk_column_name": "a",
    }
    assert (unique["constraint_type"], unique["constraint_column_usage"]) == ("UNIQUE", None)


def test_columns_for_odbc(shop: dbapi.Connection, psql: object, ranges: Node, mysql: str) -> None:
    psql(
        "drop table if exists adbc_odbc; create table adbc_odbc (id serial, price numeric(15, 2) default 1.5,"
        " code varchar(20), at timestamptz, twice bigint generated always as (2 * 3) stored)"
    )

    def columns(connection: dbapi.Connection, table: str) -> dict[str, tuple[object, ...]]:
        objects = connection.adbc_get_objects(table_name_filter=table).read_all().to_pylist()
        (found,) = [one for schema in objects[0]["catalog_db_schemas"] for one in schema["db_schema_tables"]]
        names = ("data_type", "column_size", "decimal_digits", "num_prec_radix", "datetime_sub", "char_octet_length")
        names += ("column_def", "is_autoincrement", "is_generatedcolumn")
        return {
            column["column_name"]: tuple(column[f"xdbc_{name}"] for name in names) for column in found["table_columns"]
        }

    found = columns(shop, "adbc_odbc")
    default = "nextval('adbc_odbc_id_seq'::regclass)"
    assert found["id"] == (4, 10, 0, 10, None, None, default, True, False)
    assert found["price"] == (3, 15, 2, 10, None, None, "1.5", False, False)
    assert found["code"] == (12, 20, None, None, None, 80, None, False, False)
    assert found["at"] == (93, 32, 6, None, 3, None, None, False, False)
    assert found["twice"] == (-5, 19, 0, 10, None, None, None, False, True)
    with connect(ranges.uri()) as connection:
        found = columns(connection, "stock")
        assert found["id"] == (-5, 19, 0, 10, None, None, None, False, False)
        assert found["price"] == (3, 9, 2, 10, None, None, None, False, False)
    with connect(mysql) as connection, connection.cursor() as cursor:
        cursor.adbc_ingest("adbc_odbc", ROWS, mode="replace")
        assert columns(connection, "adbc_odbc")["id"][:4] == (-5, 19, 0, 10)


def test_objects_of_other_sources(sales: str, sqlite_uri: str, node: str) -> None:
    for uri, table, columns in ((sales, "sales", ["region", "amount"]), (sqlite_uri, "item", ["id", "name", "price"])):
        with connect(uri) as connection:
            (catalog,) = connection.adbc_get_objects().read_all().to_pylist()
            tables = [table for schema in catalog["catalog_db_schemas"] for table in schema["db_schema_tables"]]
            assert [one["table_name"] for one in tables] == [table]
            assert [column["column_name"] for column in tables[0]["table_columns"]] == columns
            assert connection.adbc_get_table_schema(table).names == columns
    with connect(node) as connection:
        connection.adbc_get_objects().read_all()


def test_information(shop: dbapi.Connection) -> None:
    info = shop.adbc_get_info()
    assert info["vendor_name"] == "PostgreSQL"
    with shop.cursor() as cursor:
        cursor.execute("select current_setting('server_version')::text")
        assert cursor.fetchone() == (info["vendor_version"],)
    assert info["driver_name"] == "Lightship ADBC driver"
    assert info["driver_adbc_version"] == 1_001_000
    assert "view" in shop.adbc_get_table_types()
    assert shop.adbc_current_catalog == "postgres"
    assert shop.adbc_current_db_schema == "public"
    with pytest.raises(dbapi.Error) as caught:
        shop.adbc_get_table_schema("nowhere")
    assert caught.value.status_code == adbc_driver_manager.AdbcStatusCode.NOT_FOUND


def test_errors(shop: dbapi.Connection) -> None:
    with shop.cursor() as cursor:
        with pytest.raises(dbapi.ProgrammingError, match="nothing") as caught:
            cursor.execute("select nothing")
        assert caught.value.sqlstate == "42703"
        assert (b"lightship.kind", b"source") in caught.value.details
        with pytest.raises(dbapi.Error, match="parameter") as caught:
            cursor.execute("select $1::int", (1, 2))
        assert caught.value.sqlstate == "22023"
        # In a stream of Arrow, an error is only a text.
        with pytest.raises((dbapi.Error, pyarrow.ArrowInvalid), match="division by zero"):
            cursor.execute("select 1 / (5 - i) from generate_series(1, 9) i")
            cursor.fetchall()
    with pytest.raises(dbapi.OperationalError, match="lightship node"):
        connect("lightship://127.0.0.1:1")
    with pytest.raises(dbapi.Error, match="uri"):
        dbapi.connect(driver=DRIVER)


def test_parameters(shop: dbapi.Connection, sales: str, node: str) -> None:
    with shop.cursor() as cursor:
        cursor.execute("select i from generate_series(1, 9) i where i > $1 and i < $2", (6, 9))
        assert cursor.fetchall() == [(7,), (8,)]
        (schema,) = (cursor.adbc_prepare("select i from generate_series(1, 9) i where i > $1"),)
        assert schema.types == [pyarrow.int32()]
        # Once for each row.
        rows = pyarrow.record_batch({"low": [7, 8, 9], "text": ["a", None, "c"]})
        cursor.execute("select i, $2::text as t from generate_series(1, 9) i where i >= $1", rows)
        assert cursor.fetchall() == [(7, "a"), (8, "a"), (9, "a"), (8, None), (9, None), (9, "c")]
        cursor.executemany("select $1::int", [(1,), (2,)])
    for uri in (sales, node):
        with connect(uri) as connection, connection.cursor() as cursor:
            cursor.execute("select cast(? as bigint) + cast(? as bigint) as n", (1, 2))
            assert cursor.fetchall() == [(3,)]
            with pytest.raises(dbapi.Error) as caught:
                cursor.execute("select cast(? as bigint) + 1", ("x",))
            assert caught.value.sqlstate == "22023"


def test_statistics(shop: dbapi.Connection, psql: object, sales: str) -> None:
    psql("create table if not exists adbc_counted as select 1 as i from generate_series(1, 1000); analyze adbc_counted")
    for connection, table, approximate, rows in (
        (shop, "adbc_counted", True, 1000),
        (shop, "adbc_counted", False, 1000),
        (connect(sales), "sales", False, 3),
    ):
        found = connection.adbc_get_statistics(table_name_filter=table, approximate=approximate).read_all().to_pylist()
        statistics = [one for schema in found[0]["catalog_db_schemas"] for one in schema["db_schema_statistics"]]
        (statistic,) = [one for one in statistics if one["column_name"] is None]
        # 6 is the number of rows.
        assert (statistic["table_name"], statistic["column_name"], statistic["statistic_key"]) == (table, None, 6)
        assert (statistic["statistic_value"], statistic["statistic_is_approximate"]) == (rows, approximate)
    assert shop.adbc_get_statistics(catalog_filter="nowhere").read_all().num_rows == 0


def test_statistics_of_columns(shop: dbapi.Connection, psql: object) -> None:
    psql(
        "drop table if exists adbc_known; create table adbc_known as select i, i % 4 as few, "
        "case when i % 2 = 0 then 'text' end as half from generate_series(1, 1000) i; analyze adbc_known"
    )
    found = shop.adbc_get_statistics(table_name_filter="adbc_known", approximate=True).read_all().to_pylist()
    statistics = [one for schema in found[0]["catalog_db_schemas"] for one in schema["db_schema_statistics"]]
    assert all(one["statistic_is_approximate"] for one in statistics)
    values = {(one["column_name"], one["statistic_key"]): one["statistic_value"] for one in statistics}
    # Keys: 0 average bytes, 1 distinct values, 5 NULLs, 6 rows.
    assert values == {
        (None, 6): 1000,
        ("i", 0): 4,
        ("i", 1): 1000,
        ("i", 5): 0,
        ("few", 0): 4,
        ("few", 1): 4,
        ("few", 5): 0,
        ("half", 0): 5,
        ("half", 1): 1,
        ("half", 5): 500,
    }
    exact = shop.adbc_get_statistics(table_name_filter="adbc_known", approximate=False).read_all().to_pylist()
    assert len([one for schema in exact[0]["catalog_db_schemas"] for one in schema["db_schema_statistics"]]) == 1


def test_users_and_passwords(postgres: str, ranges: Node, sales: str) -> None:
    without = postgres.replace("me@", "nobody:x@")
    with dbapi.connect(
        driver=DRIVER, db_kwargs={"uri": without, "username": "me", "password": "a@b"}, autocommit=True
    ) as connection:
        assert connection.execute("select current_user::text").fetchone() == ("me",)
    uri = f"lightship://{ranges.own}"
    with pytest.raises(dbapi.Error):
        connect(uri)
    with connect(uri, password=TOKEN) as connection:
        assert connection.execute("select 1").fetchone() == (1,)
    with pytest.raises(dbapi.Error, match="takes no user"):
        connect(sales, username="me")


def test_progress(node: str) -> None:
    with connect(node) as connection, connection.cursor() as cursor:
        statement = cursor.adbc_statement
        assert statement.get_option_float("adbc.statement.exec.progress") == 0
        cursor.execute("select value from generate_series(1, 100000) as t(value)")
        reader = cursor.fetch_record_batch()
        first = reader.read_next_batch().num_rows
        assert 0 < first <= statement.get_option_float("adbc.statement.exec.progress") < 100_000
        reader.read_all()
        for option in ("adbc.statement.exec.progress", "adbc.statement.exec.max_progress"):
            assert statement.get_option_float(option) == 100_000
        with pytest.raises(dbapi.Error, match="only be read"):
            statement.set_options(**{"adbc.statement.exec.progress": "1"})


def test_partitions(sales: str, sqlite_uri: str) -> None:
    with connect(sales, **{"lightship.also": sales}) as connection, connection.cursor() as cursor:
        partitions, schema = cursor.adbc_execute_partitions("select sum(amount) as total from sales")
        assert (len(partitions), schema.names) == (2, ["total"])
        for partition in partitions:
            cursor.adbc_read_partition(partition)
            assert cursor.fetchall() == [(12,)]
        with (
            connect(sqlite_uri) as other,
            other.cursor() as elsewhere,
            pytest.raises(dbapi.Error, match="other sources"),
        ):
            elsewhere.adbc_read_partition(partitions[0])
        with pytest.raises(dbapi.Error, match="not one of this driver"):
            cursor.adbc_read_partition(b"x")


def test_options(shop: dbapi.Connection) -> None:
    with shop.cursor() as cursor:
        statement = cursor.adbc_statement
        assert statement.get_option("lightship.batch_rows") == "auto"
        statement.set_options(**{"lightship.batch_rows": 100, "lightship.numeric": "string"})
        assert statement.get_option_int("lightship.batch_rows") == 100
        assert statement.get_option_bytes("lightship.numeric") == b"string"
        cursor.execute("select i::numeric as i from generate_series(1, 1000) i")
        reader = cursor.fetch_record_batch()
        assert reader.schema.field("i").type == pyarrow.string()
        assert reader.read_next_batch().num_rows == 100
        with pytest.raises(dbapi.Error, match="codec"):
            statement.set_options(**{"lightship.codec": "best"})
        with pytest.raises(dbapi.Error, match="unknown option"):
            statement.get_option("lightship.speed")
        # What can be set can be read.
        for option, value in (
            ("adbc.ingest.target_table", "t"),
            ("adbc.ingest.target_db_schema", "s"),
            ("adbc.ingest.mode", "adbc.ingest.mode.append"),
            ("adbc.ingest.temporary", "false"),
            ("adbc.statement.exec.incremental", "false"),
        ):
            statement.set_options(**{option: value})
            assert statement.get_option(option) == value
    assert shop.adbc_connection.get_option("adbc.connection.autocommit") == "true"
    with pytest.raises(dbapi.NotSupportedError):
        shop.adbc_connection.set_autocommit(False)


def test_cancel(shop: dbapi.Connection) -> None:
    with shop.cursor() as cursor:
        threading.Timer(0.5, cursor.adbc_cancel).start()
        began = time.monotonic()
        with pytest.raises((dbapi.Error, pyarrow.ArrowInvalid), match="cancel"):
            cursor.execute("select pg_sleep(60)")
            cursor.fetchall()
        assert time.monotonic() - began < 5
        cursor.execute("select 1")
        assert cursor.fetchall() == [(1,)]


def test_the_schema_of_a_query(shop: dbapi.Connection) -> None:
    with shop.cursor() as cursor:
        schema = cursor.adbc_execute_schema("select 1::int4 as a, 'x'::text as b")
        assert schema == pyarrow.schema([("a", pyarrow.int32()), ("b", pyarrow.string())])


def test_the_module(postgres: str, node: str) -> None:
    with adbc_driver_lightship.dbapi.connect(postgres) as connection, connection.cursor() as cursor:
        cursor.execute("select 1 as x")
        assert cursor.fetch_arrow_table().to_pydict() == {"x": [1]}
        assert cursor.adbc_ingest("adbc_module", ROWS, mode="replace") == 3
    # Polars finds the module by the scheme.
    frame = polars.read_database_uri("select 12 as x", node, engine="adbc")
    assert frame["x"].to_list() == [12]


def test_the_manifest(postgres: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = Path(__file__).parents[2] / "crates" / "adbc" / "lightship.toml"
    text = manifest.read_text().replace("libadbc_driver_lightship.so", DRIVER)
    (tmp_path / "lightship.toml").write_text(text)
    monkeypatch.setenv("ADBC_DRIVER_PATH", str(tmp_path))
    with dbapi.connect(driver="lightship", db_kwargs={"uri": postgres}, autocommit=True) as connection:
        assert connection.adbc_get_info()["driver_name"] == "Lightship ADBC driver"
