"""Tables of docs/guide/types.md."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from servers import ROOT
from type_clients import Answer
from type_values import same, shown

PAGE = ROOT / "docs" / "guide" / "types.md"
SMALL = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


class Outcome(NamedTuple):
    """What a client makes of the values of a type."""

    kind: str
    #: What is said about values that differ or are refused, and how many they are.
    notes: list[str]
    faults: int = 0


def outcome(values: dict[str, Any], whole: Callable[[], Answer], one: Callable[[int], Answer]) -> Outcome:
    """Reads all values; each by itself if that fails."""
    try:
        kind, got = whole()
    except Exception:
        pass
    else:
        notes = differences(values, got)
        return Outcome(kind, shortened(notes, len(values)), len(notes))
    kinds, notes, refused = [], [], {}
    for number, (label, value) in enumerate(values.items()):
        try:
            kind, got = one(number)
        except Exception as error:
            refused.setdefault(message(error), []).append(label)
        else:
            if value is not None or not kinds:
                kinds.append(kind)
            notes += differences({label: value}, got)
    faults = len(notes) + sum(map(len, refused.values()))
    notes = shortened(notes, len(values))
    for reason, labels in refused.items():
        notes.append(f"refused: {reason}" if len(labels) == len(values) else f"{', '.join(labels)}: refused: {reason}")
    return Outcome(kinds[-1] if kinds else "refused", notes, faults)


def differences(values: dict[str, Any], got: list[Any]) -> list[str]:
    if len(values) != len(got):
        return [f"{len(got)} values instead of {len(values)}"]
    found = zip(values.items(), got, strict=True)
    return [f"{label}: arrives as `{shown(other)}`" for (label, value), other in found if not same(value, other)]


def shortened(notes: list[str], values: int) -> list[str]:
    if len(notes) <= 3:
        return notes
    return [*notes[:2], f"{len(notes)} of {values} values differ"]


def message(error: BaseException) -> str:
    """The first line of an error, without what differs between runs."""
    text = str(error).strip().split("\n")[0] or type(error).__name__
    text = re.sub(r"\b(pg_t|t)_\w+", "t", text)
    text = re.sub(r"127\.0\.0\.1:\d+", "HOST:PORT", text)
    text = re.sub(r"postgresql://\S*", "PostgreSQL", text)
    text = re.sub(r'Error while executing SQL ".*?": ', "", text)
    text = re.sub(r"nanoarrow call failed: .*?na_error\) = \(\d+\) ", "", text)
    text = re.sub(r"^[A-Z_]+: (\[\w+\] )?|^External error: ", "", text)
    text = re.sub(r"^(\w*SQLException|StatusRuntimeException: [A-Z_]+): ", "", text)
    text = text.removeprefix("Execution error [PGRES_FATAL_ERROR]: ")
    text = re.sub(r"^(Failed to \w+ prepared statement: PGRES_FATAL_ERROR )?ERROR: +", "", text)
    text = re.sub(r"-?\d{10,}(\.\.\.)?", "…", text)
    text = re.sub(r"\s+", " ", text).replace("|", "\\|").replace("<", "&lt;")
    # The hint is in the page's text.
    text = text.split("; ")[0]
    return text if len(text) <= 160 else text[:160].rsplit(" ", 1)[0] + " …"


class Table:
    """A table with footnotes."""

    def __init__(self, *columns: str) -> None:
        self.lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
        self.notes: dict[str, int] = {}

    def add(self, *cells: str | Outcome) -> None:
        self.lines.append("| " + " | ".join(map(self.cell, cells)) + " |")

    def cell(self, cell: str | Outcome) -> str:
        if isinstance(cell, str):
            return cell
        note = "; ".join(cell.notes)
        if not note:
            return cell.kind
        number = self.notes.setdefault(note, len(self.notes) + 1)
        return f"{cell.kind} {str(number).translate(SMALL)}"

    def text(self) -> str:
        notes = [f"{number}. {note}" for note, number in self.notes.items()]
        return "\n".join([*self.lines, "", *notes]).rstrip() + "\n"


def in_columns(columns: Sequence[Callable[[], list[Outcome]]], threads: int = 4) -> list[list[Outcome]]:
    """Runs each column in a thread."""
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(lambda column: column(), columns))


def is_documented(name: str, made: str) -> None:
    """Compares a table with that of the page; with LIGHTSHIP_WRITE_DOCS=1 it is written."""
    begin = f"<!-- made by python/tests/test_types.py: {name} -->\n"
    page = PAGE.read_text()
    before, found, rest = page.partition(begin)
    assert found, f"{PAGE} has no line {begin}"
    old, _, after = rest.partition("<!-- end -->")
    if os.environ.get("LIGHTSHIP_WRITE_DOCS") == "1":
        PAGE.write_text(f"{before}{begin}\n{made}\n<!-- end -->{after}")
        return
    was, now = old.strip().splitlines(), made.strip().splitlines()
    difference = "\n".join(difflib.unified_diff(was, now, "docs/guide/types.md", "now", n=0, lineterm=""))
    assert not difference, f"LIGHTSHIP_WRITE_DOCS=1 writes the tables of docs/guide/types.md:\n{difference}"
