"""The commands of README.md and the guide run as they are written, by bash, and print what the pages show.

Each page has a folder with the files that it names, and a home. Its commands run in their order; a server runs until
another one needs its port, or the page ends. Hosts and ports are others: see `reader.PLACES`.
"""

from __future__ import annotations

import datetime
import decimal
import json
import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path

import openpyxl
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from conftest import POSTGRES
from pages import Command, blocks, commands, masked
from reader import Reader
from servers import ROOT

PAGES = ["README.md", *sorted(f"docs/guide/{path.name}" for path in (ROOT / "docs/guide").glob("*.md"))]
DRIVERS = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve() / "adbc-drivers"

#: Commands that do not run here, by how they begin, and why.
EXCLUDED = {
    "cargo build": "builds in release mode, which takes 16 minutes",
    "export PATH=": "belongs to the build; here the folder of the command is on the PATH",
    "pip install ./python": "test_wheel.py runs it",
    "pip install adbc-driver-flightsql": "scripts/test-python.sh installs it",
    "lightship fetch URI": "a synopsis",
    "lightship shell URI": "a synopsis",
    "lightship calibrate host --folder DIR": "a synopsis, and takes 20 s",
    "lightship node --table 'orders=adbc:snowflake": "needs an account at Snowflake",
    "lightship fetch s3://": "needs a server of S3; crates/cli/tests/it/objects.rs has one",
    "lightship fetch postgresql://me@db/shop 'select * from orders' -o s3://": "needs a server of S3",
    "lightship copy s3://": "needs a server of S3",
    "lightship node --table orders=s3://": "needs a server of S3",
    "lightship fetch 'adbc:/opt/duckdb/libduckdb.so?entrypoint=duckdb_adbc_init&path=:memory:": "needs a Delta table",
    "java --add-opens": "an option; test_guide.py runs programs with it",
    "psql ": "test_guide.py runs these commands of psql",
    "lightship=> ": "test_guide.py runs these commands of psql",
}

#: Blocks that are not commands, by how they begin, and the command that they belong to: it prints them.
FRAGMENTS = {
    "error: rows 3 and 7 have": "lightship copy twice.parquet 'select * from twice' postgresql://me@new/shop "
    "--table twice --mode upsert --key id",
    "error: /data/l.csv": "lightship fetch /data/l.csv 'select y from l'",
    '{\n  "rows": 600572': "cat stats.json",
    'listen = ["127.0.0.1:4270"]': "lightship node --config node.toml",
    "wait for disks unavailable": "lightship usage explain sort",
}

#: Blocks that are not commands, and belong to none that runs here, and why.
OTHERS = {
    'eval "$(aws configure': "needs the AWS command line, and an account",
    "data: TPC-H at scale 0.1": "printed by `make demo`, which builds in release mode",
    "use lightship::": "Rust",
    "jdbc:arrow-flight-sql:": "test_guide.py connects to these",
    "note: index orders_note_idx": "the tests of crates/sources read such notices",
}

#: What is added to a command, which takes longer for a reader.
SHORTER = {"lightship netbench run": "--seconds 0.2", "lightship netbench sweep": "--seconds 0.005"}

DELAYS = Path("/proc/sys/kernel/task_delayacct")
COUNTS_DELAYS = not DELAYS.exists() or DELAYS.read_text() != "0\n"

#: Lines that differ from run to run in more than their numbers, by the command, and why.
UNSTABLE = {
    "lightship usage run --label sort": ("^(?!sort|  CPU)", "what limits it depends on what else the host does"),
    "lightship usage what-if sort": ("^  (?!CPU)", "so do its waits"),
    "lightship usage explain sort": ("wait for disks" if COUNTS_DELAYS else "^$", "some kernels count them"),
    "lightship calibrate": ("alpha|beta", "terms that fit badly are left out"),
    "lightship tune lightship": ("^Plan", "one batch in flight is not `batches`"),
    "lightship netbench sweep": ("plateau", "there may be several best rates"),
    "cat stats.json": ("retunes", "there may be some"),
}

#: Commands whose numbers all differ from run to run.
NUMBERS_DIFFER = (
    "lightship calibrate",
    "lightship tune lightship",
    "lightship tune --history",
    "lightship netbench",
    "lightship explain --analyze",
    "cat stats.json",
)

#: Commands whose quantities are the same in every run.
EXACT = ("lightship tune --link", "lightship overlay")

Hook = Callable[[Reader], None]

#: What a page needs, by its name, and what one of its commands needs, by how it begins.
NEEDS: dict[tuple[str, str], Hook] = {}


