"""The programs of README.md and the guide run as they are written, against other hosts."""

from __future__ import annotations

import datetime
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import lightship
from conftest import POSTGRES
from servers import FLIGHT_JDBC, POSTGRES_JDBC, ROOT, TOKEN, Node, java, serve

GUIDE = ROOT / "docs" / "guide"


def programs(page: Path, language: str) -> list[str]:
    found = re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.M | re.S)
    assert found, f"{page} has no program in {language}"
    return found


@pytest.mark.parametrize("page", ["README.md", "docs/guide/python.md", "docs/guide/adbc.md"])
def test_the_package(page: str, postgres: str, node: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = os.environ.get("LIGHTSHIP_ADBC_DRIVER", "")
    if page.endswith("adbc.md") and not driver:
        pytest.skip("LIGHTSHIP_ADBC_DRIVER names the driver")
    orders = "select i as id, i % 7 as amount, case i % 2 when 0 then 'north' else 'south' end as region"
    lightship.copy(postgres, f"{orders} from generate_series(1, 1000) i", postgres, table="orders", mode="replace")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for program in programs(ROOT / page, "python"):
        program = program.replace("postgresql://me@db/shop", postgres).replace("lightship://db.example", node)
        program = program.replace('driver="lightship"', f"driver={driver!r}")
        exec(program, names)


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tables of the guide."""
    folder = tmp_path_factory.mktemp("warehouse")
    day = datetime.date(1996, 1, 2)
    lightship.write(pa.table({"o_orderkey": range(100), "o_orderdate": [day] * 100}), folder / "orders.parquet")
    nation = {"n_nationkey": range(3), "n_name": ["ALGERIA", "ARGENTINA", "BRAZIL"], "n_regionkey": [0, 1, 1]}
    lightship.write(pa.table(nation), folder / "nation.parquet")
    return folder


@pytest.fixture(scope="module")
def clear(warehouse: Path) -> Iterator[Node]:
    with serve("--data", str(warehouse), "--flight-endpoints", "4") as node:
        yield node


@pytest.fixture(scope="module")
def encrypted(warehouse: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Node, Path]]:
    """A node with TLS, and the folder of its certificate, `ca.pem`."""
    folder = tmp_path_factory.mktemp("tls")
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    made += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    made += ["-keyout", str(folder / "key.pem"), "-out", str(folder / "ca.pem")]
    subprocess.run(made, check=True, capture_output=True)
    keys = ["--tls-cert", str(folder / "ca.pem"), "--tls-key", str(folder / "key.pem")]
    with serve("--data", str(warehouse), *keys) as node:
        yield node, folder


def test_flight_in_python(clear: Node, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, object] = {"TOKEN": TOKEN}
    for program in programs(GUIDE / "flight.md", "python"):
        exec(program.replace("localhost:4290", clear.flight), names)
    assert "o_orderdate" in capsys.readouterr().out
    assert names["table"].num_rows == 100  # type: ignore[attr-defined]
    assert names["rows"] == 100


def test_flight_with_tls(encrypted: tuple[Node, Path]) -> None:
    """What the guide says beside its programs."""
    import adbc_driver_flightsql.dbapi as dbapi
    from adbc_driver_flightsql import DatabaseOptions

    node, folder = encrypted
    options = {
        DatabaseOptions.AUTHORIZATION_HEADER.value: f"Bearer {TOKEN}",
        DatabaseOptions.TLS_ROOT_CERTS.value: (folder / "ca.pem").read_text(),
    }
    uri = f"grpc+tls://{node.flight}"
    with dbapi.connect(uri, db_kwargs=options, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("select count(*) from nation")
        assert cursor.fetchone() == (3,)


def test_flight_in_java(clear: Node, encrypted: tuple[Node, Path]) -> None:
    node, folder = encrypted
    urls = re.findall(r"^    (jdbc:\S+)$", (GUIDE / "flight.md").read_text(), re.M)
    assert len(urls) == 2
    for url in urls:
        url = url.replace("localhost:4290", clear.flight).replace("db1:4290", node.flight)
        url = url.replace("ca.pem", str(folder / "ca.pem")).replace("TOKEN", TOKEN)
        # The login is that of the URL.
        words = [*java(FLIGHT_JDBC, "TypesJdbc.java"), url, "", ""]
        query = "rows\tselect count(*) as n from nation\n"
        run = subprocess.run(words, input=query, capture_output=True, text=True, check=False)
        assert run.stdout.startswith("rows\tLong\t"), f"{url}: {run.stdout}{run.stderr}"
        assert run.stdout.endswith("\t3\n"), run.stdout


def test_postgres_in_python(clear: Node, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, object] = {}
    for program in programs(GUIDE / "postgres.md", "python"):
        exec(program.replace("db1:5432", clear.postgres).replace("TOKEN", TOKEN), names)
    assert capsys.readouterr().out == "('ARGENTINA',)\n('BRAZIL',)\n"
    assert names["table"].num_rows == 3  # type: ignore[attr-defined]


def test_postgres_in_java(clear: Node, tmp_path: Path) -> None:
    (program,) = programs(GUIDE / "postgres.md", "java")
    program = program.replace("db1:5432", clear.postgres).replace("TOKEN", TOKEN)
    path = tmp_path / "Guide.java"
    path.write_text(
        "import java.sql.DriverManager;\n"
        "public class Guide { public static void main(String[] arguments) throws Exception {\n"
        f"{program}\n"
        'int count = 0; while (rows.next()) { count++; } System.out.println(count + " rows");\n'
        "} }\n"
    )
    run = subprocess.run(java(POSTGRES_JDBC, str(path)), capture_output=True, text=True, check=False)
    assert run.stdout == "3 rows\n", run.stderr


def test_postgres_in_psql(encrypted: tuple[Node, Path], tmp_path: Path) -> None:
    node, _ = encrypted
    page = (GUIDE / "postgres.md").read_text()
    (place,) = re.findall(r'^    psql "(.*)"$', page, re.M)
    host, port = node.postgres.split(":")
    place = place.replace("db1", host).replace("5432", port)
    commands = re.findall(r"^    lightship=> (.*)$", page, re.M)
    assert len(commands) == 2
    run = subprocess.run(
        [POSTGRES[-1] / "psql", "-X", "-v", "ON_ERROR_STOP=1", place],
        input="\n".join(commands),
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PGPASSWORD": TOKEN},
    )
    assert run.returncode == 0, run.stderr
    assert "nation" in run.stdout
    assert (tmp_path / "nation.csv").read_text().startswith("n_nationkey,n_name,n_regionkey\n0,ALGERIA,0\n")
