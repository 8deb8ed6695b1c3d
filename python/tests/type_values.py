"""Values that do not depend on a client: what is sent is compared with what comes back."""

from __future__ import annotations

import datetime
import json
import math
import re
import struct
import uuid
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

DAY = 86_400 * 10**9
UNITS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}


@dataclass(frozen=True)
class Date:
    """Days since 1970."""

    days: int

    def __str__(self) -> str:
        year, month, day = civil(self.days)
        return f"{year}-{month:02}-{day:02}"


@dataclass(frozen=True)
class Time:
    ns: int

    def __str__(self) -> str:
        seconds, fraction = divmod(self.ns, 10**9)
        text = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
        return text + (f".{fraction:09}".rstrip("0") if fraction else "")


@dataclass(frozen=True)
class Local:
    """A timestamp without a time zone, in nanoseconds since 1970."""

    ns: int

    def __str__(self) -> str:
        return f"{Date(self.ns // DAY)} {Time(self.ns % DAY)}"


@dataclass(frozen=True)
class Instant(Local):
    """A timestamp with a time zone."""

    def __str__(self) -> str:
        return super().__str__() + " UTC"


@dataclass(frozen=True)
class Interval:
    months: int
    days: int
    ns: int

    def __str__(self) -> str:
        return f"{self.months} months {self.days} days {self.ns} ns"


@dataclass(frozen=True)
class Duration:
    ns: int

    def __str__(self) -> str:
        return f"{self.ns} ns"


class Narrow(float):
    """A float of 16 or 32 bits."""


class Json(str):
    """A document."""


class Text(str):
    """A value as a text of its type, such as `{1,2}` for a list."""


