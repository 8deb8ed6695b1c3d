"""Avro files of fastavro, as Lightship reads them."""

from __future__ import annotations

import datetime
import io
import random
import uuid
from decimal import Decimal
from pathlib import Path

import fastavro
import pytest

import lightship

SCHEMA = {
    "type": "record",
    "name": "Row",
    "fields": [
        {"name": "i", "type": "int"},
        {"name": "l", "type": ["null", "long"]},
        {"name": "f", "type": "float"},
        {"name": "d", "type": ["null", "double"]},
        {"name": "t", "type": ["null", "string"]},
        {"name": "b", "type": "bytes"},
        {"name": "o", "type": "boolean"},
        {"name": "day", "type": ["null", {"type": "int", "logicalType": "date"}]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-millis"}},
        {"name": "time", "type": {"type": "long", "logicalType": "time-micros"}},
        {"name": "m", "type": {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 4}},
        {"name": "u", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["red", "green"]}},
        {"name": "x", "type": {"type": "fixed", "name": "F", "size": 3}},
        {"name": "list", "type": {"type": "array", "items": ["null", "int"]}},
        {
            "name": "r",
            "type": ["null", {"type": "record", "name": "R", "fields": [{"name": "a", "type": "long"}]}],
        },
    ],
}


def rows(count: int) -> list[dict]:
    made = random.Random(7)
    start = datetime.datetime(2024, 2, 29, 12, tzinfo=datetime.UTC)
    return [
        {
            "i": made.randrange(-(2**31), 2**31),
            "l": made.choice([None, made.randrange(-(2**63), 2**63)]),
            "f": made.randrange(1000) / 8,
            "d": made.choice([None, made.random()]),
            "t": made.choice([None, "", "ä€", "x" * made.randrange(50)]),
            "b": made.randbytes(made.randrange(9)),
            "o": made.random() < 0.5,
            "day": made.choice([None, datetime.date(1, 1, 1), datetime.date(2024, 2, 29)]),
            "at": start + datetime.timedelta(microseconds=row * 1_234_567),
            "local": datetime.datetime(1969, 12, 31, 23) + datetime.timedelta(milliseconds=row),
            "time": datetime.time(1, 2, 3, row % 1_000_000),
            "m": Decimal(made.randrange(-(10**18), 10**18)).scaleb(-4),
            "u": uuid.UUID(int=made.getrandbits(128)),
            "e": made.choice(["red", "green"]),
            "x": made.randbytes(3),
            "list": [made.choice([None, made.randrange(9)]) for _ in range(made.randrange(4))],
            "r": made.choice([None, {"a": made.randrange(9)}]),
        }
        for row in range(count)
    ]


def read(path: Path | str, sql: str = "select * from t") -> list[dict]:
    return lightship.read_sql(str(path), sql).to_pylist()


@pytest.mark.parametrize("codec", ["null", "deflate", "snappy", "zstandard", "bzip2", "xz"])
def test_every_type_and_codec(tmp_path: Path, codec: str) -> None:
    path, written = tmp_path / "t.avro", rows(3000)
    with path.open("wb") as file:
        fastavro.writer(file, SCHEMA, written, codec=codec, sync_interval=10_000)
    assert read(path) == written
    assert read(path, "select count(*) as n from t") == [{"n": 3000}]
    some = [{"m": row["m"], "i": row["i"]} for row in written if row["t"] is None]
    assert read(path, "select m, i from t where t is null") == some


def test_sizes_of_files(tmp_path: Path) -> None:
    path = tmp_path / "t.avro"
    for count in (0, 1, 2, 20_000):
        with path.open("wb") as file:
            fastavro.writer(file, SCHEMA, rows(count), sync_interval=500)
        # Parts of a file are read at the same time.
        assert read(path, "select * from t order by at") == rows(count)
    # Records of no fields, and of fields that take no bytes.
    for fields in ([], [{"name": "a", "type": "null"}]):
        empty = {"type": "record", "name": "R", "fields": fields}
        with path.open("wb") as file:
            fastavro.writer(file, empty, [{"a": None} if fields else {}] * 5)
        assert read(path, "select count(*) as n from t") == [{"n": 5}]
        if fields:
            assert read(path) == [{"a": None}] * 5


def test_files_of_a_folder_and_other_names(tmp_path: Path) -> None:
    folder = tmp_path / "t"
    folder.mkdir()
    for number, kind in enumerate(["int", "long"]):
        schema = {"type": "record", "name": "R", "fields": [{"name": "a", "type": kind}]}
        with (folder / f"{number}.avro").open("wb") as file:
            fastavro.writer(file, schema, [{"a": number}])
    assert sorted(row["a"] for row in read(folder)) == [0, 1]
    (tmp_path / "t.dat").write_bytes((folder / "0.avro").read_bytes())
    assert read(tmp_path / "t.dat") == [{"a": 0}]
    with pytest.raises(lightship.Error, match=r"`header` is an option of CSV and Excel, but .* is Avro"):
        read(f"{tmp_path / 't.dat'}?header=false")


def test_what_is_damaged_is_an_error(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    schema = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "long"}]}
    fastavro.writer(buffer, schema, [{"a": row} for row in range(2000)], codec="bzip2")
    whole = buffer.getvalue()
    path = tmp_path / "t.avro"
    for length in (3, 40, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(lightship.Error, match=r"t\.avro: incomplete or damaged Avro file"):
            read(path)
    path.write_bytes(b"a,b\n")
    with pytest.raises(lightship.Error, match=r"t\.avro: not an Avro file"):
        read(path)
    for at in (len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        with pytest.raises(lightship.Error, match=r"t\.avro: incomplete or damaged Avro file"):
            read(path)
