"""A value of each kind for each type of Arrow, PostgreSQL, Python and Java."""

from __future__ import annotations

import datetime
import re
import uuid
from decimal import Decimal
from typing import Any, NamedTuple

import pyarrow as pa

from type_values import Date, Interval, Local, Narrow, moment, of_arrow


class Case(NamedTuple):
    """A type, and values with a name for each."""

    kind: str
    table: str
    values: dict[str, Any]
    #: The values as Arrow data; None if pyarrow can't make them.
    array: pa.Array | None = None
    #: The type in SQL, for casts of parameters.
    sql: str = ""


#: pyarrow's names of types whose format has another one.
NAMES = {
    "halffloat": "float16",
    "float": "float32",
    "double": "float64",
    "month_interval": "interval (months)",
    "day_time_interval": "interval (days, ms)",
    "month_day_nano_interval": "interval (months, days, ns)",
}


def name_of(kind: pa.DataType) -> str:
    """A type's name without the names of its parts."""
    text = re.sub(r"^extension<arrow\.opaque\[storage_type=(\w+), type_name=([^,]+).*$", r"\1 (\2)", str(kind))
    text = re.sub(r"extension<arrow\.(\w+)>", r"arrow.\1", text)
    text = re.sub(r", ordered=\d|\b(item|element|run_ends|values|entries): ?|\b(values|indices)=| not null", "", text)
    text = re.sub(r" \('\w+'\)|(?<=date32)\[day\]|(?<=date64)\[ms\]", "", text)
    if "union" in text:
        text = re.sub(r"\d+: |=\d+", "", text)
    return NAMES.get(text, text)


def table_of(kind: str) -> str:
    return "t_" + re.sub(r"\W+", "_", kind).strip("_").lower()


def arrow_case(kind: pa.DataType, sql: str, values: dict[str, Any]) -> Case:
    values = {"NULL": None, **values}
    temporal = pa.types.is_temporal(kind) and not pa.types.is_interval(kind)
    if temporal and not any(isinstance(value, datetime.date) for value in values.values()):
        array = pa.array(values.values(), pa.int32() if kind.bit_width == 32 else pa.int64()).view(kind)
    elif isinstance(kind, pa.BaseExtensionType):
        array = kind.wrap_array(pa.array(values.values(), kind.storage_type))
    elif pa.types.is_run_end_encoded(kind):
        plain = list(values.values())
        ends = pa.array(range(1, len(plain) + 1), kind.run_end_type)
        array = pa.RunEndEncodedArray.from_arrays(ends, pa.array(plain, kind.value_type))
    else:
        array = pa.array(values.values(), kind)
    name = name_of(kind)
    return Case(name, table_of(name), dict(zip(values, of_arrow(array), strict=True)), array, sql)