def needs(page: str, start: str = "") -> Callable[[Hook], Hook]:
    def add(hook: Hook) -> Hook:
        NEEDS[page, start] = hook
        return hook

    return add


def starts(text: str, begins: Collection[str]) -> str | None:
    return next((begin for begin in begins if text.startswith(begin)), None)


def lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.split("\n") if line.strip()]


#: What is printed, and pages may leave out: the summary of a result, and where files are.
LEFT_OUT = re.compile(r"^[\d,]+ rows?( from \d+ sources)?, .* peak memory|^saved in |^wrote ")


def compare(command: str, shown: str, output: str) -> None:
    """Checks that all lines that the page shows were printed, and others only where it has `...`."""
    start = starts(command, UNSTABLE)
    unstable = re.compile(UNSTABLE[start][0] if start else "^$")
    numbers = starts(command, NUMBERS_DIFFER) is not None
    exact = starts(command, EXACT) is not None

    def counted(text: str) -> Counter[str]:
        found = [line for line in lines(text) if "..." not in line and not unstable.search(line)]
        return Counter(line if exact else masked(line, numbers) for line in found)

    missing = counted(shown) - counted(output)
    printed = "\n".join(line for line in lines(output) if not LEFT_OUT.match(line))
    others = Counter[str]() if "..." in shown else counted(printed) - counted(shown)
    if missing or others:
        found = f"is shown, and not printed: {list(missing)}\nis printed, and not shown: {list(others)}"
        pytest.fail(f"{command}\n{found}\n{output}")


#: A prompt of `lightship shell`, or its continuation, and what is typed there.
TYPED = re.compile(r"^(?:\w+| +)> (.*)$")


def follow(reader: Reader, command: Command) -> None:
    text = command.text
    if reader.serves(text):
        reader.start(text)
        return
    shorter = starts(text, SHORTER)
    run = f"{text} {SHORTER[shorter]}" if shorter else text
    shown = reader.here(command.output)
    if not command.prompt:
        code, output = reader.run(run)
    else:
        typed: list[tuple[str, list[str]]] = []
        for line in lines(command.output):
            if entered := TYPED.match(line):
                typed.append((entered[1], []))
            elif typed and "peak memory" in line:
                typed[-1][1].append("peak memory")
        if typed:
            typed.append(("\\q", []))
        code, output = reader.run_at_terminal(run, typed)
        if typed:
            # The line editor shows a line again at each key.
            shown, output = ("\n".join(row for row in lines(part) if "> " not in row) for part in (shown, output))
    fails = command.output.startswith("error: ")
    assert (code != 0) == fails, f"`{reader.here(run)}` ended with {code}:\n{output}"
    if shown.strip():
        compare(text, shown, output)


@pytest.fixture(scope="module")
def known(postgres: str, mysql: str) -> dict[str, str]:
    """The databases called `shop`."""
    subprocess.run([POSTGRES[-1] / "psql", "-q", postgres, "-c", "create database shop"], check=True)
    return {"postgres": postgres.rpartition("/")[0] + "/shop", "mysql": mysql, "drivers": str(DRIVERS)}


def sql(reader: Reader, text: str) -> None:
    """Runs statements in PostgreSQL."""
    words = [str(POSTGRES[-1] / "psql"), "-q", "-v", "ON_ERROR_STOP=1", reader.known["postgres"], "-c", text]
    subprocess.run(words, check=True, capture_output=True, text=True)


def save(reader: Reader, file: str, **columns: object) -> None:
    """Writes a Parquet file."""
    path = reader.folder / file
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.table({name: pa.array(values) for name, values in columns.items()}), path)


def money(values: list[str], places: int = 2) -> pa.Array:
    return pa.array([decimal.Decimal(value) for value in values], pa.decimal128(15, places))


def save_nation(reader: Reader, folder: str) -> None:
    names = ["ALGERIA", "ARGENTINA", "BRAZIL", "CANADA", "CHINA", "GERMANY", "INDONESIA", "RUSSIA", "SAUDI ARABIA"]
    keys = list(range(len(names)))
    types = [("n_nationkey", pa.int64()), ("n_name", pa.string()), ("n_regionkey", pa.int64())]
    types.append(("n_comment", pa.string()))
    schema = pa.schema([pa.field(name, type, nullable=False) for name, type in types])
    table = pa.table([keys, names, [0, 1, 1, 1, 2, 3, 2, 3, 4], names], schema=schema)
    (reader.folder / folder).mkdir(parents=True, exist_ok=True)
    parquet.write_table(table, reader.folder / folder / "nation.parquet")