def civil(days: int) -> tuple[int, int, int]:
    """Year, month and day of days since 1970; Python's dates end at the years 1 and 9999."""
    era, day = divmod(days + 719_468, 146_097)
    year = (day - day // 1460 + day // 36_524 - day // 146_096) // 365
    rest = day - (365 * year + year // 4 - year // 100)
    month = (5 * rest + 2) // 153
    number = month + 3 if month < 10 else month - 9
    return year + era * 400 + (number <= 2), number, rest - (153 * month + 2) // 5 + 1


def days_of(year: int, month: int, day: int) -> int:
    year -= month <= 2
    era, of_era = divmod(year, 400)
    of_year = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468


def of_arrow(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    if isinstance(column, pa.ChunkedArray):
        if str(column.type) in ("month_interval", "day_time_interval"):
            return of_intervals(column)
        return [value for chunk in column.chunks for value in of_arrow(chunk)]
    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        values = of_arrow(column.storage)
        is_json = kind.extension_name == "arrow.json"
        return [Json(value) if is_json and value is not None else value for value in values]
    if pa.types.is_dictionary(kind):
        return of_arrow(column.dictionary_decode())
    if pa.types.is_run_end_encoded(kind):
        return of_arrow(pc.run_end_decode(column))
    if pa.types.is_temporal(kind) and not pa.types.is_interval(kind):
        numbers = column.cast(pa.int32() if kind.bit_width == 32 else pa.int64()).to_pylist()
        return [None if number is None else of_number(kind, number) for number in numbers]
    if pa.types.is_nested(kind) and not pa.types.is_union(kind):
        return [of_scalar(value) for value in column]
    if kind in (pa.float16(), pa.float32()):
        return [None if value is None else Narrow(value) for value in column.to_pylist()]
    return [of_python(value) for value in column.to_pylist()]


def of_number(kind: pa.DataType, number: int) -> object:
    if pa.types.is_date(kind):
        return Date(number if kind == pa.date32() else number // 86_400_000)
    ns = number * UNITS[kind.unit]
    if pa.types.is_time(kind):
        return Time(ns)
    if pa.types.is_duration(kind):
        return Duration(ns)
    return Local(ns) if kind.tz is None else Instant(ns)


def of_scalar(value: pa.Scalar) -> Any:
    if not value.is_valid:
        return None
    if pa.types.is_map(value.type):
        return dict(value.as_py())
    if pa.types.is_struct(value.type):
        return {name: of_scalar(item) for name, item in value.items()}
    if isinstance(value, pa.ListScalar) or hasattr(value, "values"):
        return of_arrow(value.values)
    return of_python(value.as_py())


def of_intervals(column: pa.ChunkedArray) -> list[Any]:
    """pyarrow has no arrays of two of the intervals, but prints them: `5M`, and `5d3ms`."""
    text = column.to_string(window=100, container_window=100)
    found = re.findall(r"(null)|(-?\d+)M|(-?\d+)d(-?\d+)ms", text)
    assert len(found) == len(column), text
    return [
        None if null else Interval(int(months or 0), int(days or 0), int(ms or 0) * 10**6)
        for null, months, days, ms in found
    ]


def of_python(value: Any) -> Any:
    """A value of Python, as psycopg and pyarrow have them."""
    if isinstance(value, datetime.datetime):
        zone = value.tzinfo
        value = value.replace(tzinfo=None) - (value.utcoffset() or datetime.timedelta())
        ns = (value - datetime.datetime(1970, 1, 1)) // datetime.timedelta(microseconds=1) * 1000
        return Local(ns) if zone is None else Instant(ns)
    if isinstance(value, datetime.date):
        return Date((value - datetime.date(1970, 1, 1)).days)
    if isinstance(value, datetime.time):
        seconds = (value.hour * 60 + value.minute) * 60 + value.second
        return Time(seconds * 10**9 + value.microsecond * 1000)
    if isinstance(value, datetime.timedelta):
        return Duration(value // datetime.timedelta(microseconds=1) * 1000)
    if isinstance(value, pa.MonthDayNano):
        return Interval(value.months, value.days, value.nanoseconds)
    if isinstance(value, uuid.UUID):
        return value.bytes
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, dict):
        return {key: of_python(item) for key, item in value.items()}
    if isinstance(value, list):
        return [of_python(item) for item in value]
    return value


def same(expected: Any, got: Any) -> bool:
    if expected is None or got is None:
        return expected is got
    if isinstance(expected, Json):
        return expected == got or json.loads(expected) == (json.loads(got) if isinstance(got, str) else got)
    if isinstance(expected, Text):
        return same_texts(expected, got) if isinstance(got, Text) else is_text_of(got, expected)
    if isinstance(got, Text) or (isinstance(got, str) and not isinstance(expected, str)):
        return is_text_of(expected, got)
    if isinstance(expected, bool) or isinstance(got, bool):
        return expected is got
    if isinstance(expected, float) and isinstance(got, float):
        if isinstance(expected, Narrow) or isinstance(got, Narrow):
            expected, got = narrowed(expected), narrowed(got)
        is_nan = math.isnan(expected) and math.isnan(got)
        return is_nan or (expected == got and math.copysign(1, expected) == math.copysign(1, got))
    if isinstance(expected, (list, dict)):
        return is_nested(expected, got)
    if {type(expected), type(got)} == {Interval, Duration}:
        interval, duration = (expected, got) if isinstance(expected, Interval) else (got, expected)
        return interval.months == 0 and interval.days * DAY + interval.ns == duration.ns
    return (type(expected) is type(got) or not isinstance(expected, Local)) and bool(expected == got)


def narrowed(number: float) -> float:
    """The nearest of 32 bits: clients print as many digits as distinguish it from the others."""
    return struct.unpack("f", struct.pack("f", number))[0]


def is_nested(expected: Any, got: Any) -> bool:
    if isinstance(expected, dict) and isinstance(got, list):
        # The attributes of a struct have no names in JDBC.
        expected = list(expected.values())
    if isinstance(expected, dict) and isinstance(got, dict):
        return list(expected) == list(got) and all(same(expected[key], got[key]) for key in expected)
    if not isinstance(expected, list) or not isinstance(got, list) or len(expected) != len(got):
        return False
    return all(map(same, expected, got))


def same_texts(expected: str, got: str) -> bool:
    if expected == got:
        return True
    try:
        # `money` has a sign and commas.
        return Decimal(re.sub("[$,]", "", expected)) == Decimal(got)
    except ArithmeticError:
        return False


def is_text_of(value: Any, text: str) -> bool:
    """Whether a client's text stands for a value."""
    try:
        return same(value, parsed(value, text))
    except (ValueError, ArithmeticError, TypeError):
        return False


def parsed(value: Any, text: str) -> Any:
    """A text as a value of the same kind as another one."""
    match value:
        case bool():
            return {"t": True, "true": True, "f": False, "false": False}[text.lower()]
        case int() | Decimal():
            return Decimal(re.sub(r"[$,]", "", text))
        case float():
            return float(text)
        case bytes():
            return bytes.fromhex(text.removeprefix("\\x").replace("-", ""))
        case list() | dict():
            items = array_items(text) if text.startswith("{") and isinstance(value, list) else json.loads(text)
            return as_texts(items)
        case Date() | Local() | Time():
            return moment(type(value), text)
        case Interval() | Duration():
            return interval(text)
    return str(text)


def as_texts(item: Any) -> Any:
    """Texts within JSON and arrays are those of any type."""
    if isinstance(item, list):
        return [as_texts(one) for one in item]
    if isinstance(item, dict):
        return {key: as_texts(one) for key, one in item.items()}
    return Text(item) if isinstance(item, str) else item


def array_items(text: str) -> list[Any]:
    """The items of an array of PostgreSQL."""
    stack: list[list[Any]] = [[]]
    for token in re.finditer(r'"((?:[^"\\]|\\.)*)"|([{},])|([^{},"]+)', text, re.S):
        quoted, sign, bare = token.groups()
        if quoted is not None:
            stack[-1].append(re.sub(r"\\(.)", r"\1", quoted, flags=re.S))
        elif bare is not None:
            stack[-1].append(None if bare == "NULL" else bare)
        elif sign == "{":
            stack.append([])
        elif sign == "}":
            done = stack.pop()
            stack[-1].append(done)
    return stack[0][0]


MOMENT = re.compile(
    r"(?:([+-]?\d+)-(\d\d)-(\d\d))?[ T]?(?:(\d\d):(\d\d)(?::(\d\d)(?:\.(\d+))?)?)?"
    r"(Z|[+-]\d\d(?::?\d\d)?(?::\d\d)?)?( BC)?"
)


def moment(kind: type, text: str) -> Any:
    found = MOMENT.fullmatch(text)
    if found is None:
        raise ValueError(text)
    year, month, day, hour, minute, second, fraction, zone, before = found.groups()
    ns = ((int(hour or 0) * 60 + int(minute or 0)) * 60 + int(second or 0)) * 10**9
    ns += int((fraction or "").ljust(9, "0"))
    if year is None:
        return Time(ns)
    days = days_of(1 - int(year) if before else int(year), int(month), int(day))
    if kind is Date and hour is None:
        return Date(days)
    ns += days * DAY
    if zone is None:
        return Local(ns)
    parts = [int(part) for part in re.findall(r"\d\d", zone)]
    offset = sum(part * 60**power for part, power in zip(parts, (2, 1, 0), strict=False))
    return Instant(ns + (offset if zone[0] == "-" else -offset) * 10**9)


#: ISO 8601 as in `P1DT2.5S`, and PostgreSQL's `1 day 00:00:02.5`. A `T` may follow a unit at once.
PARTS = re.compile(
    r"(T)|([+-]?)(\d+):(\d\d):(\d\d)(?:\.(\d+))?"
    r"|([+-]?[\d.]+) ?([A-Za-z]+?)(?=[^A-Za-z]|$|(?<=[YMWDHS])(?=[T\d-]))"
)


def interval(text: str) -> Interval | Duration:
    months = days = ns = 0
    in_time = False
    is_negative = text.startswith("-P")
    text = text.removeprefix("-") if is_negative else text
    for mark, sign, hour, minute, second, fraction, count, unit in PARTS.findall(text.removeprefix("P")):
        if mark:
            in_time = True
        elif hour:
            part = ((int(hour) * 60 + int(minute)) * 60 + int(second)) * 10**9 + int(fraction.ljust(9, "0"))
            ns += -part if sign == "-" else part
        else:
            amount, name = Decimal(count), unit.lower().rstrip("s") or "s"
            if name in ("y", "year"):
                months += int(amount) * 12
            elif name in ("mon", "month") or (name == "m" and not in_time):
                months += int(amount)
            elif name in ("d", "day"):
                days += int(amount)
            else:
                ns += int(amount * {"h": 3600, "m": 60, "s": 1}[name[0]] * 10**9)
    if is_negative:
        months, days, ns = -months, -days, -ns
    # Java's Duration has no days.
    return Duration(ns) if text.startswith("PT") else Interval(months, days, ns)


def shown(value: Any) -> str:
    """A value in a footnote."""
    if value is None:
        return "NULL"
    if isinstance(value, Text):
        text = str(value)
    elif isinstance(value, bytes):
        text = value.hex()
    elif isinstance(value, (list, tuple)):
        text = "[" + ", ".join(map(shown, value)) + "]"
    elif isinstance(value, dict):
        text = "{" + ", ".join(f"{key}: {shown(item)}" for key, item in value.items()) + "}"
    else:
        text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 48 else f"{text[:40]}… ({len(text)} characters)"