#: Times of a day; seconds since 1970 of the years that clients disagree about.
YEAR_1, YEAR_9999, LEAP = -62_135_596_800, 253_402_300_799, 1_709_210_096
PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def timestamps(unit: str) -> dict[str, int]:
    factor, ends = PER_SECOND[unit], 2**63 - 1
    values = {"1970": 0, "2024": LEAP * factor + factor * 9 // 10, "1969": -1}
    if unit != "ns":
        values |= {"year 1": YEAR_1 * factor, "year 9999": YEAR_9999 * factor + factor - 1}
        values |= {"year 0": (YEAR_1 - 86_400) * factor, "year 11999": 316_516_118_400 * factor}
    else:
        values |= {"whole microsecond": LEAP * factor + 123_456_000, "with nanoseconds": LEAP * factor + 123_456_789}
    return values | {"smallest": -ends - 1, "largest": ends}


def integers() -> list[Case]:
    cases = []
    for bits, sql in ((8, "smallint"), (16, "smallint"), (32, "integer"), (64, "bigint")):
        signed = {"0": 0, "smallest": -(2 ** (bits - 1)), "largest": 2 ** (bits - 1) - 1}
        cases.append(arrow_case(getattr(pa, f"int{bits}")(), sql, signed))
    for bits, sql in ((8, "smallint"), (16, "integer"), (32, "bigint"), (64, "numeric(20, 0)")):
        cases.append(arrow_case(getattr(pa, f"uint{bits}")(), sql, {"0": 0, "largest": 2**bits - 1}))
    return cases


def numbers() -> list[Case]:
    special = {"-0.0": -0.0, "NaN": float("nan"), "infinity": float("inf"), "-infinity": float("-inf")}
    floats = (
        (pa.float16(), "real", 65504.0, 2.0**-24),
        (pa.float32(), "real", (2 - 2**-23) * 2.0**127, 2.0**-149),
        (pa.float64(), "double precision", 1.7976931348623157e308, 5e-324),
    )
    cases = [
        arrow_case(kind, sql, {"0.1": 0.1, "smallest": -largest, "largest": largest, "tiny": tiny, **special})
        for kind, sql, largest, tiny in floats
    ]
    decimals = [pa.decimal32(9, 2), pa.decimal64(18, 4), pa.decimal128(38, 10), pa.decimal128(5, -2)]
    decimals.append(pa.decimal256(76, 20))
    for kind in decimals:
        largest = Decimal((0, (9,) * kind.precision, -kind.scale))
        sql = f"numeric({kind.precision}, {kind.scale})"
        cases.append(arrow_case(kind, sql, {"0": Decimal(0), "smallest": largest.copy_negate(), "largest": largest}))
    return cases


def texts() -> list[Case]:
    words = {"empty": "", "Unicode": "ä€😀", "signs": 'it\'s "q" \\ \n\t{,}', "NULL as a text": "NULL"}
    data = {"empty": b"", "any bytes": b"\x00\xff\\x"}
    cases = [
        arrow_case(kind, "text", {**words, "character NUL": "a\0b"})
        for kind in (pa.string(), pa.large_string(), pa.string_view())
    ]
    cases += [arrow_case(kind, "bytea", data) for kind in (pa.binary(), pa.large_binary(), pa.binary_view())]
    cases.append(arrow_case(pa.binary(3), "bytea", {"zeros": b"\0\0\0", "any bytes": b"\x00\xff\\"}))
    cases.append(arrow_case(pa.uuid(), "uuid", {"any": uuid.UUID(int=2**127 + 5).bytes}))
    cases.append(arrow_case(pa.json_(), "json", {"object": '{"a": [1, null]}', "number": "1.50", "null": "null"}))
    return cases


def times() -> list[Case]:
    days = {"1970": 0, "1969": -1, "year 1": YEAR_1 // 86_400, "year 9999": YEAR_9999 // 86_400}
    days |= {"year 0": YEAR_1 // 86_400 - 1, "year 11999": 3_663_381}
    widest = 2**63 // 86_400_000 - 1
    cases = [arrow_case(pa.date32(), "date", {**days, "smallest": -(2**31), "largest": 2**31 - 1})]
    days |= {"smallest": -widest, "largest": widest}
    cases.append(arrow_case(pa.date64(), "date", {name: day * 86_400_000 for name, day in days.items()}))
    for kind in (pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")):
        factor = PER_SECOND[kind.unit]
        values = {"midnight": 0, "noon": 43_200 * factor}
        if kind.unit == "ns":
            values |= {"whole microsecond": 43_200 * factor + 123_456_000}
        cases.append(arrow_case(kind, "time", {**values, "largest": 86_400 * factor - 1}))
    cases += [arrow_case(pa.timestamp(unit), "timestamp", timestamps(unit)) for unit in PER_SECOND]
    cases += [arrow_case(pa.timestamp(unit, "UTC"), "timestamptz", timestamps(unit)) for unit in PER_SECOND]
    cases.append(arrow_case(pa.timestamp("us", "Europe/Berlin"), "timestamptz", timestamps("us")))
    for unit, factor in PER_SECOND.items():
        values = {"0": 0, "1 hour": 3600 * factor, "-1.5 days": -129_600 * factor, "1000 days": 86_400_000 * factor}
        if unit == "ns":
            values |= {"1 ns": 1}
        cases.append(arrow_case(pa.duration(unit), "interval", {**values, "smallest": -(2**63), "largest": 2**63 - 1}))
    intervals = {"14 months": (14, 0, 0), "signs": (1, -2, 3_000_000), "1 ns": (0, 0, 1)}
    intervals |= {"smallest": (-(2**31), -(2**31), -(2**63)), "largest": (2**31 - 1, 2**31 - 1, 2**63 - 1)}
    cases.append(arrow_case(pa.month_day_nano_interval(), "interval", intervals))
    return cases


def nested() -> list[Case]:
    rows = {"with NULL": [1, None, 3], "empty": []}
    lists = (pa.list_, pa.large_list, pa.list_view, pa.large_list_view)
    cases = [arrow_case(make(pa.int32()), "integer[]", rows) for make in lists]
    cases.append(arrow_case(pa.list_(pa.int32(), 2), "integer[]", {"with NULL": [1, None]}))
    cases.append(arrow_case(pa.list_(pa.string()), "text[]", {"signs": ["", "NULL", None, 'a"b\\c,{} ']}))
    cases.append(arrow_case(pa.list_(pa.list_(pa.int32())), "", {"two levels": [[1], None, [], [2, 3]]}))
    struct = pa.struct([("a", pa.int32()), ("b", pa.string())])
    cases.append(arrow_case(struct, "", {"plain": {"a": 1, "b": "x"}, "with NULL": {"a": None, "b": ""}}))
    cases.append(arrow_case(pa.list_(struct), "", {"plain": [{"a": 1, "b": None}, None]}))
    entries = {"plain": [("k", 1), ("", None)], "empty": []}
    cases.append(arrow_case(pa.map_(pa.string(), pa.int32()), "", entries))
    words = {"a": "a", "empty": ""}
    cases.append(arrow_case(pa.dictionary(pa.int8(), pa.string()), "text", words))
    cases.append(arrow_case(pa.run_end_encoded(pa.int32(), pa.string()), "text", words))
    kinds = pa.array([0, 1], pa.int8())
    parts = [pa.array([5]), pa.array(["x"])]
    dense = pa.UnionArray.from_dense(kinds, pa.array([0, 0], pa.int32()), parts)
    sparse = pa.UnionArray.from_sparse(kinds, [pa.array([5, 6]), pa.array(["y", "x"])])
    for array in (dense, sparse):
        name = name_of(array.type)
        cases.append(Case(name, table_of(name), {"a number": 5, "a text": "x"}, array))
    return cases


def arrow_cases() -> list[Case]:
    null = Case("null", "t_null", {"NULL": None}, pa.nulls(1), "text")
    boolean = arrow_case(pa.bool_(), "boolean", {"true": True, "false": False})
    return [null, boolean, *integers(), *numbers(), *texts(), *times(), *sql_cases(), *nested()]


def sql_cases() -> list[Case]:
    """What pyarrow can't make; the node's SQL can. See `ARROW_SQL`."""
    months = {"NULL": None, "14 months": Interval(14, 0, 0), "-1 month": Interval(-1, 0, 0)}
    days = {"NULL": None, "5 days": Interval(0, 5, 3_000_000), "-1 day": Interval(0, -1, -3_600_000_000_000)}
    return [
        Case(NAMES["month_interval"], "t_month_interval", months),
        Case(NAMES["day_time_interval"], "t_day_time_interval", days),
    ]


ARROW_SQL = {
    "t_month_interval": ("Interval(YearMonth)", ("14 months", "-1 month")),
    "t_day_time_interval": ("Interval(DayTime)", ("5 days 3 milliseconds", "-1 day -1 hour")),
}


#: A type of PostgreSQL, and texts of its values.
POSTGRES: dict[str, tuple[str, ...]] = {
    "boolean": ("true", "false"),
    "smallint": ("-32768", "32767"),
    "integer": ("-2147483648", "2147483647"),
    "bigint": ("-9223372036854775808", "9223372036854775807"),
    "oid": ("0", "4294967295"),
    "real": ("0.1", "-0", "3.4028235e38", "1e-45", "NaN", "-Infinity"),
    "double precision": ("0.1", "-0", "1.7976931348623157e308", "5e-324", "NaN", "-Infinity"),
    "numeric": ("0", "1.50", "-1e31", "1e-44", "1e32", "1e-45", "1e1000", "NaN", "Infinity", "-Infinity"),
    "numeric(10,2)": ("99999999.99", "-0.01", "NaN"),
    "numeric(76,20)": ("9" * 56 + "." + "9" * 20,),
    "numeric(1000,0)": ("9" * 1000,),
    "numeric(5,-2)": ("-9999900",),
    "money": ("-92233720368547758.08", "0.01"),
    '"char"': ("a", ""),
    "character(5)": ("ab", ""),
    "character varying(5)": ("ab ", ""),
    "text": ("", "ä€😀", 'it\'s "q" \\ \n\t'),
    "name": ("a name", ""),
    "bytea": ("\\x", "\\x00ff5c"),
    "date": ("2024-02-29", "0001-01-01", "4713-01-01 BC", "5874897-12-31", "infinity", "-infinity"),
    "time without time zone": ("00:00:00", "23:59:59.999999", "24:00:00"),
    "time(0) without time zone": ("23:59:59",),
    "time with time zone": ("12:00:00+02", "00:00:00.000001-15:59"),
    "timestamp without time zone": (
        "2024-02-29 12:34:56.789",
        "0001-01-01 00:00:00",
        "4713-01-01 00:00:00 BC",
        "294276-12-31 23:59:59.999999",
        "infinity",
    ),
    "timestamp with time zone": (
        "2024-02-29 12:34:56.789+02",
        "4713-01-01 00:00:00+00 BC",
        "294276-12-31 23:59:59.999999+00",
        "-infinity",
    ),
    "interval": (
        "1 year -2 mons 3 days -04:05:06.7",
        "178000000 years",
        "-2562047788:00:54.775807",
        "2562047:00:00",
        "2562048:00:00",
    ),
    "uuid": ("00000000-0000-0000-0000-000000000000", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    "json": ('{"a":  [1, null]}', "1.50", "null"),
    "jsonb": ('{"a": [1, null]}', "1.50", "null"),
    "jsonpath": ('$."a"[*]',),
    "xml": ("<a>ä</a>",),
    "inet": ("192.168.0.1/24", "::1"),
    "cidr": ("10.0.0.0/8",),
    "macaddr": ("08:00:2b:01:02:03",),
    "macaddr8": ("08:00:2b:01:02:03:04:05",),
    "bit(5)": ("10101",),
    "bit varying": ("", "101"),
    "point": ("(1.5,-2)",),
    "line": ("{1,2,3}",),
    "lseg": ("[(1,2),(3,4)]",),
    "box": ("(3,4),(1,2)",),
    "path": ("[(1,2),(3,4)]", "((1,2),(3,4))"),
    "polygon": ("((1,2),(3,4),(5,0))",),
    "circle": ("<(1,2),3>",),
    "int4range": ("[1,5)", "empty", "(,)"),
    "numrange": ("[1.50,)",),
    "daterange": ("[2024-02-29,infinity)",),
    "tstzrange": ('["2024-02-29 12:00:00+00",)',),
    "int4multirange": ("{[1,3),[5,7)}", "{}"),
    "boolean[]": ("{t,f,NULL}",),
    "integer[]": ("{1,NULL,3}", "{}", "{{1,2},{3,4}}", "[0:1]={1,2}"),
    "numeric(10,2)[]": ("{1.50,NULL}",),
    "text[]": ('{"",NULL,"NULL","a\\"b,{}"}', "{}"),
    "bytea[]": ('{"\\\\x00ff"}',),
    "timestamp with time zone[]": ('{"2024-02-29 12:00:00+00",NULL}',),
    "jsonb[]": ('{"{\\"a\\": 1}"}',),
    "inet[]": ("{10.0.0.1,NULL}",),
    "pair": ("(1,x)", "(,)"),
    "pair[]": ('{"(1,x)",NULL}',),
    "mood": ("happy",),
    "mood[]": ("{happy,NULL}",),
    "positive": ("5",),
    "tsvector": ("'a':1 'b':2A",),
    "tsquery": ("'a' & 'b'",),
    "pg_lsn": ("16/B374D848",),
    "tid": ("(1,2)",),
    "xid": ("5",),
    "xid8": ("18446744073709551615",),
    "pg_snapshot": ("10:20:10,14",),
    "regclass": ("pg_class",),
    "regtype": ("integer",),
    "hstore": ('"a"=>"1", "b"=>NULL',),
}
#: What the types that are no part of PostgreSQL are.
MADE = {
    "pair": "create type pair as (a integer, b text)",
    "mood": "create type mood as enum ('sad', 'happy')",
    "positive": "create domain positive as integer check (value > 0)",
    "hstore": "create extension hstore",
}
SHOWN_AS = {"pair": "composite", "mood": "enum", "positive": "domain of integer"}


def postgres_table(kind: str) -> str:
    return "pg_" + table_of(kind.replace("[]", " array"))


def postgres_kind(kind: str) -> str:
    """The name of a type in the table."""
    base = kind.removesuffix("[]")
    return SHOWN_AS.get(base, base) + kind[len(base) :]


#: Values of Python, and the type in SQL that a cast names.
PYTHON: dict[str, tuple[str, dict[str, Any]]] = {
    "None": ("text", {"NULL": None}),
    "bool": ("boolean", {"true": True}),
    "int": ("bigint", {"0": 0, "smallest": -(2**63), "largest": 2**63 - 1}),
    "int above 2⁶³": ("numeric(20, 0)", {"largest": 2**64 - 1}),
    "float": ("double precision", {"0.1": 0.1, "NaN": float("nan"), "infinity": float("inf"), "-0.0": -0.0}),
    "Decimal": ("numeric(38, 10)", {"1.50": Decimal("1.50"), "28 digits": Decimal("-123456789012345678.0123456789")}),
    "str": ("text", {"empty": "", "Unicode": "ä€😀", "signs": "it's \\ \n"}),
    "bytes": ("bytea", {"empty": b"", "any bytes": b"\x00\xff"}),
    "date": ("date", {"year 1": datetime.date.min, "year 9999": datetime.date.max}),
    "time": ("time", {"midnight": datetime.time.min, "largest": datetime.time.max}),
    "datetime": ("timestamp", {"year 1": datetime.datetime.min, "year 9999": datetime.datetime.max}),
    "datetime with a zone": (
        "timestamptz",
        {"2024": datetime.datetime(2024, 2, 29, 12, 30, 0, 5, datetime.timezone(datetime.timedelta(hours=2)))},
    ),
    "timedelta": ("interval", {"1 µs": datetime.timedelta(0, 0, 1), "-1.5 days": datetime.timedelta(-1.5)}),
    "UUID": ("uuid", {"any": uuid.UUID(int=2**127 + 5)}),
    "list of int": ("bigint[]", {"with NULL": [1, None], "empty": []}),
    "list of str": ("text[]", {"with NULL": ["a,b", None, ""]}),
    "dict": ("json", {"plain": {"a": 1, "b": "x"}}),
}

#: Classes of Java, and texts of their values.
JAVA: dict[str, tuple[str, dict[str, str]]] = {
    "null": ("text", {"NULL": ""}),
    "Boolean": ("boolean", {"true": "true"}),
    "Byte": ("smallint", {"smallest": "-128"}),
    "Short": ("smallint", {"smallest": "-32768"}),
    "Integer": ("integer", {"smallest": "-2147483648"}),
    "Long": ("bigint", {"smallest": "-9223372036854775808"}),
    "Float": ("real", {"0.1": "0.1", "NaN": "NaN"}),
    "Double": ("double precision", {"0.1": "0.1", "NaN": "NaN", "infinity": "Infinity"}),
    "BigDecimal": ("numeric(38, 10)", {"28 digits": "-123456789012345678.0123456789"}),
    "String": ("text", {"empty": "", "Unicode": "ä€😀"}),
    "byte[]": ("bytea", {"empty": "", "any bytes": "00ff"}),
    "Date": ("date", {"2024": "2024-02-29", "year 1": "0001-01-01"}),
    "Time": ("time", {"noon": "12:00:01"}),
    "Timestamp": ("timestamp", {"whole second": "2024-02-29 12:00:00", "microseconds": "2024-02-29 12:00:00.123456"}),
    "LocalDate": ("date", {"2024": "2024-02-29", "year 1": "0001-01-01"}),
    "LocalTime": ("time", {"microseconds": "12:00:00.123456"}),
    "LocalDateTime": ("timestamp", {"microseconds": "2024-02-29T12:00:00.123456"}),
    "OffsetDateTime": ("timestamptz", {"microseconds": "2024-02-29T12:00:00.123456+02:00"}),
    "UUID": ("uuid", {"any": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"}),
}


def java_value(name: str, text: str) -> Any:
    """The value of a text of `JAVA`."""
    match name:
        case "null":
            return None
        case "Boolean":
            return text == "true"
        case "Byte" | "Short" | "Integer" | "Long":
            return int(text)
        case "Float":
            return Narrow(text)
        case "Double":
            return float(text)
        case "BigDecimal":
            return Decimal(text)
        case "byte[]":
            return bytes.fromhex(text)
        case "UUID":
            return uuid.UUID(text).bytes
        case "Date" | "LocalDate":
            return moment(Date, text)
        case "Time" | "LocalTime" | "Timestamp" | "LocalDateTime" | "OffsetDateTime":
            return moment(Local, text)
    return text