def save_suppliers(reader: Reader, folder: str, shown: dict[int, tuple[int, str]]) -> None:
    """By the key of a nation, how many suppliers it has, and their balance."""
    nations: list[int] = []
    balances: list[str] = []
    for nation, (count, balance) in shown.items():
        nations += [nation] * count
        balances += [balance] + ["0.00"] * (count - 1)
    save(reader, f"{folder}/supplier.parquet", s_nationkey=nations, s_acctbal=money(balances))


def save_items(reader: Reader, name: str, years: dict[int, tuple[int, str]]) -> None:
    """Line items; by year, how many, and what they cost."""
    dates: list[datetime.date] = []
    prices: list[str] = []
    for year, (count, price) in years.items():
        dates += [datetime.date(year, 1, 1)] * count
        prices += [price] + ["0.00"] * (count - 1)
    keys = range(len(dates))
    save(
        reader,
        name,
        l_orderkey=pa.array(keys, pa.int64()),
        l_suppkey=pa.array([key % 1000 for key in keys], pa.int64()),
        l_extendedprice=money(prices),
        l_shipdate=dates,
        l_comment=pa.array(["fast"] * len(dates)),
    )


def save_orders(reader: Reader, name: str, ids: range) -> None:
    """Orders for a range file."""
    save(
        reader,
        name,
        id=pa.array(ids, pa.int64()),
        customer=[f"customer {id % 7}" for id in ids],
        price=pa.array([decimal.Decimal(id) / 4 for id in ids], pa.decimal128(10, 2)),
    )


def make_certificate(reader: Reader) -> None:
    """Runs the commands of serve.md, whose files are named above them."""
    for block in blocks(ROOT / "docs/guide/serve.md"):
        if block.text.startswith("openssl"):
            for command in commands(block) or []:
                reader.succeeds(command.text)


@needs("README.md")
def _(reader: Reader) -> None:
    demo = "target/demo/tpch-0.1"
    save_nation(reader, demo)
    shown = {7: (47, "225733.67"), 4: (53, "224112.41"), 5: (50, "222227.39"), 8: (47, "220177.99")}
    save_suppliers(reader, demo, shown | {6: (45, "211812.76"), 0: (2, "7.50")})
    for folder in ("warehouse", "part1", "part2"):
        save_items(reader, f"{folder}/lineitem.parquet", {1995: (3, "9.00")})
    save_orders(reader, "orders.parquet", range(50, 1050))
    make_certificate(reader)
    sql(reader, "create table lineitem as select i as l_orderkey from generate_series(1, 100) i")


@needs("docs/guide/adbc.md")
def _(reader: Reader) -> None:
    # SQLite's driver takes no decimals.
    save(reader, "orders.parquet", id=range(10), price=[id / 4 for id in range(10)])
    (reader.home / "sqlite.toml").write_text(
        'manifest_version = 1\nname = "SQLite"\nversion = "1"\n'
        f'[Driver]\nshared = "{DRIVERS / "libadbc_driver_sqlite.so"}"\n'
    )
    reader.environment["ADBC_DRIVER_PATH"] = str(reader.home)
    place = "adbc:/opt/duckdb/libduckdb.so?entrypoint=duckdb_adbc_init&path=shop.duckdb"
    reader.succeeds(f"lightship copy orders.parquet 'select * from orders' '{place}' --table orders")


@needs("docs/guide/cluster.md")
def _(reader: Reader) -> None:
    for part in (1, 2, 3, 4):
        save_items(reader, f"part{part}/lineitem.parquet", {1995: (300_286, "9.00")})
        save(reader, f"part{part}/customer.parquet", c_custkey=range(7_500), c_name=["ann"] * 7_500)


@needs("docs/guide/cluster.md", "lightship explain")
def _(reader: Reader) -> None:
    """The other two of four nodes."""
    for part in (3, 4):
        place = f"--listen 127.0.0.1:430{part} --advertise localhost:430{part} --join localhost:4301"
        reader.start(f"lightship node {place} --data part{part}/")
    reader.until("lightship cluster show lightship://localhost:4303", r"(?s)(localhost:\d+ +joined.*){4}\n\n")


@needs("docs/guide/cluster.md", "lightship fetch")
def _(reader: Reader) -> None:
    """A cluster of the two nodes of the page, one of which is stopped."""
    reader.end_all()
    shutil.rmtree(reader.home / ".local")
    for block in blocks(ROOT / "docs/guide/cluster.md"):
        for command in commands(block) or []:
            if reader.serves(command.text):
                reader.start(command.text)
    show = "lightship cluster show lightship://localhost:4301"
    reader.until(show, r"(?s)(lineitem +localhost:\d+ +joined.*){2}")
    reader.end(reader.servers[1])
    reader.until(show, "has stopped")


@needs("docs/guide/copy.md")
def _(reader: Reader) -> None:
    made = "create table orders (id int primary key, customer varchar(20), price decimal(6, 2), changed date)"
    rows = "insert into orders values (1, 'ann', 9.5, '2024-02-29'), (2, 'bob', 7, '2099-12-31')"
    place = ["--protocol=tcp", "--user=me", *mysql_options(reader)]
    words = ["mariadb", "--no-defaults", *place, "shop", "-e", f"drop table if exists orders; {made}; {rows}"]
    subprocess.run(words, check=True, capture_output=True)
    sql(reader, "create schema archive")
    prices = ["1.5", "2.5", "3.5", "4.5", "5.5", "6.5", "7.125", "8.5"]
    save(
        reader,
        "orders.parquet",
        id=pa.array(range(11, 19), pa.int32()),
        customer=["cid"] * 8,
        price=money(prices, 3),
        changed=[datetime.date(2024, 3, 1)] * 8,
    )
    save(reader, "twice.parquet", id=pa.array([1, 2, 3, 4, 5, 6, 3], pa.int32()), name=["a"] * 7)


@needs("docs/guide/copy.md", "lightship copy mysql://me@old/shop 'select * from orders where")
def _(reader: Reader) -> None:
    """The index that the page requires."""
    sql(reader, "create unique index on orders (id)")


def mysql_options(reader: Reader) -> list[str]:
    found = re.search(r"@(.*):(\d+)/", reader.known["mysql"])
    assert found is not None
    return [f"--host={found[1]}", f"--port={found[2]}"]


@needs("docs/guide/fetch.md")
def _(reader: Reader) -> None:
    (reader.folder / "sales.csv").write_text("region,amount\nnorth,3\nsouth,4\nnorth,5\n")
    sql(reader, "create table orders as select 1 as id, date '2024-03-01' as placed")
    for name in ("orders", "parts"):
        save_orders(reader, f"two/{name}.parquet", range(10))
    reader.start("lightship node --data two/")
    years = {1997: (90514, "3258679738.59"), 1998: (69515, "2491034793.40"), 1995: (91800, "3301107091.36")}
    years |= {1996: (90962, "3285993896.45"), 1992: (76408, "2753079376.34"), 1993: (89333, "3218349601.07")}
    years |= {1994: (92040, "3307684783.03")}
    for folder, these in (("all", years), ("one", [1997, 1998]), ("other", [1995, 1996]), ("lake", [1992, 1993, 1994])):
        save_items(reader, f"{folder}/lineitem.parquet", {year: years[year] for year in these})
    (reader.folder / "x").mkdir()
    (reader.folder / "x" / "lineitem.csv").write_text("l_orderkey,l_comment\nseven,slow\n")


@needs("docs/guide/fetch.md", "lightship fetch lightship://localhost 'select * from lineitem'")
def _(reader: Reader) -> None:
    reader.start("lightship node --data all/")
    reader.start("lightship node --listen 127.0.0.1:4301 --data one/")
    reader.start("lightship node --listen 127.0.0.1:4302 --data other/")


@needs("docs/guide/files.md")
def _(reader: Reader) -> None:
    (reader.folder / "people.csv").write_text("Name,born\nann,1990-01-02\n")
    (reader.folder / "l.csv").write_text("y\n" + "1\n" * 1500 + "z\n")
    (reader.folder / "data").mkdir()
    (reader.folder / "data/2024-01.csv").write_text("a\n1\n")
    (reader.folder / "sales.csv").write_text("person,amount\nann,3\n")
    (reader.folder / "export.csv").write_text("1;x\n2;y\n")
    (reader.folder / "fixed.dat").write_text('001   12\n"2"    7\n')
    book = openpyxl.Workbook()
    sheet = book.create_sheet("2024")
    for row in (["region", "amount"], ["north", 3], ["south", 4.5]):
        sheet.append(row)
    book.save(reader.folder / "report.xlsx")


@needs("docs/guide/flight.md")
@needs("docs/guide/postgres.md")
@needs("docs/guide/shell.md")
def _(reader: Reader) -> None:
    save_nation(reader, "warehouse")
    (reader.folder / "sales.csv").write_text("region,amount\nnorth,3\nsouth,4\n")


@needs("docs/guide/shell.md", "lightship shell lightship")
def _(reader: Reader) -> None:
    reader.start("lightship node --data warehouse/")


@needs("docs/guide/network.md")
def _(reader: Reader) -> None:
    reader.start("lightship netbench serve --listen 0.0.0.0")


@needs("docs/guide/range.md")
def _(reader: Reader) -> None:
    save_orders(reader, "orders.parquet", range(50, 1050))
    columns = "i as id, 'ann' as customer, 9.5 as price"
    sql(reader, f"create table orders as select {columns} from generate_series(4700, 4720) i")


@needs("docs/guide/range.md", "lightship range create")
def _(reader: Reader) -> None:
    reader.until("lightship cluster show lightship://127.0.0.1:4301", r"(?s)(127.0.0.1:\d+ +joined.*){3}")


@needs("docs/guide/serve.md")
def _(reader: Reader) -> None:
    for folder in ("target/demo/tpch-0.1", "warehouse", "."):
        save_items(reader, f"{folder}/lineitem.parquet", {1995: (3, "9.00")})
    sql(reader, "create table orders as select 1 as id")
    make_certificate(reader)


@needs("docs/guide/serve.md", "listen = ")
def _(reader: Reader) -> None:
    (text,) = (block.text for block in blocks(ROOT / "docs/guide/serve.md") if block.text.startswith("listen = "))
    (reader.folder / "node.toml").write_text(reader.here(text))


@needs("docs/guide/tuning.md", "lightship calibrate")
def _(reader: Reader) -> None:
    save_items(reader, "warehouse/lineitem.parquet", {1995: (100_000, "9.00")})
    reader.start("lightship node --data warehouse/")


@needs("docs/guide/tuning.md", "lightship tune --history")
def _(reader: Reader) -> None:
    for query in ["select * from lineitem"] * 3 + ["select l_orderkey from lineitem"]:
        reader.succeeds(f"lightship fetch lightship://10.2.1.1 '{query}' -o lineitem.parquet")


@needs("docs/guide/usage.md")
def _(reader: Reader) -> None:
    (reader.folder / "rows.txt").write_text("".join(f"{i * 7919 % 300_007}\n" for i in range(300_000)))
    (reader.folder / "token").write_text("secret-of-the-agents\n")
    save_orders(reader, "warehouse/orders.parquet", range(10))
    sql(reader, "create table lineitem as select i as l_orderkey from generate_series(1, 100) i")


@needs("docs/guide/usage.md", "lightship usage show")
def _(reader: Reader) -> None:
    """A query that was assessed."""
    reader.succeeds("lightship fetch lightship://localhost 'select count(*) from orders'")
    node = "--node http://127.0.0.1:4280"
    reader.known["query"] = json.loads(reader.succeeds(f"lightship --json usage show {node}"))["id"][:8]
    reader.until(f"lightship usage explain 3f2a {node}", "%  ")


@pytest.mark.parametrize("page", PAGES)
def test_commands(page: str, known: dict[str, str], tmp_path: Path) -> None:
    reader = Reader(tmp_path, known)
    sql(reader, "drop schema if exists archive cascade; drop schema public cascade; create schema public")
    prepared: set[str] = set()

    def prepare(text: str) -> None:
        for (name, start), hook in NEEDS.items():
            if name == page and start not in prepared and text.startswith(start):
                prepared.add(start)
                hook(reader)

    try:
        for block in blocks(ROOT / page):
            found = commands(block)
            if found is None:
                start = starts(block.text, FRAGMENTS)
                assert start or starts(block.text, OTHERS), f"{page}:{block.line} is no command, and not in a list"
                if start is None:
                    continue
                prepare(block.text)
                output = "" if reader.serves(FRAGMENTS[start]) else f"{block.text}\n..."
                found = [Command(FRAGMENTS[start], output, False)]
            for command in found:
                if starts(command.text, EXCLUDED) is None:
                    prepare(command.text)
                    follow(reader, command)
        reader.end_all()
    finally:
        reader.kill_all()


def test_lists_have_no_old_entries() -> None:
    """What the lists name is on a page, and pages have no commands that are not looked for."""
    texts: dict[str, list[str]] = {}
    for page in PAGES:
        texts[page] = []
        for block in blocks(ROOT / page):
            texts[page] += [block.text, *(command.text for command in commands(block) or [])]
        fenced = set(re.findall(r"^```(\w+)", (ROOT / page).read_text(), re.M))
        assert fenced <= {"python", "java"}, f"{page}: {fenced} are not run"
    shown = [text for page in texts.values() for text in page] + list(FRAGMENTS.values())
    for names in (EXCLUDED, FRAGMENTS, OTHERS, SHORTER, UNSTABLE, NUMBERS_DIFFER, EXACT):
        for start in names:
            assert any(text.startswith(start) for text in shown), f"no page has `{start}`"
    for page, start in NEEDS:
        assert any(text.startswith(start) for text in texts[page]), f"{page} has no `{start}`"
